"""This process's folder for what it can compute again, on its own disk."""

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from services.embed.collections.cluster.image_store import PostgresImageStore

LOCK_NAME = ".lock"


class OwnFolder:
    """A folder that no other process uses as long as this one has it open."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock

    @classmethod
    def open(cls, root: Path) -> "OwnFolder":
        """Take the first folder below `root` that no process has, so that one that is restarted finds its files.

        Raises OSError.
        """
        for number in itertools.count():
            path = root / f"replica-{number}"
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except BaseException:
                os.close(lock)
                raise
            return cls(path, lock)
        raise AssertionError("numbers do not end")

    def close(self) -> None:
        """Let another process use it."""
        os.close(self._lock)

    def of(self, store: PostgresImageStore) -> Path:
        """Return the folder of a collection; one that is made anew under the same name has another."""
        return self._path / _name(store)

    def remove_others(self, stores: Iterable[PostgresImageStore]) -> None:
        """Remove the folders of all other collections, as far as the disk allows it."""
        names = {_name(store) for store in stores}
        with suppress(OSError):
            for path in self._path.iterdir():
                if path.name not in names and path.name != LOCK_NAME:
                    shutil.rmtree(path, ignore_errors=True)


def _name(store: PostgresImageStore) -> str:
    # numbers begin anew in a new database, times do not
    return f"{store.collection}-{store.info.created.hex()}"
