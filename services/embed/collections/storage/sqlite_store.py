"""A collection's images, metadata and conditions in one SQLite file."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from services.core.durable_files import make_folder_durably
from services.embed.collections.storage.database import Database, DatabaseBeside, IncompatibleDatabase, StorageFull
from services.embed.collections.storage.filters import sqlite_condition
from services.embed.collections.storage.image_store import (
    Added,
    Asked,
    CollectionInfo,
    CollectionLimits,
    ImageStore,
    NewImage,
    Record,
    Rows,
    State,
    StoredCondition,
    StoredImage,
    check_conditions,
    checked,
)

T = TypeVar("T")

DATABASE_NAME = "images.sqlite"
PAGE_BYTES = 4096

SCHEMA_VERSION = 2
# Small columns come before large ones, so that reading them does not require reading the large ones.
SCHEMA = (
    "CREATE TABLE collection (name TEXT NOT NULL, model TEXT NOT NULL, created REAL NOT NULL, access TEXT NOT NULL)",
    # counting the images directly would read all of them
    "CREATE TABLE totals (num_images INTEGER NOT NULL, num_bytes INTEGER NOT NULL)",
    "INSERT INTO totals VALUES (0, 0)",
    """CREATE TABLE contents (
        content INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        num_bytes INTEGER NOT NULL,
        data BLOB NOT NULL
    )""",
    """CREATE TABLE images (
        row INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        content INTEGER NOT NULL REFERENCES contents,
        created REAL NOT NULL,
        metadata TEXT NOT NULL
    )""",
    "CREATE INDEX images_by_content ON images (content)",
    "CREATE TABLE conditions (text TEXT, is_pinned INTEGER NOT NULL, used REAL NOT NULL)",
)
# The statements that lead to each version from the one before it.
MIGRATIONS = {2: ("ALTER TABLE collection ADD COLUMN access TEXT NOT NULL DEFAULT 'open'",)}


class SqliteImageStore(ImageStore):
    """An ImageStore of one process. Every method may raise StorageFull."""

    IMAGES = "images JOIN contents USING (content)"
    ACCESS, TOTALS = "collection", "totals"
    AMONG = "IN (SELECT value FROM json_each(?))"

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._file = database
        with database.reading() as connection:
            self.info = _info(connection)

    @classmethod
    def create(cls, directory: Path, info: CollectionInfo) -> "SqliteImageStore":
        """Create an empty store in a folder, made as needed. Raises FileExistsError if there is one."""
        make_folder_durably(directory)
        statements = [
            *((statement, ()) for statement in SCHEMA),
            ("INSERT INTO collection VALUES (?, ?, ?, 'open')", (info.name, info.model, info.created)),
        ]
        return cls(Database.create(directory / DATABASE_NAME, SCHEMA_VERSION, statements))

    @classmethod
    def open(cls, directory: Path) -> "SqliteImageStore":
        """Raises FileNotFoundError, and IncompatibleDatabase if a newer version wrote it or tables or rows are
        missing."""
        database = Database.open(directory / DATABASE_NAME, SCHEMA_VERSION, MIGRATIONS)
        try:
            return cls(database)
        except BaseException:
            database.close()
            raise

    @classmethod
    def beside(cls, directory: Path, *, is_held: bool) -> "SqliteImageStore":
        """Open a store that another process may have open, to be read; with `is_held`, as of this moment.

        Raises IncompatibleDatabase for another version.
        """
        return cls(DatabaseBeside(directory / DATABASE_NAME, SCHEMA_VERSION, is_held=is_held))

    def close(self) -> None:
        self._file.close()

    def add(self, images: Sequence[NewImage], limits: CollectionLimits, *, fill: bool = False) -> Added:
        return self._with_room(partial(self._add, checked(images, limits), limits, fill=fill))

    def patch(self, image_id: str, changes: Mapping[str, Any], limits: CollectionLimits) -> StoredImage:
        return self._with_room(partial(super().patch, image_id, changes, limits))

    def has_much_to_give_back(self) -> bool:
        return self._file.has_much_to_give_back()

    def give_back(self) -> int:
        return self._file.give_back()

    def data(self, image_id: str) -> bytes:
        return bytes(self._find("data", image_id)[0])

    def data_by_rows(self, rows: Iterable[int]) -> dict[int, bytes]:
        return dict(self._find_rows("row, data", rows))

    def rows_matching(self, filter: Mapping[str, Any]) -> Rows:
        condition, bound = sqlite_condition(filter)
        return self._rows(f"{condition} ORDER BY row", bound)

    def conditions(self) -> list[StoredCondition]:
        with self._file.reading() as connection:
            found = connection.execute("SELECT text, is_pinned, used FROM conditions ORDER BY rowid")
            return [StoredCondition(text, bool(is_pinned), used) for text, is_pinned, used in found]

    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        now = time.time()
        with self._file.transaction() as connection:
            if is_pinned:
                check_conditions(self.info.name, self._state(connection).access)
            changed = connection.execute(
                "UPDATE conditions SET is_pinned = max(is_pinned, ?), used = ? WHERE text IS ?", (is_pinned, now, text)
            )
            if not changed.rowcount:
                connection.execute("INSERT INTO conditions VALUES (?, ?, ?)", (text, is_pinned, now))

    def drop_condition(self, text: str) -> None:
        with self._file.transaction() as connection:
            connection.execute("DELETE FROM conditions WHERE text IS ?", (text,))

    def _add(self, asked: Asked, limits: CollectionLimits, *, fill: bool) -> Added:
        with self._file.transaction() as connection:
            new = self._new(connection, asked, limits, self._state(connection), fill=fill)
            if not new.records:
                return new.added(asked, [])
            contents = {image.digest: image.data for image, _ in asked if image.digest in new.lacking}
            self._file.check_room(_bytes_on_disk(new.records, contents))
            return new.added(asked, self._insert(connection, new.records, contents))

    def _insert(
        self, connection: sqlite3.Connection, records: Sequence[Record], contents: Mapping[str, bytes]
    ) -> list[int]:
        """Store images whose ids are free, and their bytes, by digest, if not stored yet; return their rows."""
        found = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'images'")
        (last,) = found.fetchone()
        rows = list(range(last + 1, last + 1 + len(records)))
        now = time.time()
        connection.executemany(
            "INSERT INTO contents (digest, num_bytes, data) VALUES (?, ?, ?)",
            ((digest, len(data), data) for digest, data in contents.items()),
        )
        connection.executemany(
            "INSERT INTO images (row, id, content, created, metadata)"
            " SELECT ?, ?, content, ?, ? FROM contents WHERE digest = ?",
            (
                (row, one.id, now if one.created is None else one.created, one.metadata, one.digest)
                for row, one in zip(rows, records, strict=True)
            ),
        )
        self._count(connection, len(records), sum(map(len, contents.values())))
        return rows

    def _write_metadata(self, connection: sqlite3.Connection, row: int, text: str) -> None:
        self._file.check_room(len(text.encode()) + PAGE_BYTES)
        connection.execute("UPDATE images SET metadata = ? WHERE row = ?", (text, row))

    def _with_room(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except StorageFull:
            # deleted images may have left space in the file's log
            if not self._file.give_back():
                raise
            return write()

    def _state(self, connection: sqlite3.Connection, *, is_locking: bool = True) -> State:
        return State(*connection.execute("SELECT num_images, num_bytes, access FROM totals, collection").fetchone())

    def _among(self, values: Iterable[object]) -> str:
        return json.dumps(list(values))

    def _rows(self, condition: str, bound: Sequence[object]) -> Rows:
        with self._file.reading() as connection:
            found = connection.execute(f"SELECT row FROM images WHERE {condition}", bound)
            return np.fromiter((row for (row,) in found), np.int64)


def _info(connection: sqlite3.Connection) -> CollectionInfo:
    """Read the info. Raises IncompatibleDatabase if a table or a required row is missing."""
    try:
        info = connection.execute("SELECT name, model, created FROM collection").fetchone()
        total = connection.execute("SELECT num_images, num_bytes FROM totals").fetchone()
        for table in ("images", "contents", "conditions"):
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise IncompatibleDatabase(f"The database is not a collection's: {error}.") from error
    if info is None or total is None:
        raise IncompatibleDatabase("The database has no description of the collection.")
    return CollectionInfo(*info)


def _bytes_on_disk(records: Iterable[Record], contents: Mapping[str, bytes]) -> int:
    """Estimate the space that images take in the file, including partly filled pages."""
    lengths = [*map(len, contents.values()), *(len(record.metadata.encode()) for record in records)]
    return sum(lengths) + PAGE_BYTES * len(lengths)
