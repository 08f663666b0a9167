"""The folder of all collections: a subfolder for each, created and removed atomically even if the process is killed.

Collections of the default tenant are in the folder itself, those of other tenants in `.tenants/<tenant>`.
"""

import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from services.core.durable_files import make_folder_durably, sync_folder
from services.core.errors import Conflict
from services.core.exchange import DEFAULT_TENANT
from services.embed.collections.storage.catalog import (
    BackedUp,
    Catalog,
    CatalogInUse,
    check_name,
    check_tenant,
    is_name,
    is_tenant,
    no_collection,
)
from services.embed.collections.storage.database import storage_errors
from services.embed.collections.storage.image_store import CollectionInfo
from services.embed.collections.storage.sqlite_store import DATABASE_NAME, SqliteImageStore

LOCK_NAME = ".lock"
# Prefixes of folders that are not yet, or no longer, collections. No collection's name begins with a dot.
CREATING = ".creating-"
DELETING = ".deleting-"
TENANTS = ".tenants"

# Files that identify a folder as a collection's, even if others are lost.
_OWN_FILES = {DATABASE_NAME, f"{DATABASE_NAME}-wal", "indexes", "states"}


class FolderCatalog(Catalog):
    """A Catalog of one process: only one at a time has the folder open, also across processes.

    Methods that list raise OSError, those that write StorageFull if the disk is full.
    """

    def __init__(self, root: Path, lock: int | None) -> None:
        self._root = root
        self._lock = lock
        self._changing = Lock()

    @classmethod
    def open(cls, root: Path) -> "FolderCatalog":
        """Open the collections in a folder, made as needed. Remains of interrupted creations and removals are removed.

        Raises CatalogInUse; the lock of a process ends with the process.
        """
        with storage_errors(root):
            make_folder_durably(root)
            lock = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise CatalogInUse(f"Another process uses the collections in {root}.") from error
        for pattern in (f"{CREATING}*", f"{DELETING}*"):
            for leftover in root.glob(pattern):
                shutil.rmtree(leftover, ignore_errors=True)
        return cls(root, lock)

    def close(self) -> None:
        with self._changing:
            if self._lock is not None:
                os.close(self._lock)
            self._lock = None

    def tenants(self) -> list[str]:
        folder = self._root / TENANTS
        others = [entry.name for entry in folder.iterdir()] if folder.exists() else []
        return sorted({DEFAULT_TENANT, *(name for name in others if is_tenant(name))})

    def names(self, tenant: str = DEFAULT_TENANT) -> list[str]:
        folder = self._folder_of(tenant)
        entries = list(folder.iterdir()) if folder.exists() else []
        named = ((_name_of(entry.name), entry) for entry in entries)
        return sorted(name for name, entry in named if name is not None and _is_collection(entry))

    def create(self, info: CollectionInfo, tenant: str = DEFAULT_TENANT) -> SqliteImageStore:
        check_name(info.name)
        with self._changing, storage_errors(self._root):
            folder = self.folder(info.name, tenant)
            if _is_collection(folder):
                raise FileExistsError(f"The collection {info.name!r} already exists.")
            make_folder_durably(folder.parent)
            staged = self._root / f"{CREATING}{uuid.uuid4().hex}"
            try:
                SqliteImageStore.create(staged, info).close()
                sync_folder(staged)
                staged.rename(folder)
            except BaseException as error:
                shutil.rmtree(staged, ignore_errors=True)
                if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise Conflict(
                        f"The folder of a collection {info.name!r} contains something else.",
                        param="name",
                        code="collection_folder_taken",
                    ) from error
                raise
            sync_folder(folder.parent)
            return SqliteImageStore.open(folder)

    def open_store(self, name: str, tenant: str = DEFAULT_TENANT) -> SqliteImageStore:
        """Raises NotFound, and what SqliteImageStore.open raises."""
        try:
            return SqliteImageStore.open(self.folder(name, tenant))
        except FileNotFoundError as error:
            raise no_collection(name) from error

    def folder(self, name: str, tenant: str = DEFAULT_TENANT) -> Path:
        """Return the folder of a collection of this name, whether or not it exists.

        Raises InvalidField for the name, InvalidRequest for the tenant.
        """
        check_name(name)
        return self._folder_of(tenant) / re.sub("[A-Z]", lambda found: f"={found[0].lower()}", name)

    def delete(self, name: str, tenant: str = DEFAULT_TENANT) -> None:
        with self._changing, storage_errors(self._root):
            removed = self._root / f"{DELETING}{uuid.uuid4().hex}"
            folder = self.folder(name, tenant)
            try:
                folder.rename(removed)
            except FileNotFoundError as error:
                raise no_collection(name) from error
            sync_folder(folder.parent)
            # what can't be removed now is removed when the catalog is opened again
            shutil.rmtree(removed, ignore_errors=True)

    def _folder_of(self, tenant: str) -> Path:
        check_tenant(tenant)
        return self._root if tenant == DEFAULT_TENANT else self._root / TENANTS / tenant


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


def _name_of(folder: str) -> str | None:
    """Invert `Catalog.folder`; None for a folder of something else."""
    name = re.sub("=([a-z])", lambda found: found[1].upper(), folder)
    return name if folder == folder.lower() and is_name(name) else None


def _is_collection(folder: Path) -> bool:
    """Whether a folder belongs to a collection; assumed for a folder that can't be read."""
    try:
        return bool(_OWN_FILES & {entry.name for entry in folder.iterdir()})
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
