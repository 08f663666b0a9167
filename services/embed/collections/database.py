"""One SQLite file used from any thread: a writer, a few readers that never wait for it, a disk that may be full.

What a transaction wrote is on disk when it ends. Freed space is used again; the file itself does not shrink.
"""

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock

from services.core.errors import Overloaded

# Beyond this many at once, readers wait for each other.
MAX_READERS = 4
BUSY_TIMEOUT_S = 30.0
# A log that one large transaction has made longer is cut back to this.
LOG_BYTES = 16 * 1024 * 1024
# Left free for what is small: deleting, and the list of conditions.
RESERVE_BYTES = 128 * 1024
# More than a nearly full disk still has between the pages of a file.
PROBE_BYTES = 64 * 1024

_FULL = (errno.ENOSPC, errno.EDQUOT)


class IncompatibleDatabase(RuntimeError):
    """The file has another schema than this code knows."""


class StorageFull(Overloaded):
    """The disk has no room; nothing was changed."""

    def __init__(self) -> None:
        super().__init__("The disk that holds the collections is full; nothing was changed.", code="storage_full")


class Database:
    """An open file; every method may be called from any thread."""

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self._path = path
        self._writer = writer
        self._writing = Lock()
        self._idle: list[sqlite3.Connection] = []
        self._num_readers = 0
        self._reading = Condition()
        self._is_open = True

    @classmethod
    def create(cls, path: Path, version: int, statements: Iterable[tuple[str, Sequence[object]]]) -> "Database":
        """A new file that SQL statements, each with what to bind to it, have filled: all of them or none.

        Raises FileExistsError, StorageFull.
        """
        path.touch(exist_ok=False)
        with storage_errors(path.parent):
            database = cls(path, _connect(path))
            try:
                database._writer.execute("PRAGMA journal_mode = WAL")
                with database.transaction() as connection:
                    for statement, bound in statements:
                        connection.execute(statement, bound)
                    connection.execute(f"PRAGMA user_version = {version}")
            except BaseException:
                database.close()
                raise
        return database

    @classmethod
    def open(cls, path: Path, version: int) -> "Database":
        """Raises FileNotFoundError, IncompatibleDatabase for another schema version, StorageFull."""
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with storage_errors(path.parent):
            writer = _connect(path)
            try:
                (found,) = writer.execute("PRAGMA user_version").fetchone()
            except BaseException:
                writer.close()
                raise
        if found == version:
            return cls(path, writer)
        writer.close()
        reason = "a newer Fovea wrote it" if found > version else "it was never finished"
        raise IncompatibleDatabase(f"{path} has schema version {found}, not {version}: {reason}.")

    def close(self) -> None:
        """Let running reads and writes end and close the file. Closing again does nothing."""
        with self._reading:
            self._is_open = False
            self._reading.notify_all()
            self._reading.wait_for(lambda: len(self._idle) == self._num_readers)
            while self._idle:
                self._idle.pop().close()
            self._num_readers = 0
        with self._writing:
            self._writer.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The one writer: what the block does is done as a whole, and on disk when it ends, or not at all.

        Raises StorageFull where the disk is; then nothing has changed.
        """
        with self._writing, storage_errors(self._path.parent):
            self._check_open()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def check_room(self, num_bytes: int) -> None:
        """Raise StorageFull, before anything is written, where the disk has no room for a transaction of this size.

        It needs it twice: what is in the log must get into the file, or the log never shrinks.
        """
        disk = os.statvfs(self._path.parent)
        log = self._path.with_name(f"{self._path.name}-wal")
        log_bytes = log.stat().st_size if log.exists() else 0
        if disk.f_bavail * disk.f_frsize < 2 * num_bytes + log_bytes + RESERVE_BYTES:
            raise StorageFull

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees what was committed before each of its statements, also while there are writes."""
        connection = self._take_reader()
        try:
            yield connection
        finally:
            with self._reading:
                self._idle.append(connection)
                self._reading.notify_all()

    def _take_reader(self) -> sqlite3.Connection:
        with self._reading:
            self._reading.wait_for(lambda: not self._is_open or self._idle or self._num_readers < MAX_READERS)
            self._check_open()
            if self._idle:
                return self._idle.pop()
            self._num_readers += 1
        try:
            with storage_errors(self._path.parent):
                return _connect(self._path)
        except BaseException:
            with self._reading:
                self._num_readers -= 1
                self._reading.notify_all()
            raise

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(f"{self._path} is closed.")

    def _roll_back(self) -> None:
        # SQLite has done so itself after some errors
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Raise StorageFull for whatever in the block fails because the disk of `folder` is full."""
    try:
        yield
    except sqlite3.OperationalError as error:
        is_about_disk = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL or (is_about_disk and _is_full(folder)):
            raise StorageFull from error
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull from error
        raise


def _is_full(folder: Path) -> bool:
    """SQLite reports some failed writes without their reason, so write something."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return error.errno in _FULL
    finally:
        probe.unlink(missing_ok=True)
    return False


def _connect(path: Path) -> sqlite3.Connection:
    """The threads take turns on a connection, so SQLite need not know which one it is."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        # deleted bytes are overwritten where that costs no extra writing
        connection.execute("PRAGMA secure_delete = FAST")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection
