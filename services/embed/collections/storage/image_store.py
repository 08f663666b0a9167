"""The images of one collection with their metadata, and its conditions: the data that can't be recomputed."""

import json
import sqlite3
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.core.durable_files import make_folder_durably
from services.core.errors import Conflict, InvalidField, TooLarge
from services.embed.collections.storage.database import Database, IncompatibleDatabase, StorageFull
from services.embed.collections.storage.image_tables import (
    SCHEMA,
    SCHEMA_VERSION,
    Record,
    find,
    find_rows,
    insert,
    remove,
    stored_digests,
    taken_ids,
    totals,
)
from services.embed.collections.storage.metadata import filter_condition, metadata_text

Rows = NDArray[np.int64]

DATABASE_NAME = "images.sqlite"
MAX_ID_CHARACTERS = 256
NO_METADATA = "{}"
PAGE_BYTES = 4096

IMAGE_COLUMNS = "row, id, digest, num_bytes, metadata, created"


@dataclass(frozen=True)
class CollectionInfo:
    """`created` is Unix time in seconds."""

    name: str
    model: str
    created: float


@dataclass(frozen=True)
class CollectionLimits:
    """Limits: `max_bytes` of image files, each counted once; `max_metadata_bytes` of one image's metadata as JSON."""

    max_images: int
    max_bytes: int
    max_conditions: int
    max_metadata_bytes: int


@dataclass(frozen=True, eq=False)
class NewImage:
    """An image to store; `digest` is the hexadecimal sha256 of `data`, `param` the request field for error messages.

    `metadata` None means unspecified: an existing image keeps its metadata, a new one has none.
    """

    id: str
    data: bytes
    digest: str
    metadata: dict[str, Any] | None
    param: str


@dataclass(frozen=True)
class StoredImage:
    """A stored image; `created` is Unix time in seconds."""

    row: int
    id: str
    digest: str
    num_bytes: int
    metadata: dict[str, Any]
    created: float


@dataclass(frozen=True)
class Added:
    """The result of adding images: `ids` in the order of the request, and the `rows` of new images."""

    added: int
    unchanged: int
    ids: list[str]
    rows: list[int]


@dataclass(frozen=True)
class StoredCondition:
    """An indexed condition; `used` is the Unix time in seconds at which it was last put."""

    text: str
    is_pinned: bool
    used: float


