"""Space reserved on the disk of the collections, so that deletions work on a full disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from services.embed.collections.storage.database import free_bytes

# Deleting an image writes some tens of pages before it frees any, and opening a database a few more.
BALLAST_BYTES = 512 * 1024


def has_room_beside(folder: Path, num_bytes: int) -> bool:
    """Whether a cache may write so much: it must not take the space that a deletion has just been given."""
    return free_bytes(folder) >= num_bytes + BALLAST_BYTES


class Ballast:
    """A file without meaningful content; if it is missing, it is created when there is room. Thread-safe."""

    def __init__(self, path: Path, num_bytes: int = BALLAST_BYTES) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._giving_up = Lock()

    def take_room(self) -> None:
        """Reserve the space if there is enough; otherwise a later call may."""
        with suppress(OSError):
            if self._held_bytes() >= self._num_bytes or free_bytes(self._path.parent) < self._num_bytes:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._num_bytes)
            finally:
                os.close(descriptor)

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Free the space for the block, and reserve again what is left of it."""
        with self._giving_up:
            with suppress(OSError):
                os.truncate(self._path, 0)
            try:
                yield
            finally:
                self.take_room()

    def _held_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0
