"""One SQLite file used from any thread, with one writer, a few readers that never wait for it, and full disks handled.

A transaction is on disk when it ends. Freed space is reused, and returned to the disk on demand.
"""

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Lock, Semaphore

from services.core.errors import Overloaded

# With more readers than this at once, they wait for each other.
MAX_READERS = 4
BUSY_TIMEOUT_S = 30.0
# A log that a large transaction has enlarged is truncated to this size.
LOG_BYTES = 16 * 1024 * 1024
# Kept free for small writes: deletions, and the list of conditions.
RESERVE_BYTES = 128 * 1024
# More than can be left between the pages of a file on a nearly full disk.
PROBE_BYTES = 64 * 1024
# Pages cut off at a time. Each adds about two pages to the log, for which the disk must have room.
MIN_STEP_PAGES, MAX_STEP_PAGES = 8, 1024
# Free pages are kept for later writes unless they exceed this number and this share of the file.
MIN_CUT_PAGES = 64
CUT_SHARE = 1 / 8

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILURES = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PROTOCOL,
)
# Deleting an image writes some tens of pages before it frees any, and opening a database a few more.
BALLAST_BYTES = 512 * 1024


class IncompatibleDatabase(RuntimeError):
    """The schema of the file is not known to this code."""


class StorageFull(Overloaded):
    """The disk is full; nothing was changed."""

    def __init__(self) -> None:
        super().__init__("The disk of the collections is full; nothing was changed.", code="storage_full")


class DatabaseUnreachable(Overloaded):
    """The database of shared collections can't be reached or used; `reason` is for the log and the operator."""

    def __init__(self, reason: str) -> None:
        super().__init__("The database of the collections currently can't be reached.", code="collections_not_open")
        self.reason = reason


class DatabaseFailed(Overloaded):
    """The file is damaged, missing or unreadable; `reason` is for the log.

    `is_partial` if only part of it is damaged: the rest remains usable.
    """

    def __init__(self, reason: str, *, is_partial: bool = False) -> None:
        super().__init__("The data currently can't be read or changed.", code="collection_damaged")
        self.reason = reason
        self.is_partial = is_partial


class Database:
    """An open file; every method may be called from any thread.

    Methods that read or write may raise DatabaseFailed. Writes to a file that has been removed or replaced would be
    lost, so this is checked before each read and transaction.
    """

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._writer = writer
        # the log is created by the first access to the file
        with storage_errors(path.parent):
            writer.execute("PRAGMA user_version").fetchone()
        self._files = self._inodes()
        self._writing = Lock()
        self._idle: list[sqlite3.Connection] = []
        self._readers = Semaphore(MAX_READERS)
        self._is_open = True

    @classmethod
    def create(cls, path: Path, version: int, statements: Iterable[tuple[str, Sequence[object]]]) -> "Database":
        """Create a file by SQL statements, each with its arguments, all of them or none.

        Raises FileExistsError, StorageFull.
        """
        path.touch(exist_ok=False)
        with storage_errors(path.parent), ExitStack() as until_made:
            writer = until_made.enter_context(closing(_connect(path)))
            writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("BEGIN IMMEDIATE")
            with writer:
                for statement, bound in statements:
                    writer.execute(statement, bound)
                writer.execute(f"PRAGMA user_version = {version}")
            until_made.pop_all()
            return cls(path, writer)

    @classmethod
    def open(cls, path: Path, version: int, migrations: Mapping[int, Sequence[str]] | None = None) -> "Database":
        """Open a file, brought up to the schema version by the statements that lead to each version after its own.

        Raises FileNotFoundError, IncompatibleDatabase for a newer version, or one that no statements lead on from,
        StorageFull.
        """
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with storage_errors(path.parent), ExitStack() as until_open:
            writer = until_open.enter_context(closing(_connect(path)))
            if (found := _migrated(writer, version, migrations or {})) != version:
                reason = "it was written by a newer version of Fovea" if found > version else "it was never finished"
                raise IncompatibleDatabase(f"{path} has schema version {found}, not {version}: {reason}.")
            database = cls(path, writer)
            until_open.pop_all()
            return database

    def close(self) -> None:
        """Let running reads and writes finish and close the file. Closing again has no effect."""
        self._is_open = False
        with ExitStack() as all_readers:
            for _ in range(MAX_READERS):
                all_readers.enter_context(self._readers)
            while self._idle:
                self._idle.pop().close()
        with self._writing:
            self._writer.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as a transaction of the one writer: its changes are on disk at its end, or none are made.

        Raises StorageFull if the disk is full; then nothing has changed.
        """
        with self._writing, storage_errors(self._path.parent):
            self._check_open()
            self._check_in_place()
            if free_bytes(self._path.parent) < 2 * RESERVE_BYTES:
                # if even that needs space, the log may still have enough
                with suppress(sqlite3.OperationalError):
                    self._cut_log()
            self._writer.execute("BEGIN IMMEDIATE")
            with self._writer:
                yield self._writer

    def check_room(self, num_bytes: int) -> None:
        """Raise StorageFull before any write if the disk has no room for the current transaction of this size.

        It needs the room twice, in the log and, unless free pages suffice, in the file; and the current content of the
        log must also fit into the file, or the log never shrinks.
        """
        page_bytes, num_pages, num_free = (
            self._writer.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
        growth = max(0, num_bytes - num_free * page_bytes)
        in_log_alone = max(0, num_pages * page_bytes - self._path.stat().st_size)
        if free_bytes(self._path.parent) < num_bytes + growth + in_log_alone + RESERVE_BYTES:
            raise StorageFull

    def has_much_to_give_back(self) -> bool:
        """Tell whether enough pages are free to return them to the disk."""
        with self._writing, storage_errors(self._path.parent):
            self._check_open()
            num_pages, num_free = (
                self._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
            )
        return bool(num_free >= max(MIN_CUT_PAGES, CUT_SHARE * num_pages))

    def give_back(self) -> int:
        """Cut the free pages off the file, in small steps between which others can write, and empty the log.

        Returns the number of bytes freed on the disk. Raises StorageFull if the disk has no room for even a small step.
        """
        before = self._num_bytes()
        while True:
            with self._writing, storage_errors(self._path.parent):
                self._check_open()
                self._check_in_place()
                if not self._cut_off_some():
                    return before - self._num_bytes()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Provide a connection that sees what was committed before each of its statements, also during writes."""
        with self._readers, storage_errors(self._path.parent):
            self._check_open()
            connection = self._idle.pop() if self._idle else _connect(self._path)
            try:
                self._check_in_place()
                yield connection
            finally:
                self._idle.append(connection)

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(f"{self._path} is closed.")

    def _check_in_place(self) -> None:
        if (found := self._inodes()) != self._files:
            what = "gone" if None in found else "not the one that was opened"
            raise DatabaseFailed(f"{self._path} or its log is {what}")

    def _inodes(self) -> tuple[int | None, int | None]:
        """Return the inodes of the file and its log, None for one that is missing or inaccessible."""
        return _inode(self._path), _inode(self._log)

    def _num_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._path, self._log) if path.exists())

    def _cut_off_some(self) -> bool:
        """Cut off free pages in one step; return False if nothing is left to cut off."""
        page_bytes, before = (
            self._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count")
        )
        room = free_bytes(self._path.parent) // (3 * page_bytes)
        step = min(max(room, MIN_STEP_PAGES), MAX_STEP_PAGES)
        # as a script, because `execute` stops the pragma after its first page
        self._writer.executescript(f"PRAGMA incremental_vacuum({step})")
        self._cut_log()
        (after,) = self._writer.execute("PRAGMA freelist_count").fetchone()
        return bool(0 < after < before)

    def _cut_log(self) -> None:
        """Move the content of the log into the file and truncate it, unless it is being read at the moment."""
        self._writer.execute("PRAGMA busy_timeout = 0")
        try:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_TIMEOUT_S)}")


class DatabaseBeside(Database):
    """A file that another process may have open, to be read by one thread; with `is_held`, as of the first read.

    Raises DatabaseFailed, and IncompatibleDatabase for another version.
    """

    def __init__(self, path: Path, version: int, *, is_held: bool) -> None:
        self._path = path
        with storage_errors(path.parent):
            self._connection = _connect(path)
            self._connection.execute("PRAGMA query_only = ON")
            (found,) = self._connection.execute("PRAGMA user_version").fetchone()
            if found != version:
                self.close()
                raise IncompatibleDatabase(
                    f"{path} has schema version {found}, not {version}: start the service of this version once."
                )
            if is_held:
                self._connection.execute("BEGIN")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with storage_errors(self._path.parent):
            yield self._connection

    def close(self) -> None:
        self._connection.close()


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Raise StorageFull for failures in the block caused by a full disk of `folder`, DatabaseFailed for those caused by
    the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # errors of the sqlite3 module itself have no code
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        is_about_disk = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        if code == sqlite3.SQLITE_FULL or (is_about_disk and _is_full(folder)):
            raise StorageFull from error
        if code in _FAILURES:
            raise DatabaseFailed(f"{folder}: {error}", is_partial=code == sqlite3.SQLITE_CORRUPT) from error
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull from error
        raise


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder's disk. Raises OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _migrated(writer: sqlite3.Connection, version: int, migrations: Mapping[int, Sequence[str]]) -> int:
    """Apply the statements that lead to `version`, all of them or none; return the version that the file has then."""
    (found,) = writer.execute("PRAGMA user_version").fetchone()
    steps = range(found + 1, version + 1)
    if not steps or not all(step in migrations for step in steps):
        return int(found)
    writer.execute("BEGIN IMMEDIATE")
    with writer:
        for step in steps:
            for statement in migrations[step]:
                writer.execute(statement)
        writer.execute(f"PRAGMA user_version = {version}")
    return version


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _is_full(folder: Path) -> bool:
    """Test by writing whether the disk is full, because SQLite reports some failed writes without their reason."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return error.errno in _FULL
    finally:
        probe.unlink(missing_ok=True)
    return False


def _connect(path: Path) -> sqlite3.Connection:
    """Connect without SQLite's check for threads, which use a connection one at a time."""
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
        # deleted bytes are overwritten if that needs no extra writing
        connection.execute("PRAGMA secure_delete = FAST")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


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
            held_bytes = self._path.stat().st_size if self._path.exists() else 0
            if held_bytes >= self._num_bytes or free_bytes(self._path.parent) < self._num_bytes:
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
