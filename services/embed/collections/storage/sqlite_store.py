"""A collection's images, metadata and conditions in one SQLite file."""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.core.durable_files import make_folder_durably
from services.embed.collections.storage.database import Database, IncompatibleDatabase, StorageFull
from services.embed.collections.storage.image_store import (
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
    stored_image,
)
from services.embed.collections.storage.image_tables import (
    MIGRATIONS,
    SCHEMA,
    SCHEMA_VERSION,
    find,
    find_rows,
    insert,
    remove,
    stored_access,
    stored_digests,
    taken_ids,
    totals,
)
from services.embed.collections.storage.metadata import filter_condition

DATABASE_NAME = "images.sqlite"
PAGE_BYTES = 4096

IMAGE_COLUMNS = "row, id, digest, num_bytes, metadata, created"


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

    def close(self) -> None:
        self._database.close()

    def add(self, images: Sequence[NewImage], limits: CollectionLimits, *, fill: bool = False) -> Added:
        asked = [(image, checked_metadata(image, limits)) for image in images]
        try:
            return self._add(asked, limits, fill=fill)
        except StorageFull:
            # deleted images may have left space in the file's log
            if not self._database.give_back():
                raise
            return self._add(asked, limits, fill=fill)

    def _add(self, asked: Sequence[tuple[NewImage, str | None]], limits: CollectionLimits, *, fill: bool) -> Added:
        images = [image for image, _ in asked]
        with self._database.transaction() as connection:
            new = new_records(asked, taken_ids(connection, [image.id for image in images]))
            contents = {image.digest: image.data for image in images}
            for digest in stored_digests(connection, contents):
                del contents[digest]
            check_adds(self.info.name, stored_access(connection), len(new), fill=fill)
            if new:
                num_images, num_bytes = totals(connection)
                check_limits(num_images + len(new), num_bytes + sum(map(len, contents.values())), limits)
                self._database.check_room(_bytes_on_disk(new, contents))
            rows = insert(connection, new, contents) if new else []
        return Added(len(new), len(images) - len(new), [image.id for image in images], rows)

    def delete(self, image_id: str, *, fill: bool = False) -> int:
        with self._database.transaction() as connection:
            check_changes(self.info.name, stored_access(connection), fill=fill)
            return remove(connection, image_id)

    def has_much_to_give_back(self) -> bool:
        return self._database.has_much_to_give_back()

    def give_back(self) -> int:
        return self._database.give_back()

    def image(self, image_id: str) -> StoredImage:
        with self._database.reading() as connection:
            return stored_image(find(connection, IMAGE_COLUMNS, image_id))

    def data(self, image_id: str) -> bytes:
        with self._database.reading() as connection:
            return bytes(find(connection, "data", image_id)[0])

    def images(self, after: str | None, limit: int) -> list[StoredImage]:
        with self._database.reading() as connection:
            found = connection.execute(
                f"SELECT {IMAGE_COLUMNS} FROM images JOIN contents USING (content) WHERE id > ? ORDER BY id LIMIT ?",
                (after or "", limit),
            )
            return [stored_image(record) for record in found]

    def by_rows(self, rows: Iterable[int]) -> dict[int, StoredImage]:
        return {record[0]: stored_image(record) for record in self._find_rows(IMAGE_COLUMNS, rows)}

    def data_by_rows(self, rows: Iterable[int]) -> dict[int, bytes]:
        return dict(self._find_rows("row, data", rows))

    def digests_by_rows(self, rows: Iterable[int]) -> dict[int, str]:
        return dict(self._find_rows("row, digest", rows))

    def rows(self, after: int = 0, limit: int | None = None) -> Rows:
        return self._rows(
            "SELECT row FROM images WHERE row > ? ORDER BY row LIMIT ?", (after, -1 if limit is None else limit)
        )

    def rows_matching(self, fields: Mapping[str, Any]) -> Rows:
        condition, bound = filter_condition(fields)
        return self._rows(f"SELECT row FROM images WHERE {condition} ORDER BY row", bound)

    def size(self) -> tuple[int, int]:
        with self._database.reading() as connection:
            return totals(connection)

    def conditions(self) -> list[StoredCondition]:
        with self._database.reading() as connection:
            found = connection.execute("SELECT text, is_pinned, used FROM conditions ORDER BY rowid")
            return [StoredCondition(text, bool(is_pinned), used) for text, is_pinned, used in found]

    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        now = time.time()
        with self._database.transaction() as connection:
            if is_pinned:
                check_conditions(self.info.name, stored_access(connection))
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
            return stored_access(connection)

    def set_access(self, access: Access) -> None:
        with self._database.transaction() as connection:
            num_images, _ = totals(connection)
            if num_images:
                check_access(self.info.name, stored_access(connection), access)
            connection.execute("UPDATE collection SET access = ?", (access,))

    def _rows(self, statement: str, bound: Sequence[object]) -> Rows:
        with self._database.reading() as connection:
            return np.fromiter((row for (row,) in connection.execute(statement, bound)), np.int64)

    def _find_rows(self, columns: str, rows: Iterable[int]) -> list[Any]:
        with self._database.reading() as connection:
            return find_rows(connection, columns, rows)


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
