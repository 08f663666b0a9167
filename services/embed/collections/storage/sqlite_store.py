"""A collection's images, metadata and conditions in one SQLite file."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from services.core.durable_files import make_folder_durably
from services.embed.collections.storage.database import Database, DatabaseBeside, IncompatibleDatabase, StorageFull
from services.embed.collections.storage.filters import sqlite_condition
from services.embed.collections.storage.image_store import (
    IMAGE_COLUMNS,
    Access,
    Added,
    CollectionInfo,
    CollectionLimits,
    ImageStore,
    NewImage,
    Record,
    Rows,
    StoredCondition,
    StoredImage,
    check_access,
    check_adds,
    check_changes,
    check_conditions,
    check_limits,
    checked_metadata,
    new_records,
    no_image,
    patched_metadata,
    stored_image,
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

    def __init__(self, database: Database) -> None:
        self._database = database
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
        self._database.close()

    def add(self, images: Sequence[NewImage], limits: CollectionLimits, *, fill: bool = False) -> Added:
        asked = [(image, checked_metadata(image, limits)) for image in images]
        return self._with_room(lambda: self._add(asked, limits, fill=fill))

    def delete(self, image_id: str, *, fill: bool = False) -> int:
        with self._database.transaction() as connection:
            check_changes(self.info.name, _access(connection), fill=fill)
            row, content, num_bytes = _found(connection, "row, content, num_bytes", image_id)
            connection.execute("DELETE FROM images WHERE row = ?", (row,))
            if connection.execute("SELECT 1 FROM images WHERE content = ?", (content,)).fetchone():
                num_bytes = 0
            else:
                connection.execute("DELETE FROM contents WHERE content = ?", (content,))
            _count(connection, -1, -num_bytes)
            return int(row)

    def patch(self, image_id: str, changes: Mapping[str, Any], limits: CollectionLimits) -> StoredImage:
        return self._with_room(lambda: self._patch(image_id, changes, limits))

    def has_much_to_give_back(self) -> bool:
        return self._database.has_much_to_give_back()

    def give_back(self) -> int:
        return self._database.give_back()

    def data(self, image_id: str) -> bytes:
        return bytes(self._find("data", image_id)[0])

    def data_by_rows(self, rows: Iterable[int]) -> dict[int, bytes]:
        return dict(self._find_rows("row, data", rows))

    def rows(self, after: int = 0, limit: int | None = None) -> Rows:
        return self._rows("row > ? ORDER BY row LIMIT ?", (after, -1 if limit is None else limit))

    def rows_matching(self, filter: Mapping[str, Any]) -> Rows:
        condition, bound = sqlite_condition(filter)
        return self._rows(f"{condition} ORDER BY row", bound)

    def size(self) -> tuple[int, int]:
        with self._database.reading() as connection:
            return _totals(connection)

    def conditions(self) -> list[StoredCondition]:
        with self._database.reading() as connection:
            found = connection.execute("SELECT text, is_pinned, used FROM conditions ORDER BY rowid")
            return [StoredCondition(text, bool(is_pinned), used) for text, is_pinned, used in found]

    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        now = time.time()
        with self._database.transaction() as connection:
            if is_pinned:
                check_conditions(self.info.name, _access(connection))
            changed = connection.execute(
                "UPDATE conditions SET is_pinned = max(is_pinned, ?), used = ? WHERE text IS ?", (is_pinned, now, text)
            )
            if not changed.rowcount:
                connection.execute("INSERT INTO conditions VALUES (?, ?, ?)", (text, is_pinned, now))

    def drop_condition(self, text: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM conditions WHERE text IS ?", (text,))

    def access(self) -> Access:
        with self._database.reading() as connection:
            return _access(connection)

    def set_access(self, access: Access) -> None:
        with self._database.transaction() as connection:
            if _totals(connection)[0]:
                check_access(self.info.name, _access(connection), access)
            connection.execute("UPDATE collection SET access = ?", (access,))

    def _add(self, asked: Sequence[tuple[NewImage, str | None]], limits: CollectionLimits, *, fill: bool) -> Added:
        ids = [image.id for image, _ in asked]
        with self._database.transaction() as connection:
            known = connection.execute(
                "SELECT id, digest, metadata FROM (SELECT value FROM json_each(?)) CROSS JOIN images ON id = value"
                " JOIN contents USING (content)",
                (json.dumps(ids),),
            )
            new = new_records(asked, {record[0]: Record(*record) for record in known})
            contents = {image.digest: image.data for image, _ in asked}
            stored = connection.execute(
                "SELECT digest FROM (SELECT value FROM json_each(?)) CROSS JOIN contents ON digest = value",
                (json.dumps(list(contents)),),
            ).fetchall()
            for (digest,) in stored:
                del contents[digest]
            check_adds(self.info.name, _access(connection), len(new), fill=fill)
            if new:
                num_images, num_bytes = _totals(connection)
                check_limits(num_images + len(new), num_bytes + sum(map(len, contents.values())), limits)
                self._database.check_room(_bytes_on_disk(new, contents))
            rows = _insert(connection, new, contents) if new else []
        return Added(len(new), len(ids) - len(new), ids, rows)

    def _patch(self, image_id: str, changes: Mapping[str, Any], limits: CollectionLimits) -> StoredImage:
        with self._database.transaction() as connection:
            check_changes(self.info.name, _access(connection), fill=False)
            image = stored_image(_found(connection, IMAGE_COLUMNS, image_id))
            text = patched_metadata(image, changes, limits)
            self._database.check_room(len(text.encode()) + PAGE_BYTES)
            connection.execute("UPDATE images SET metadata = ? WHERE row = ?", (text, image.row))
            return replace(image, metadata=json.loads(text))

    def _with_room(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except StorageFull:
            # deleted images may have left space in the file's log
            if not self._database.give_back():
                raise
            return write()

    def _find(self, columns: str, image_id: str) -> tuple[Any, ...]:
        with self._database.reading() as connection:
            return _found(connection, columns, image_id)

    def _find_rows(self, columns: str, rows: Iterable[int]) -> list[tuple[Any, ...]]:
        with self._database.reading() as connection:
            return connection.execute(
                f"SELECT {columns} FROM (SELECT value FROM json_each(?)) CROSS JOIN images ON row = value"
                " JOIN contents USING (content)",
                (json.dumps([int(row) for row in rows]),),
            ).fetchall()

    def _listed(self, after: str, limit: int) -> list[tuple[Any, ...]]:
        with self._database.reading() as connection:
            return connection.execute(
                f"SELECT {IMAGE_COLUMNS} FROM images JOIN contents USING (content) WHERE id > ? ORDER BY id LIMIT ?",
                (after, limit),
            ).fetchall()

    def _rows(self, condition: str, bound: Sequence[object]) -> Rows:
        with self._database.reading() as connection:
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


def _access(connection: sqlite3.Connection) -> Access:
    access: Access = connection.execute("SELECT access FROM collection").fetchone()[0]
    return access


def _totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of images and of their bytes, shared ones counted once."""
    num_images, num_bytes = connection.execute("SELECT num_images, num_bytes FROM totals").fetchone()
    return num_images, num_bytes


def _found(connection: sqlite3.Connection, columns: str, image_id: str) -> tuple[Any, ...]:
    try:
        found: tuple[Any, ...] | None = connection.execute(
            f"SELECT {columns} FROM images JOIN contents USING (content) WHERE id = ?", (image_id,)
        ).fetchone()
    except UnicodeEncodeError:  # an unpaired surrogate, which no id contains
        found = None
    if found is None:
        raise no_image(image_id)
    return found


def _insert(connection: sqlite3.Connection, records: Sequence[Record], contents: Mapping[str, bytes]) -> list[int]:
    """Store images whose ids are free, and their bytes, by digest, if not stored yet; return their rows."""
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'images'").fetchone()
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
    _count(connection, len(records), sum(map(len, contents.values())))
    return rows


def _count(connection: sqlite3.Connection, num_images: int, num_bytes: int) -> None:
    connection.execute(
        "UPDATE totals SET num_images = num_images + ?, num_bytes = num_bytes + ?", (num_images, num_bytes)
    )
