"""Image states on disk, within a budget: they save encoding an image again, and may be lost at any time.

SQLite keeps them without syncing, so that they survive a process killed at any point. After a power failure the file
may be damaged: a state whose checksum differs is dropped, and a file that SQLite can't read is begun again.
"""

import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

State = np.ndarray[Any, np.dtype[np.uint8]]

PAGE_BYTES = 4096
# Of a file without states, with what the first one adds to its bytes.
FIXED_PAGES = 8
# Pages cut off at a time, between which others may use the file.
STEP_PAGES = 1024
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class StateCache:
    """States by row. Thread-safe; calls after `close` find and store nothing."""

    def __init__(self, path: Path, *, record_bytes: int, max_bytes: int, identity: str) -> None:
        """Use `open`."""
        self.record_bytes = record_bytes
        self.max_bytes = max_bytes
        # whether the last state that was put found room
        self.has_room = False
        self._path = path
        self._identity = zlib.crc32(f"{identity} {record_bytes}".encode()) >> 1 | 1
        self._using = threading.Lock()
        self._rows: set[int] = set()
        self._connection: sqlite3.Connection | None = None

    @classmethod
    def open(cls, path: Path, *, record_bytes: int, max_bytes: int, identity: str) -> "StateCache":
        """Open the states at `path` of `identity` in records of this size; any other file, and one that is larger than
        the budget, is begun again.

        Stores nothing if the budget is smaller than a record or the disk is full. Raises OSError for an unusable path,
        ValueError for a record of no bytes.
        """
        if record_bytes < 1:
            raise ValueError(f"record_bytes is {record_bytes}: a state has at least one byte")
        cache = cls(path, record_bytes=record_bytes, max_bytes=max_bytes, identity=identity)
        if max_bytes < FIXED_PAGES * PAGE_BYTES + record_bytes:
            cache._remove()
        else:
            cache._begin()
        return cache

    def close(self) -> None:
        """Close the file once the current calls have finished."""
        with self._using:
            self._disconnect()

    @property
    def num_images(self) -> int:
        return len(self._rows)

    @property
    def num_bytes(self) -> int:
        """Size of the file, including places that are free at the moment."""
        return self._path.stat().st_size if self._connection is not None and self._path.exists() else 0

    def rows(self) -> list[int]:
        """List the rows that have a state, ascending."""
        with self._using:
            return sorted(self._rows)

    def has(self, rows: Sequence[int]) -> set[int]:
        """Return those of `rows` that have a state."""
        return {row for row in rows if row in self._rows}

    def put(self, rows: Sequence[int], states: Sequence[State]) -> None:
        """Store states (record_bytes,) uint8, as long as budget and disk allow it; existing ones are kept.

        Raises ValueError for a state of another size.
        """
        for row, state in zip(rows, states, strict=True):
            if state.shape != (self.record_bytes,):
                raise ValueError(f"a state of the shape {list(state.shape)} is no record of {self.record_bytes} B")
            data = np.ascontiguousarray(state).data
            with self._in_use() as connection:
                if connection is not None and row not in self._rows:
                    connection.execute("INSERT INTO states VALUES (?, ?, ?)", (row, self._checksum(row, data), data))
                    self._rows.add(row)
                    self.has_room = True

    def get(self, rows: Sequence[int]) -> dict[int, State]:
        """Return the states of those rows that have one. A damaged record is left out and deleted."""
        found = {}
        for row in rows:
            with self._in_use() as connection:
                if connection is None or row not in self._rows:
                    continue
                stored = connection.execute("SELECT checksum, data FROM states WHERE row = ?", (row,)).fetchone()
                if stored is None:
                    raise sqlite3.DatabaseError("the table lacks a row of the index")
                checksum, data = stored
                if len(data) == self.record_bytes and self._checksum(row, data) == checksum:
                    found[row] = np.frombuffer(bytearray(data), np.uint8)
                else:
                    self._drop(connection, row)
        return found

    def delete(self, row: int) -> None:
        """Delete a state; no error if there is none."""
        with self._in_use() as connection:
            if connection is not None and row in self._rows:
                self._drop(connection, row)

    def give_back(self) -> None:
        """Cut the places of deleted states off the file if at least half of it is free; others may use it meanwhile."""
        is_due = True
        while is_due:
            is_due = False
            with self._in_use() as connection:
                if connection is not None and self._pages(connection, "page_count") <= 2 * (
                    num_free := self._pages(connection, "freelist_count")
                ):
                    # as a script, because `execute` stops the pragma after its first page
                    connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")
                    is_due = 0 < self._pages(connection, "freelist_count") < num_free

    @contextmanager
    def _in_use(self) -> Iterator[sqlite3.Connection | None]:
        """Provide the file; None if there is none. One that turns out to be damaged is begun again."""
        with self._using:
            try:
                yield self._connection
            except sqlite3.DatabaseError as error:
                code = _code(error)
                if code not in _NO_ROOM:
                    self._disconnect()
                    with suppress(OSError):
                        self._begin(is_new=True)
                self.has_room = self.has_room and code not in _NO_ROOM

    def _drop(self, connection: sqlite3.Connection, row: int) -> None:
        self._rows.discard(row)
        connection.execute("DELETE FROM states WHERE row = ?", (row,))
        self.has_room = True

    def _begin(self, *, is_new: bool = False) -> None:
        """Open the file, or begin it again if it is damaged or not ours. Raises OSError if it can be neither."""
        if is_new:
            self._remove()
        try:
            self._connection = connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.execute("PRAGMA synchronous = OFF")
            max_pages = self.max_bytes // PAGE_BYTES
            if is_new:
                connection.execute("CREATE TABLE states (row INTEGER PRIMARY KEY, checksum INTEGER, data BLOB)")
                # small beside the states, so that rows are listed without reading these
                connection.execute("CREATE INDEX rows ON states (row)")
                connection.execute(f"PRAGMA user_version = {self._identity}")
            num_pages, identity = self._pages(connection, "page_count"), self._pages(connection, "user_version")
            if identity != self._identity or num_pages > max_pages:
                raise sqlite3.DatabaseError("it is of another model, or larger than the budget")
            connection.execute(f"PRAGMA max_page_count = {max_pages}")
            self._rows = {row for (row,) in connection.execute("SELECT row FROM states INDEXED BY rows")}
            self.has_room = True
        except sqlite3.DatabaseError as error:
            self._disconnect()
            if _code(error) in _DAMAGED and not is_new:
                self._begin(is_new=True)
            elif _code(error) not in _NO_ROOM:
                raise OSError(f"{self._path}: {error}") from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self.has_room = False
        if connection is not None:
            connection.close()

    def _remove(self) -> None:
        self._rows = set()
        for path in (self._path.with_name(f"{self._path.name}-journal"), self._path):
            path.unlink(missing_ok=True)

    def _checksum(self, row: int, data: bytes | memoryview) -> int:
        return zlib.crc32(data, zlib.crc32(f"{self._identity} {row}".encode()))

    @staticmethod
    def _pages(connection: sqlite3.Connection, name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _code(error: Exception) -> int:
    """Return SQLite's code of an error, without its details."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF
