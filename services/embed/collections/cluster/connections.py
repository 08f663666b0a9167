"""Connections to PostgreSQL: its schema brought up to date, and its errors as those of the service."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Self

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import (
    DiskFull,
    FeatureNotSupported,
    InsufficientPrivilege,
    InvalidSchemaName,
    ReadOnlySqlTransaction,
    UndefinedFile,
)
from psycopg.pq import Conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from services.core.printable import first_line
from services.embed.collections.storage.database import DatabaseUnreachable, IncompatibleDatabase, StorageFull

MAX_CONNECTIONS = 8
# Longest wait for a connection: shorter than a request's deadline, so that the answer says what is missing. While there
# is none it is shorter, so that requests do not hold up others that need no database.
CONNECT_TIMEOUT_S = 5.0
DOWN_TIMEOUT_S = 0.5
# A connection that could not be made is tried again so long, and then when the next one is needed.
RECONNECT_S = 2.0
# A server that does not answer at all is noticed after about half a minute.
LIVENESS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
# Any number, the same in all replicas.
MIGRATION_LOCK = 0x0F0FEA
# The first version of pgvector that goes on searching until a filter has left enough.
PGVECTOR = (0, 8)
MIGRATION = re.compile(r"(\d{4})_\w+\.sql")

UNREADABLE = "can't be read; special characters of a password are written as %XX, such as %2F for a slash"

Connection = psycopg.Connection[tuple[Any, ...]]

# Raised without a server, and by one that lets this user do nothing, or only read.
UNUSABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    ReadOnlySqlTransaction,
    InsufficientPrivilege,
    InvalidSchemaName,
)

# The pool tells of each attempt to connect; that PostgreSQL is gone is logged once where collections are followed.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class CatalogUnreachable(DatabaseUnreachable):
    """PostgreSQL can't be reached or used. Whether the last change was made is unknown, so it is to be repeated."""


class Connections:
    """A thread-safe pool. Methods raise CatalogUnreachable, StorageFull, and RuntimeError once it is closed."""

    def __init__(self, url: str) -> None:
        self._refusal = ""
        self._is_down = False
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            connection_class=_noting(self._note),
            min_size=1,
            max_size=MAX_CONNECTIONS,
            reconnect_timeout=RECONNECT_S,
            kwargs={"autocommit": True, **LIVENESS},
            # a connection that the server has closed meanwhile is replaced before it is used
            check=ConnectionPool.check_connection,
            open=True,
        )

    @classmethod
    def open(cls, url: str, *, is_migrating: bool = True) -> "Connections":
        """Connect and apply the migrations that the database lacks.

        Raises IncompatibleDatabase if a newer version of Fovea has used it, if its encoding is not UTF-8, if it lacks
        pgvector, or migrations that are not to be applied.
        """
        try:
            place_of(url)
        except ValueError as error:
            raise CatalogUnreachable(f"The URL {error}") from None
        connections = cls(url)
        try:
            with connections.reading() as connection:
                if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
                    raise IncompatibleDatabase(f"The database's encoding is {encoding}, not UTF8.")
                _migrate(connection, is_migrating=is_migrating)
        except BaseException:
            connections.close()
            raise
        return connections

    def close(self) -> None:
        """Close the connections. Closing again has no effect."""
        self._pool.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Provide a connection on which each statement is a transaction of its own."""
        with self._translated():
            try:
                with self._pool.connection(DOWN_TIMEOUT_S if self._is_down else CONNECT_TIMEOUT_S) as connection:
                    self._is_down = False
                    yield connection
            except PoolTimeout:
                self._is_down = True
                raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the block as a transaction: its changes are durable at its end, or none are made."""
        with self.reading() as connection, connection.transaction():
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator["Connections"]:
        """Provide one connection, for one thread, that sees the database as of the first statement of the block."""
        with self.reading() as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            try:
                with connection.transaction():
                    yield _Snapshot(connection)
            finally:
                connection.isolation_level = connection.read_only = None

    def _note(self, error: psycopg.Error | None) -> None:
        """Keep why the last connection could not be made, as the pool only tells that there is none."""
        self._refusal = "" if error is None else first_line(error)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except PoolClosed as error:
            raise RuntimeError("The collections are closed.") from error
        except DiskFull as error:
            raise StorageFull from error
        except PoolTimeout as error:
            raise CatalogUnreachable(self._refusal or str(error)) from error
        except UNUSABLE as error:
            raise CatalogUnreachable(first_line(error)) from error


class _Snapshot(Connections):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._translated():
            yield self._connection


def place_of(url: str) -> dict[str, str]:
    """Return the host with its port, the database and the user of a URL, as PostgreSQL's own programs complete it.

    Raises ValueError, which does not tell any of it, for a URL in which a part of the password may stand elsewhere.
    """
    try:
        options = [*Conninfo.get_defaults(), *Conninfo.parse(url.encode())]
    except psycopg.Error:
        raise ValueError(UNREADABLE) from None
    found = {option.keyword.decode(): option.val.decode() for option in options if option.val}
    hosts = (found.get("host") or found.get("hostaddr") or "localhost").split(",")
    ports = found.get("port", "5432").split(",")
    user = found.get("user", "")
    database = found.get("dbname", user)
    if not all(port.isdecimal() for port in ports) or any("@" in name for name in (*hosts, database)):
        raise ValueError(UNREADABLE)
    places = zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False)
    return {"host": ",".join(f"{host}:{port}" for host, port in places), "database": database, "user": user}


@contextmanager
def alone(connections: Connections, *lock: int) -> Iterator[bool]:
    """Keep other processes from the block under a lock of one or two numbers; False if one of them is in it."""
    given = ", ".join(["%s"] * len(lock))
    with connections.reading() as connection:
        (is_alone,) = connection.execute(f"SELECT pg_try_advisory_lock({given})", lock).fetchone() or (False,)
        try:
            yield bool(is_alone)
        finally:
            if is_alone and not connection.broken:
                connection.execute(f"SELECT pg_advisory_unlock({given})", lock)


def _migrate(connection: Connection, *, is_migrating: bool) -> None:
    """Apply the numbered migrations in order, each once, also if several replicas start together."""
    found = {name: MIGRATION.fullmatch(name) for name in sorted(path.name for path in _migrations().iterdir())}
    numbered = {int(match[1]): name for name, match in found.items() if match}
    connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
    try:
        if is_migrating:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (version integer PRIMARY KEY, applied timestamptz)"
            )
        applied = _applied(connection)
        if newer := applied - numbered.keys():
            raise IncompatibleDatabase(
                f"The database has schema version {max(newer)}, not {max(numbered)}: it was written by a newer version "
                "of Fovea."
            )
        if not is_migrating and (lacking := numbered.keys() - applied):
            raise IncompatibleDatabase(
                f"The database lacks schema version {min(lacking)}: start a service of this version first."
            )
        _require_pgvector(connection, is_migrating=is_migrating)
        for version in sorted(numbered.keys() - applied):
            with connection.transaction():
                connection.execute((_migrations() / numbered[version]).read_text())
                connection.execute("INSERT INTO migrations VALUES (%s, now())", (version,))
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_LOCK,))


def _require_pgvector(connection: Connection, *, is_migrating: bool) -> None:
    """Create the extension where it is missing. Raises IncompatibleDatabase if it can't be, or is too old."""
    installed = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    found, least = connection.execute(installed).fetchone(), ".".join(map(str, PGVECTOR))
    if found is None and is_migrating:
        try:
            connection.execute("CREATE EXTENSION vector")
        except (FeatureNotSupported, UndefinedFile, InsufficientPrivilege) as error:
            raise IncompatibleDatabase(
                f"The database lacks pgvector, and it can't be created here: {first_line(error)}. Install pgvector "
                f"{least} or later on its server, and let an administrator run CREATE EXTENSION vector in it."
            ) from error
        found = connection.execute(installed).fetchone()
    version = str(found[0]) if found is not None else "none"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < PGVECTOR:
        raise IncompatibleDatabase(
            f"The database's pgvector is {version}, and {least} or later is needed: update it on the server, and let "
            "an administrator run ALTER EXTENSION vector UPDATE in it."
        )


def _applied(connection: Connection) -> set[int]:
    if connection.execute("SELECT to_regclass('migrations')").fetchone() == (None,):
        return set()
    return {version for (version,) in connection.execute("SELECT version FROM migrations")}


def _migrations() -> Any:
    return files("services.embed.collections.cluster") / "migrations"


def _noting(note: Callable[[psycopg.Error | None], None]) -> type[Connection]:
    """Make the class of connections that tell `note` why one could not be made, or that one was."""

    class Noting(psycopg.Connection[tuple[Any, ...]]):
        @classmethod
        def connect(cls, *args: Any, **options: Any) -> Self:
            try:
                connection = super().connect(*args, **options)
            except psycopg.Error as error:
                note(error)
                raise
            note(None)
            return connection

    return Noting
