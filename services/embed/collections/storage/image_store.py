"""The images of one collection with their metadata, and its conditions: the data that can't be recomputed.

What SQLite's and PostgreSQL's stores have in common, and the rules of additions that both follow.
"""

import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from services.core.errors import Conflict, InvalidField, NotFound, Overloaded, TooLarge
from services.embed.collections.storage.metadata import merged, metadata_text

Rows = NDArray[np.int64]

MAX_ID_CHARACTERS = 256
# A client waits so long before it tries again to change a collection that is read-only.
READ_ONLY_RETRY_S = 5.0
NO_METADATA = "{}"
# More than any collection has.
ALL = 2**62
# What `stored_image` takes.
IMAGE_COLUMNS = "row, id, digest, num_bytes, metadata, created"

# `read_only` refuses all changes but new conditions of searches. A `copy` is being filled from elsewhere, which may
# remove any image, so it refuses other additions and deletions, and patches.
Access = Literal["open", "read_only", "copy"]


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

    `metadata` None means unspecified: an existing image keeps its metadata, a new one has none. `created` is the Unix
    time in seconds of an image that was stored elsewhere before; None: now.
    """

    id: str
    data: bytes
    digest: str
    metadata: dict[str, Any] | None
    param: str
    created: float | None = None


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


# Images to add, with the text of their metadata, None if unspecified.
Asked = Sequence[tuple[NewImage, str | None]]


@dataclass(frozen=True)
class Record:
    """The stored image of an id; `metadata` is JSON text, `created` None for now."""

    id: str
    digest: str
    metadata: str
    created: float | None = None


@dataclass(frozen=True)
class State:
    """The number of a collection's images and of their bytes, which changes it takes, and the row of its newest image,
    if that was asked for."""

    num_images: int
    num_bytes: int
    access: Access
    last_row: int = 0


@dataclass(frozen=True)
class New:
    """The images that an addition has to store, and the size of the bytes by their digest."""

    records: Sequence[Record]
    lacking: Mapping[str, int]

    def added(self, asked: Asked, rows: list[int]) -> Added:
        """Tell the result of the addition."""
        return Added(len(self.records), len(asked) - len(self.records), [image.id for image, _ in asked], rows)


class ReadOnly(Overloaded):
    """The collection does not take these changes for now: it moves elsewhere, or is a copy that is being filled."""

    def __init__(self, name: str, access: Literal["read_only", "copy"]) -> None:
        why = "read-only for now" if access == "read_only" else "a copy that is still being filled"
        super().__init__(
            f"The collection {name!r} is {why}; nothing was changed.",
            code="collection_read_only",
            retry_after_s=READ_ONLY_RETRY_S,
        )


class Connections(Protocol):
    """The database of a store, on connections of sqlite3 or psycopg."""

    def reading(self) -> AbstractContextManager[Any]: ...

    def transaction(self) -> AbstractContextManager[Any]: ...


class ImageStore(ABC):
    """Thread-safe; changes are durable when a method returns.

    Each image has a row: a number higher than those of all images before it, never reused. Images of equal bytes share
    them. Every method may raise Overloaded: StorageFull without room, and others while the store can't be reached.

    Statements here hold for SQLite and PostgreSQL, with `?` for each value. `own` selects a collection's lines of a
    table, `ACCESS` and `TOTALS` are the tables of its only line, `AMONG` compares with one of several values.
    """

    IMAGES: ClassVar[str]
    ACCESS: ClassVar[str]
    TOTALS: ClassVar[str]
    AMONG: ClassVar[str]
    info: CollectionInfo

    def __init__(self, database: Connections, own: str = "TRUE") -> None:
        self._database = database
        self._own = own

    @abstractmethod
    def close(self) -> None:
        """Let running calls finish; later calls raise RuntimeError."""

    @abstractmethod
    def add(self, images: Sequence[NewImage], limits: CollectionLimits, *, fill: bool = False) -> Added:
        """Store images, all or none. An image whose id exists with the same bytes and metadata is left unchanged.

        A copy takes only what is to `fill` it. Raises Conflict for an id that has other bytes or other metadata, in the
        store or earlier in `images`, and for what is to fill a collection that is no copy; InvalidField for an invalid
        id or metadata, TooLarge over a limit, ReadOnly. An empty sequence adds nothing.
        """

    def delete(self, image_id: str, *, fill: bool = False) -> int:
        """Remove an image, and its bytes if no other image has them; return its row.

        With `fill`, as `add`. Raises NotFound, ReadOnly, Conflict.
        """
        with self._database.transaction() as connection:
            check_changes(self.info.name, self._state(connection).access, fill=fill)
            row, digest, num_bytes = self._found(connection, "row, digest, num_bytes", image_id)
            self._delete_row(connection, row)
            others = f"SELECT 1 FROM {self.IMAGES} WHERE {self._own} AND digest = ? LIMIT 1"
            if self._ask(connection, others, (digest,)).fetchone():
                num_bytes = 0
            else:
                self._delete_content(connection, digest)
            self._count(connection, -1, -num_bytes)
            return int(row)

    def patch(self, image_id: str, changes: Mapping[str, Any], limits: CollectionLimits) -> StoredImage:
        """Change the metadata of an image as `merged` does; return the image as it is now.

        Raises NotFound, InvalidField for invalid metadata, TooLarge over the limit, ReadOnly.
        """
        with self._database.transaction() as connection:
            check_changes(self.info.name, self._state(connection).access, fill=False)
            image = stored_image(self._found(connection, IMAGE_COLUMNS, image_id))
            text = patched_metadata(image, changes, limits)
            self._write_metadata(connection, image.row, text)
            return replace(image, metadata=json.loads(text))

    @abstractmethod
    def has_much_to_give_back(self) -> bool:
        """Tell whether enough was deleted for `give_back` to be worthwhile."""

    @abstractmethod
    def give_back(self) -> int:
        """Free the space of deleted images, while others read and write; return the number of bytes."""

    def image(self, image_id: str) -> StoredImage:
        """Raises NotFound."""
        return stored_image(self._find(IMAGE_COLUMNS, image_id))

    @abstractmethod
    def data(self, image_id: str) -> bytes:
        """Return the original bytes. Raises NotFound."""

    def images(self, after: str | None, limit: int) -> list[StoredImage]:
        """List at most `limit` images, ascending by id (by code points), starting after the id `after`."""
        listed = f"SELECT {IMAGE_COLUMNS} FROM {self.IMAGES} WHERE {self._own} AND id > ? ORDER BY id LIMIT ?"
        with self._database.reading() as connection:
            return [stored_image(record) for record in self._ask(connection, listed, (after or "", limit)).fetchall()]

    def by_rows(self, rows: Iterable[int]) -> dict[int, StoredImage]:
        """Return the images of those rows that exist, in the order of their rows."""
        return {record[0]: stored_image(record) for record in self._find_rows(IMAGE_COLUMNS, rows)}

    @abstractmethod
    def data_by_rows(self, rows: Iterable[int]) -> dict[int, bytes]:
        """Return the bytes of those rows that exist."""

    def digests_by_rows(self, rows: Iterable[int]) -> dict[int, str]:
        """Return the hexadecimal sha256 of those rows that exist."""
        return dict(self._find_rows("row, digest", rows))

    def rows(self, after: int = 0, limit: int = ALL) -> Rows:
        """List all rows above `after`, or the `limit` lowest of them; int64 (N,), ascending."""
        return self._rows("row > ? ORDER BY row LIMIT ?", (after, limit))

    @abstractmethod
    def rows_matching(self, filter: Mapping[str, Any]) -> Rows:
        """List rows whose metadata fits a filter; int64 (N,), ascending. Raises what `parsed_filter` raises."""

    def size(self) -> tuple[int, int]:
        """Return the number of images and of their bytes, shared ones counted once."""
        with self._database.reading() as connection:
            state = self._state(connection, is_locking=False)
            return state.num_images, state.num_bytes

    @abstractmethod
    def conditions(self) -> list[StoredCondition]:
        """List the indexed conditions in the order in which they were added."""

    @abstractmethod
    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        """Index a condition and note its use. A pinned condition stays pinned until it is dropped.

        Raises ReadOnly for a pinned one.
        """

    @abstractmethod
    def drop_condition(self, text: str) -> None:
        """Stop indexing a condition; no error if it is not indexed."""

    def access(self) -> Access:
        """Return which changes it takes."""
        with self._database.reading() as connection:
            return self._state(connection, is_locking=False).access

    def set_access(self, access: Access) -> None:
        """Take these changes from now on. Changes that were answered before are in the store when this returns.

        Raises Conflict for a collection in use that is to become a copy.
        """
        with self._database.transaction() as connection:
            state = self._state(connection)
            if state.num_images:
                check_access(self.info.name, state.access, access)
            self._ask(connection, f"UPDATE {self.ACCESS} SET access = ? WHERE {self._own}", (access,))

    @abstractmethod
    def _state(self, connection: Any, *, is_locking: bool = True) -> State:
        """Read the totals, and keep others from changing the images until the transaction ends."""

    @abstractmethod
    def _rows(self, condition: str, bound: Sequence[object]) -> Rows:
        """List the rows that a condition selects."""

    @abstractmethod
    def _write_metadata(self, connection: Any, row: int, text: str) -> None:
        """Replace the metadata of an image."""

    def _ask(self, connection: Any, statement: str, bound: Sequence[object]) -> Any:
        return connection.execute(statement, bound)

    def _among(self, values: Iterable[object]) -> object:
        """Write values as `AMONG` takes them."""
        return list(values)

    def _found(self, connection: Any, columns: str, image_id: str) -> tuple[Any, ...]:
        """Read columns of an image and its content. Raises NotFound."""
        statement = f"SELECT {columns} FROM {self.IMAGES} WHERE {self._own} AND id = ?"
        found: tuple[Any, ...] | None = None
        # U+0000 and half of a surrogate pair, which no id has, can't be asked for
        if "\0" not in image_id and image_id.encode(errors="ignore").decode() == image_id:
            found = self._ask(connection, statement, (image_id,)).fetchone()
        if found is None:
            raise no_image(image_id)
        return found

    def _find(self, columns: str, image_id: str) -> tuple[Any, ...]:
        with self._database.reading() as connection:
            return self._found(connection, columns, image_id)

    def _find_rows(self, columns: str, rows: Iterable[int]) -> list[tuple[Any, ...]]:
        """Read columns of those rows that exist, in their order."""
        statement = f"SELECT {columns} FROM {self.IMAGES} WHERE {self._own} AND row {self.AMONG} ORDER BY row"
        with self._database.reading() as connection:
            found: list[tuple[Any, ...]] = self._ask(connection, statement, (self._among(map(int, rows)),)).fetchall()
            return found

    def _new(self, connection: Any, asked: Asked, limits: CollectionLimits, state: State, *, fill: bool) -> New:
        """Tell which of the images are to be stored, and the digests of the bytes that are not. Raises as `add`."""
        known = self._ask(
            connection,
            f"SELECT id, digest, metadata FROM {self.IMAGES} WHERE {self._own} AND id {self.AMONG}",
            (self._among(image.id for image, _ in asked),),
        )
        new = new_records(asked, {record[0]: Record(*record) for record in known})
        check_adds(self.info.name, state.access, len(new), fill=fill)
        sizes = {image.digest: len(image.data) for image, _ in asked}
        lacking = {record.digest: sizes[record.digest] for record in new}
        statement = f"SELECT digest FROM contents WHERE {self._own} AND digest {self.AMONG}"
        for (digest,) in self._ask(connection, statement, (self._among(lacking),)).fetchall():
            del lacking[digest]
        if new:
            check_limits(state.num_images + len(new), state.num_bytes + sum(lacking.values()), limits)
        return New(new, lacking)

    def _delete_row(self, connection: Any, row: int) -> None:
        self._ask(connection, f"DELETE FROM images WHERE {self._own} AND row = ?", (row,))

    def _delete_content(self, connection: Any, digest: str) -> None:
        self._ask(connection, f"DELETE FROM contents WHERE {self._own} AND digest = ?", (digest,))

    def _count(self, connection: Any, num_images: int, num_bytes: int) -> None:
        changes = "num_images = num_images + ?, num_bytes = num_bytes + ?"
        self._ask(connection, f"UPDATE {self.TOTALS} SET {changes} WHERE {self._own}", (num_images, num_bytes))


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


def checked(images: Iterable[NewImage], limits: CollectionLimits) -> Asked:
    """Check the ids and the metadata of images to add."""
    asked = []
    for image in images:
        check_image_id(image.id, f"{image.param}.id")
        param = f"{image.param}.metadata"
        text = None if image.metadata is None else _checked_text(image.id, image.metadata, param, limits)
        asked.append((image, text))
    return asked


def patched_metadata(image: StoredImage, changes: Mapping[str, Any], limits: CollectionLimits) -> str:
    """Return the text of an image's metadata with changes. Raises InvalidField, TooLarge."""
    metadata_text(changes, "metadata")  # before they are merged, as they may be too deep for that
    return _checked_text(image.id, merged(image.metadata, changes), "metadata", limits)


