"""The storage of collections, by the settings of the service: a folder, or PostgreSQL and an object store."""

from dataclasses import dataclass
from pathlib import Path

from services.core.store.objects import Objects
from services.embed.collections.storage.backed_up import BackedUp, FolderBackedUp
from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.folder_catalog import LOCK_NAME, FolderCatalog
from services.embed.transfer.entries import TransferError

DEFAULT_STORE = Path("~/.fovea/store")


@dataclass(frozen=True)
class Storage:
    """A folder, or with a `database` shared collections. Methods raise what opening these raises."""

    folder: Path
    database: str | None
    images_url: str | None
    store_url: str | None

    def backed_up(self) -> BackedUp:
        """Open the collections to be read, beside the services that use them."""
        if self.database is not None:
            from services.embed.collections.cluster.backed_up import ClusterBackedUp

            return ClusterBackedUp.open(self.database, self._objects())
        folder = self.folder.expanduser()
        if not folder.is_dir():
            raise TransferError(f"there are no collections in {folder}; name another with --collections-dir")
        return FolderBackedUp(folder)

    def empty_catalog(self) -> Catalog:
        """Open what collections are to be restored into, which may have been begun.

        Raises TransferError for a folder of other things, CatalogInUse if a service has the folder open.
        """
        folder = self.folder.expanduser()
        if self.database is None and folder.is_dir() and any(folder.iterdir()) and not (folder / LOCK_NAME).exists():
            raise TransferError(f"{folder} is not empty, and is no folder of collections")
        return self.catalog()

    def catalog(self) -> Catalog:
        """Open the collections to be written. Raises CatalogInUse if a service has the folder open."""
        if self.database is not None:
            from services.embed.collections.cluster.catalog import PostgresCatalog

            return PostgresCatalog.open(self.database, self._objects())
        return FolderCatalog.open(self.folder.expanduser())

    def _objects(self) -> Objects:
        url = self.images_url or self.store_url or DEFAULT_STORE.expanduser().as_uri()
        return Objects(url, {})
