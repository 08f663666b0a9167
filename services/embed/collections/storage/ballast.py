"""Room that is kept back on the disk of the collections, so that a full one still takes deletions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from services.embed.collections.storage.database import free_bytes

# Deleting an image writes some tens of pages before it frees any, and opening a database a few more.
BALLAST_BYTES = 512 * 1024


class Ballast:
    """A file of no content; it may be missing, and is made again where there is room. Works from any thread."""

    def __init__(self, path: Path, num_bytes: int = BALLAST_BYTES) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._giving_up = Lock()

    def take_room(self) -> None:
        """Keep the room back, if there is as much; else a later call may."""
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
        """Let what the block does have the room; what it leaves of it is kept back again."""
        with self._giving_up:
            with suppress(OSError):
                os.truncate(self._path, 0)
            try:
                yield
            finally:
                self.take_room()

    def _held_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0