def _checked_text(image_id: str, metadata: Mapping[str, Any], param: str, limits: CollectionLimits) -> str:
    text = metadata_text(metadata, param)
    num_bytes = len(text.encode())
    if num_bytes > limits.max_metadata_bytes:
        raise TooLarge(
            f"The metadata of {image_id!r} has {num_bytes} bytes; the limit is {limits.max_metadata_bytes}.",
            param=param,
        )
    return text


def new_records(asked: Asked, stored: Mapping[str, Record]) -> list[Record]:
    """Return the records to store for images with their metadata, given those that are `stored` under their ids.

    Raises Conflict.
    """
    known = dict(stored)
    new = []
    for image, metadata in asked:
        there = known.get(image.id)
        if there is None:
            known[image.id] = Record(image.id, image.digest, metadata or NO_METADATA, image.created)
            new.append(known[image.id])
        elif there.digest != image.digest or metadata not in (None, there.metadata):
            other = "content; delete it first" if there.digest != image.digest else "metadata; change it by PATCH"
            told = f"The image {image.id!r} exists with different {other}."
            raise Conflict(told, param=image.param, code="image_exists")
    return new


def check_limits(num_images: int, num_bytes: int, limits: CollectionLimits) -> None:
    """Raises TooLarge if a collection of this size would exceed a limit."""
    if num_images > limits.max_images:
        raise TooLarge(
            f"The collection would hold {num_images} images; the limit is {limits.max_images}.", code="collection_full"
        )
    if num_bytes > limits.max_bytes:
        raise TooLarge(
            f"The images of the collection would have {num_bytes} bytes; the limit is {limits.max_bytes}.",
            code="collection_full",
        )


