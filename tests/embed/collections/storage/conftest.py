"""The catalog, empty, for the tests of what every implementation promises."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.image_store import ImageStore
from tests.embed.collections.stored import INFO


@pytest.fixture
def open_catalog(tmp_path: Path) -> Callable[[], Catalog]:
    """The function that opens the same catalog again and again, one at a time."""
    return lambda: FolderCatalog.open(tmp_path / "collections")


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
