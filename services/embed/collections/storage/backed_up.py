"""All collections of all tenants as a backup reads them, by the stores that services use, beside these."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from services.core.exchange import DEFAULT_TENANT
from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.sqlite_store import SqliteImageStore


class BackedUp(Catalog, Protocol):
    """All collections while others change them; they must not be changed through it."""

    kind: str

    def snapshot(self) -> AbstractContextManager[Catalog]:
        """Open the collections as of a moment: all of the same one, or each of the one at which it is opened."""
        ...


class FolderBackedUp(FolderCatalog, BackedUp):
    """The collections in a folder, also while a process has them open; with `is_held`, each as of a moment."""

    kind = "local"

    def __init__(self, root: Path, *, is_held: bool = False) -> None:
        super().__init__(root, None)
        self._is_held = is_held

    def open_store(self, name: str, tenant: str = DEFAULT_TENANT) -> SqliteImageStore:
        return SqliteImageStore.beside(self.folder(name, tenant), is_held=self._is_held)

    @contextmanager
    def snapshot(self) -> Iterator[Catalog]:
        yield FolderBackedUp(self._root, is_held=True)