def check_access(name: str, current: Access, wanted: Access) -> None:
    """Raises Conflict if a collection that is in use is to become a copy, whose images may be removed."""
    if wanted == "copy" and current != "copy":
        raise Conflict(
            f"The collection {name!r} exists and is not a copy that is being filled.",
            param="access",
            code="collection_exists",
        )


def check_adds(name: str, access: Access, num_new: int, *, fill: bool) -> None:
    """Check that the collection takes an addition, as `check_changes` does; a read-only one confirms what it has."""
    if num_new or fill or access == "copy":
        check_changes(name, access, fill=fill)


def check_changes(name: str, access: Access, *, fill: bool) -> None:
    """Check that the collection takes a change, which may be to fill a copy.

    To be called within the transaction of the change. Raises ReadOnly, and Conflict for what is to fill a collection
    that is no copy: it may have been opened to others in the meantime.
    """
    if fill and access != "copy":
        raise Conflict(
            f"The collection {name!r} is not a copy that is being filled; nothing was changed.",
            param="fill",
            code="collection_not_a_copy",
        )
    if access == "read_only" or (access == "copy" and not fill):
        raise ReadOnly(name, access)


def check_conditions(name: str, access: Access) -> None:
    """Raises ReadOnly if the collection indexes no further conditions in advance."""
    if access == "read_only":
        raise ReadOnly(name, access)


def stored_image(record: tuple[Any, ...]) -> StoredImage:
    """Make an image of row, id, digest, number of bytes, JSON text of the metadata, and time."""
    row, image_id, digest, num_bytes, metadata, created = record
    return StoredImage(row, image_id, digest, num_bytes, json.loads(metadata), created)


def no_image(image_id: str) -> NotFound:
    """Make the error for an image that is missing."""
    return NotFound(f"There is no image {image_id!r}.", code="image_not_found")
