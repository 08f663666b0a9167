"""Both implementations of the catalog, empty, for the tests of what they promise alike."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.core.store.objects import Objects
from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.image_store import ImageStore
from tests.embed.collections.stored import INFO


@pytest.fixture(scope="session")
def server_url(postgres_url: str) -> str:
    """A PostgreSQL server with the tables of collections."""
    from services.embed.collections.cluster.connections import Connections

    Connections.open(postgres_url).close()
    return postgres_url


@pytest.fixture
def database_url(server_url: str) -> str:
    """A database without collections."""
    import psycopg

    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("TRUNCATE collections CASCADE")
    return server_url


@pytest.fixture(params=["folder", pytest.param("postgres", marks=pytest.mark.process)])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Catalog]:
    """The function that opens the same catalog again and again, one at a time."""
    if request.param == "folder":
        return lambda: FolderCatalog.open(tmp_path / "collections")
    url: str = request.getfixturevalue("database_url")
    from services.embed.collections.cluster.catalog import PostgresCatalog

    objects = Objects((tmp_path / "objects").as_uri(), {})
    return lambda: PostgresCatalog.open(url, objects)


@pytest.fixture
def catalog(open_catalog: Callable[[], Catalog]) -> Iterator[Catalog]:
    catalog = open_catalog()
    yield catalog
    catalog.close()


@pytest.fixture
def store(catalog: Catalog) -> Iterator[ImageStore]:
    store = catalog.create(INFO)
    yield store
    store.close()
