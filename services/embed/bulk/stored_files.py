"""Files in an object store, named by URLs like those of the model store: `s3://bucket/photos?endpoint=https://…`."""

import io
from dataclasses import dataclass
from functools import cache
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from services.core.store.objects import SCHEMES, Entry, Objects

# What is fetched at once while only the names in a tar file are wanted.
READ_AHEAD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An object: the URL of what it is listed in, its key below that, its size, and the store's time of it."""

    url: str
    key: str
    num_bytes: int
    modified_ns: int

    def __str__(self) -> str:
        return f"{_objects(self.url).label}/{self.key}"

    def read(self, start: int, num_bytes: int) -> bytes:
        """Read this many bytes, fewer at its end. Raises StoreError.

        A whole object needs no range, which some servers do not know.
        """
        num_bytes = min(num_bytes, self.num_bytes - start)
        if num_bytes == self.num_bytes:
            return b"".join(_objects(self.url).read_chunks(self.key))
        return _objects(self.url).read_range(self.key, start, num_bytes) if num_bytes > 0 else b""

    def open(self, _mode: Literal["rb"]) -> io.BufferedReader:
        """Open it to be read here and there, with a read-ahead."""
        return io.BufferedReader(_Opened(self), READ_AHEAD_BYTES)


class _Opened(io.RawIOBase):
    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.num_bytes}[whence]
        self._place = begin + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(self._place, len(buffer))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def is_url(source: str) -> bool:
    """Whether a source is in an object store."""
    return source.partition("://")[0] in SCHEMES


def stored_tar(url: str) -> StoredFile | None:
    """Return the tar file that a URL names, None if it names none. Raises StoreError if it does not exist."""
    parts = urlsplit(url)
    folder, _, key = parts.path.rpartition("/")
    if not key.endswith(".tar"):
        return None
    parent = urlunsplit(parts._replace(path=folder))
    return _stored(parent, _objects(parent).entry(key))


def list_stored(url: str) -> list[StoredFile]:
    """List the objects below a URL, in the order of their keys. Raises StoreError."""
    entries = sorted(_objects(url).entries(None), key=lambda entry: entry.key)
    return [_stored(url, entry) for entry in entries]


def _stored(url: str, entry: Entry) -> StoredFile:
    modified_ns = int(entry.modified.timestamp() * 1_000_000) * 1000
    return StoredFile(url, entry.key, entry.size_bytes, modified_ns)


@cache
def _objects(url: str) -> Objects:
    """Open a store once in a process; what the URL leaves out is in the environment, such as its secrets."""
    return Objects(url, {})
