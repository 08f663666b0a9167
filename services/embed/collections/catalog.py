"""The folder of all collections: a subfolder for each, made and removed in one step also when the process is killed."""

import fcntl
import os
import re
import shutil
import uuid
from pathlib import Path
from threading import Lock

from services.core.durable_files import make_folder_durably, sync_folder
from services.core.errors import InvalidField, NotFound
from services.embed.collections.database import storage_errors
from services.embed.collections.image_store import DATABASE_NAME, CollectionInfo, ImageStore

MAX_NAME_CHARACTERS = 64
LOCK_NAME = ".lock"
# Of folders that are not collections yet, or no more. No name begins with a dot.
CREATING = ".creating-"
DELETING = ".deleting-"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class CatalogInUse(RuntimeError):
    """Another process has the folder open."""


class Catalog:
    """Works from any thread. The folder belongs to one open catalog at a time, also across processes.

    Methods that write raise StorageFull where the disk is full.
    """

    def __init__(self, root: Path, lock: int) -> None:
        self._root = root
        self._lock: int | None = lock
        self._changing = Lock()

    @classmethod
    def open(cls, root: Path) -> "Catalog":
        """The collections in a folder, made as needed. What a killed process left half made or removed is removed.

        Raises CatalogInUse; the lock of a process that is gone is gone with it.
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
        """Let another catalog open the folder. Open stores stay open: close them first."""
        with self._changing:
            if self._lock is not None:
                os.close(self._lock)
            self._lock = None

    def names(self) -> list[str]:
        """Of all collections, in order."""
        folders = (path.parent.name for path in self._root.glob(f"*/{DATABASE_NAME}"))
        return sorted(name for folder in folders if (name := _name_of(folder)) is not None)

    def create(self, info: CollectionInfo) -> ImageStore:
        """A new, empty collection, on disk when this returns. Raises FileExistsError, InvalidField for its name."""
        check_name(info.name)
        with self._changing, storage_errors(self._root):
            folder = self.folder(info.name)
            if folder.exists():
                raise FileExistsError(f"There is a collection {info.name!r} already.")
            staged = self._root / f"{CREATING}{uuid.uuid4().hex}"
            try:
                ImageStore.create(staged, info).close()
                sync_folder(staged)
                staged.rename(folder)
            except BaseException:
                shutil.rmtree(staged, ignore_errors=True)
                raise
            sync_folder(self._root)
            return ImageStore.open(folder)

    def open_store(self, name: str) -> ImageStore:
        """Raises NotFound, and what ImageStore.open raises."""
        try:
            return ImageStore.open(self.folder(name))
        except FileNotFoundError as error:
            raise _no_collection(name) from error

    def folder(self, name: str) -> Path:
        """Where a collection of this name keeps its files, whether there is one or not. Raises InvalidField."""
        check_name(name)
        return self._root / re.sub("[A-Z]", lambda found: f"={found[0].lower()}", name)

    def delete(self, name: str) -> None:
        """Remove a collection with all its files; it stays removed once this returns. Close its store first.

        Raises NotFound.
        """
        with self._changing, storage_errors(self._root):
            removed = self._root / f"{DELETING}{uuid.uuid4().hex}"
            try:
                self.folder(name).rename(removed)
            except FileNotFoundError as error:
                raise _no_collection(name) from error
            sync_folder(self._root)
            # what can't be removed now is when the catalog is opened again
            shutil.rmtree(removed, ignore_errors=True)


def check_name(name: str) -> None:
    """Raises InvalidField for what can't be a collection's name.

    It has 1 to MAX_NAME_CHARACTERS ASCII letters, digits, dots, underscores and hyphens, and begins with a letter or
    a digit. Names that differ only in upper and lower case are two, also where the file system knows no difference.
    """
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise InvalidField(
            f"A collection's name has 1 to {MAX_NAME_CHARACTERS} letters, digits, '.', '_' and '-',"
            " and begins with a letter or a digit.",
            param="name",
        )


def _name_of(folder: str) -> str | None:
    """The inverse of `Catalog.folder`; None for a folder of something else."""
    name = re.sub("=([a-z])", lambda found: found[1].upper(), folder)
    is_ours = folder == folder.lower() and len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name)
    return name if is_ours else None


def _no_collection(name: str) -> NotFound:
    return NotFound(f"There is no collection {name!r}.", param="collection", code="collection_not_found")