class ImageStore:
    """Thread-safe; changes are on disk when a method returns.

    Each image has a row: a number higher than those of all images before it, never reused. Images of equal bytes share
    them. Every method may raise StorageFull.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.reading() as connection:
            self.info = _info(connection)

    @classmethod
    def create(cls, directory: Path, info: CollectionInfo) -> "ImageStore":
        """Create an empty store in a folder, made as needed. Raises FileExistsError if there is one."""
        make_folder_durably(directory)
        statements = [
            *((statement, ()) for statement in SCHEMA),
            ("INSERT INTO collection VALUES (?, ?, ?)", (info.name, info.model, info.created)),
        ]
        return cls(Database.create(directory / DATABASE_NAME, SCHEMA_VERSION, statements))

    @classmethod
    def open(cls, directory: Path) -> "ImageStore":
        """Raises FileNotFoundError, and IncompatibleDatabase if a newer version wrote it or tables or rows are
        missing."""
        database = Database.open(directory / DATABASE_NAME, SCHEMA_VERSION)
        try:
            return cls(database)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Let running calls finish and close the file; later calls fail."""
        self._database.close()

    def add(self, images: Sequence[NewImage], limits: CollectionLimits) -> Added:
        """Store images, all or none. An image whose id exists with the same bytes and metadata is left unchanged.

        Raises Conflict for an id that has other bytes or other metadata, in the store or earlier in `images`,
        InvalidField for an invalid id or metadata, TooLarge over a limit. An empty sequence adds nothing.
        """
        asked = [(image, _checked_metadata(image, limits)) for image in images]
        try:
            return self._add(asked, limits)
        except StorageFull:
            # deleted images may have left space in the file's log
            if not self._database.give_back():
                raise
            return self._add(asked, limits)

    def _add(self, asked: Sequence[tuple[NewImage, str | None]], limits: CollectionLimits) -> Added:
        images = [image for image, _ in asked]
        with self._database.transaction() as connection:
            known = taken_ids(connection, [image.id for image in images])
            new = [record for image, metadata in asked if (record := _new_record(image, metadata, known)) is not None]
            contents = {image.digest: image.data for image in images}
            for digest in stored_digests(connection, contents):
                del contents[digest]
            if new:
                _check_limits(connection, len(new), sum(map(len, contents.values())), limits)
                self._database.check_room(_bytes_on_disk(new, contents))
            rows = insert(connection, new, contents) if new else []
        return Added(len(new), len(images) - len(new), [image.id for image in images], rows)

    def delete(self, image_id: str) -> int:
        """Remove an image, and its bytes if no other image has them; return its row. Raises NotFound."""
        with self._database.transaction() as connection:
            return remove(connection, image_id)

    def has_much_to_give_back(self) -> bool:
        """Tell whether enough was deleted for `give_back` to be worthwhile."""
        return self._database.has_much_to_give_back()

    def give_back(self) -> int:
        """Return the space of deleted images to the disk, while others read and write; return the number of bytes."""
        return self._database.give_back()

    def image(self, image_id: str) -> StoredImage:
        """Raises NotFound."""
        with self._database.reading() as connection:
            return _stored_image(find(connection, IMAGE_COLUMNS, image_id))

    def data(self, image_id: str) -> bytes:
        """Return the original bytes. Raises NotFound."""
        with self._database.reading() as connection:
            return bytes(find(connection, "data", image_id)[0])

    def images(self, after: str | None, limit: int) -> list[StoredImage]:
        """List at most `limit` images, ascending by id (by code points), starting after the id `after`."""
        with self._database.reading() as connection:
            found = connection.execute(
                f"SELECT {IMAGE_COLUMNS} FROM images JOIN contents USING (content) WHERE id > ? ORDER BY id LIMIT ?",
                (after or "", limit),
            )
            return [_stored_image(record) for record in found]

    def by_rows(self, rows: Iterable[int]) -> dict[int, StoredImage]:
        """Return the images of those rows that exist."""
        return {record[0]: _stored_image(record) for record in self._find_rows(IMAGE_COLUMNS, rows)}

    def data_by_rows(self, rows: Iterable[int]) -> dict[int, bytes]:
        """Return the bytes of those rows that exist."""
        return dict(self._find_rows("row, data", rows))

    def digests_by_rows(self, rows: Iterable[int]) -> dict[int, str]:
        """Return the hexadecimal sha256 of those rows that exist."""
        return dict(self._find_rows("row, digest", rows))

    def rows(self, after: int = 0, limit: int | None = None) -> Rows:
        """List all rows above `after`, or the `limit` lowest of them; int64 (N,), ascending."""
        return self._rows(
            "SELECT row FROM images WHERE row > ? ORDER BY row LIMIT ?", (after, -1 if limit is None else limit)
        )

    def rows_matching(self, fields: Mapping[str, Any]) -> Rows:
        """List rows whose metadata matches a filter; int64 (N,), ascending. Raises what `filter_condition` raises."""
        condition, bound = filter_condition(fields)
        return self._rows(f"SELECT row FROM images WHERE {condition} ORDER BY row", bound)

    def size(self) -> tuple[int, int]:
        """Return the number of images and of their bytes, shared ones counted once."""
        with self._database.reading() as connection:
            return totals(connection)

    def conditions(self) -> list[StoredCondition]:
        """List the indexed conditions in the order in which they were added."""
        with self._database.reading() as connection:
            found = connection.execute("SELECT text, is_pinned, used FROM conditions ORDER BY rowid")
            return [StoredCondition(text, bool(is_pinned), used) for text, is_pinned, used in found]

    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        """Index a condition and note its use. A pinned condition stays pinned until it is dropped."""
        now = time.time()
        with self._database.transaction() as connection:
            changed = connection.execute(
                "UPDATE conditions SET is_pinned = max(is_pinned, ?), used = ? WHERE text IS ?", (is_pinned, now, text)
            )
            if not changed.rowcount:
                connection.execute("INSERT INTO conditions VALUES (?, ?, ?)", (text, is_pinned, now))

    def drop_condition(self, text: str) -> None:
        """Stop indexing a condition; no error if it is not indexed."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM conditions WHERE text IS ?", (text,))

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


def check_image_id(image_id: str, param: str) -> None:
    """Raises InvalidField that names `param` for an id that can't be an image's.

    It has 1 to MAX_ID_CHARACTERS characters and no control characters; as a path, it has no segment that is empty, `.`
    or `..`.
    """
    if not 1 <= len(image_id) <= MAX_ID_CHARACTERS:
        reason = f"has {len(image_id)} characters, not 1 to {MAX_ID_CHARACTERS}"
    elif not image_id.isprintable() and any(unicodedata.category(one) in ("Cc", "Cs") for one in image_id):
        reason = "has a control character"
    elif {"", ".", ".."} & set(image_id.split("/")):
        reason = "has a path segment that is empty, '.' or '..'"
    else:
        return
    raise InvalidField(f"The image id {reason}.", param=param)


def _checked_metadata(image: NewImage, limits: CollectionLimits) -> str | None:
    """Check the id and size of an image to add, and return its metadata as text."""
    check_image_id(image.id, f"{image.param}.id")
    if image.metadata is None:
        return None
    param = f"{image.param}.metadata"
    text = metadata_text(image.metadata, param)
    num_bytes = len(text.encode())
    if num_bytes > limits.max_metadata_bytes:
        raise TooLarge(
            f"The metadata of {image.id!r} has {num_bytes} bytes; the limit is {limits.max_metadata_bytes}.",
            param=param,
        )
    return text


def _new_record(image: NewImage, metadata: str | None, known: dict[str, Record]) -> Record | None:
    """Return the record to store for an image, and add it to `known`; None if it is stored already. Raises Conflict."""
    there = known.get(image.id)
    if there is None:
        known[image.id] = Record(image.id, image.digest, metadata or NO_METADATA)
        return known[image.id]
    if there.digest == image.digest and metadata in (None, there.metadata):
        return None
    what = "content" if there.digest != image.digest else "metadata"
    raise Conflict(f"The image {image.id!r} exists with different {what}.", param=image.param, code="image_exists")


def _check_limits(connection: sqlite3.Connection, num_new: int, num_new_bytes: int, limits: CollectionLimits) -> None:
    """Raises TooLarge if the collection would exceed a limit."""
    num_images, num_bytes = (old + new for old, new in zip(totals(connection), (num_new, num_new_bytes), strict=True))
    if num_images > limits.max_images:
        raise TooLarge(
            f"The collection would hold {num_images} images; the limit is {limits.max_images}.",
            code="collection_full",
        )
    if num_bytes > limits.max_bytes:
        raise TooLarge(
            f"The images of the collection would have {num_bytes} bytes; the limit is {limits.max_bytes}.",
            code="collection_full",
        )


def _bytes_on_disk(records: Iterable[Record], contents: Mapping[str, bytes]) -> int:
    """Estimate the space that images take in the file, including partly filled pages."""
    lengths = [*map(len, contents.values()), *(len(record.metadata.encode()) for record in records)]
    return sum(lengths) + PAGE_BYTES * len(lengths)


def _stored_image(record: tuple[Any, ...]) -> StoredImage:
    row, image_id, digest, num_bytes, metadata, created = record
    return StoredImage(row, image_id, digest, num_bytes, json.loads(metadata), created)
