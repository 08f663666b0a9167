"""Both kinds of stored collections, to be backed up and restored."""

from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from services.embed.collections.storage.catalog import Catalog
from services.embed.transfer.backup import Storage
from services.jobs.progress import Bars
from tests.conftest import empty_schema


@pytest.fixture
def bars() -> Bars:
    return Bars(Console(file=StringIO()))


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.process)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_storage(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """The function that makes an empty storage of the kind."""
    made: list[Storage] = []

    def make() -> Storage:
        folder = tmp_path / f"storage-{len(made)}"
        database = None
        if kind == "cluster":
            database = empty_schema(request.getfixturevalue("postgres_url"))
        made.append(Storage(folder / "collections", database, (folder / "objects").as_uri(), None))
        return made[-1]

    return make


@pytest.fixture
def storage(new_storage: Callable[[], Storage]) -> Storage:
    return new_storage()


@pytest.fixture
def catalog(storage: Storage) -> Iterator[Catalog]:
    """The collections of the storage, open as a service has them."""
    with closing(storage.catalog()) as catalog:
        yield catalog
