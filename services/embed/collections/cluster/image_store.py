"""A collection's images, metadata and conditions in PostgreSQL, and the bytes in an object store."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
from psycopg.errors import ForeignKeyViolation

from services.core.errors import Overloaded
from services.embed.collections.cluster.connections import Connection, Connections
from services.embed.collections.cluster.contents import Contents, ContentsChanged, Upload, condemn, take
from services.embed.collections.cluster.vectors import delete_vectors
from services.embed.collections.storage.catalog import no_collection
from services.embed.collections.storage.database import DatabaseFailed
from services.embed.collections.storage.filters import postgres_condition
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
from services.embed.collections.storage.metadata import searchable

IMAGES = "images JOIN contents USING (collection, digest)"
# An addition begins again if what it relies on was deleted meanwhile.
MAX_ATTEMPTS = 3
# Rows fetched at a time, so that a large collection's are never in memory as Python objects.
FETCHED_ROWS = 10_000


class PostgresImageStore(ImageStore):
    """An ImageStore that any number of processes use at once; `collection` is its number in the database.

    Methods that write, and those that read bytes, raise NotFound once the collection is deleted.
    """

    def __init__(self, connections: Connections, contents: Contents, collection: int, info: CollectionInfo) -> None:
        self.info = info
        self.collection = collection
        self._connections = connections
        self._contents = contents

    def close(self) -> None:
        """Do nothing: the connections belong to the catalog."""

    def add(self, images: Sequence[NewImage], limits: CollectionLimits, *, fill: bool = False) -> Added:
        asked = [(image, checked_metadata(image, limits)) for image in images]
        if not asked:
            return Added(0, 0, [], [])
        for _ in range(MAX_ATTEMPTS):
            lacking = self._lacking(asked, limits, fill=fill)
            with self._existing():
                data = {image.digest: image.data for image in images if image.digest in lacking}
                uploads = self._contents.upload(data)
            try:
                return self._add(asked, uploads, limits, fill=fill)
            except ContentsChanged:
                continue
        raise Overloaded("The images are being deleted at the same time.", code="images_changing")

    def delete(self, image_id: str, *, fill: bool = False) -> int:
        with self._connections.transaction() as connection:
            check_changes(self.info.name, _locked_totals(connection, self.collection, self.info.name)[-1], fill=fill)
            return _remove(connection, self.collection, image_id)

    def patch(self, image_id: str, changes: Mapping[str, Any], limits: CollectionLimits) -> StoredImage:
        with self._connections.transaction() as connection:
            check_changes(self.info.name, _locked_totals(connection, self.collection, self.info.name)[-1], fill=False)
            image = stored_image(_found(connection, self.collection, IMAGE_COLUMNS, image_id))
            text = patched_metadata(image, changes, limits)
            connection.execute(
                "UPDATE images SET metadata = %s, searchable = %s::jsonb WHERE collection = %s AND row = %s",
                (text, searchable(self.collection, text), self.collection, image.row),
            )
            return replace(image, metadata=json.loads(text))

    def has_much_to_give_back(self) -> bool:
        with self._connections.reading() as connection:
            found = connection.execute(
                "SELECT 1 FROM loose_objects WHERE collection = %s LIMIT 1", (self.collection,)
            ).fetchone()
            return found is not None

    def give_back(self) -> int:
        return self._contents.sweep()

    def data(self, image_id: str) -> bytes:
        for _ in range(MAX_ATTEMPTS):
            (object_key,) = self._find("object_key", image_id)
            (data,) = self._contents.read([object_key])
            if data is not None:
                return data
        # an image that was deleted meanwhile is no longer found
        raise DatabaseFailed(f"the object store lacks {object_key}", is_partial=True)

    def data_by_rows(self, rows: Iterable[int]) -> dict[int, bytes]:
        keys = dict(self._find_rows("row, object_key", rows))
        found = zip(keys, self._contents.read(list(keys.values())), strict=True)
        return {row: data for row, data in found if data is not None}

    def rows(self, after: int = 0, limit: int | None = None) -> Rows:
        return self._rows("row > %s ORDER BY row LIMIT %s", (after, limit))

    def rows_matching(self, filter: Mapping[str, Any]) -> Rows:
        condition, bound = postgres_condition(self.collection, filter)
        return self._rows(f"{condition} ORDER BY row", bound)

    def size(self) -> tuple[int, int]:
        with self._connections.reading() as connection:
            found = connection.execute(
                "SELECT num_images, num_bytes FROM collections WHERE collection = %s", (self.collection,)
            ).fetchone()
            return found[:2] if found is not None else (0, 0)

    def conditions(self) -> list[StoredCondition]:
        with self._connections.reading() as connection:
            return stored_conditions(connection, self.collection)

    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        with self._existing(), self._connections.transaction() as connection:
            if is_pinned:
                check_conditions(self.info.name, _locked_totals(connection, self.collection, self.info.name)[-1])
            connection.execute(
                "INSERT INTO conditions (collection, text, is_pinned, used) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (collection, text) DO UPDATE SET used = excluded.used,"
                " is_pinned = conditions.is_pinned OR excluded.is_pinned",
                (self.collection, text.encode(), is_pinned, time.time()),
            )

    def note_use(self, text: str, used: float) -> None:
        """Note when a condition was last used, if it is still indexed."""
        with self._connections.reading() as connection:
            connection.execute(
                "UPDATE conditions SET used = greatest(used, %s) WHERE collection = %s AND text = %s",
                (used, self.collection, text.encode()),
            )

    def drop_condition(self, text: str) -> None:
        with self._connections.reading() as connection:
            connection.execute(
                "DELETE FROM conditions WHERE collection = %s AND text = %s", (self.collection, text.encode())
            )

    def access(self) -> Access:
        with self._connections.reading() as connection:
            found = connection.execute(
                "SELECT access FROM collections WHERE collection = %s AND NOT is_deleted", (self.collection,)
            ).fetchone()
        if found is None:
            raise no_collection(self.info.name)
        access: Access = found[0]
        return access

    def set_access(self, access: Access) -> None:
        with self._connections.transaction() as connection:
            _, num_images, _, current = _locked_totals(connection, self.collection, self.info.name)
            if num_images:
                check_access(self.info.name, current, access)
            connection.execute("UPDATE collections SET access = %s WHERE collection = %s", (access, self.collection))

    def _lacking(
        self, asked: Sequence[tuple[NewImage, str | None]], limits: CollectionLimits, *, fill: bool
    ) -> set[str]:
        """Return the digests to upload. Raises what `add` raises, as far as it can be told before."""
        with self._connections.reading() as connection:
            new = new_records(asked, _taken_ids(connection, self.collection, [image.id for image, _ in asked]))
            digests = {record.digest for record in new}
            lacking = digests - _stored_digests(connection, self.collection, digests)
        check_adds(self.info.name, self.access(), len(new), fill=fill)
        if new:
            sizes = {image.digest: len(image.data) for image, _ in asked}
            num_images, num_bytes = self.size()
            check_limits(num_images + len(new), num_bytes + sum(sizes[digest] for digest in lacking), limits)
        return lacking

    def _add(
        self,
        asked: Sequence[tuple[NewImage, str | None]],
        uploads: Mapping[str, Upload],
        limits: CollectionLimits,
        *,
        fill: bool,
    ) -> Added:
        """Store images. Raises ContentsChanged if bytes of some are neither stored any more nor uploaded."""
        ids = [image.id for image, _ in asked]
        with self._connections.transaction() as connection:
            last_row, num_images, num_bytes, access = _locked_totals(connection, self.collection, self.info.name)
            new = new_records(asked, _taken_ids(connection, self.collection, ids))
            check_adds(self.info.name, access, len(new), fill=fill)
            if not new:
                return Added(0, len(asked), ids, [])
            digests = {record.digest for record in new}
            lacking = digests - _stored_digests(connection, self.collection, digests)
            if not lacking <= uploads.keys():
                raise ContentsChanged
            used = {digest: uploads[digest] for digest in lacking}
            num_new_bytes = sum(upload.num_bytes for upload in used.values())
            check_limits(num_images + len(new), num_bytes + num_new_bytes, limits)
            take(connection, used.values())
            rows = _insert(connection, self.collection, last_row, new, used)
        return Added(len(new), len(asked) - len(new), ids, rows)

    def _rows(self, condition: str, bound: Sequence[object]) -> Rows:
        with self._connections.transaction() as connection, connection.cursor("rows", binary=True) as cursor:
            cursor.itersize = FETCHED_ROWS
            cursor.execute(f"SELECT row FROM images WHERE collection = %s AND {condition}", (self.collection, *bound))
            return np.fromiter((row for (row,) in cursor), np.int64)

    @contextmanager
    def _existing(self) -> Iterator[None]:
        """Raise NotFound for writes in the block that find the collection removed."""
        try:
            yield
        except ForeignKeyViolation as error:
            raise no_collection(self.info.name) from error

    def _find(self, columns: str, image_id: str) -> tuple[Any, ...]:
        with self._connections.reading() as connection:
            return _found(connection, self.collection, columns, image_id)

    def _find_rows(self, columns: str, rows: Iterable[int]) -> list[tuple[Any, ...]]:
        with self._connections.reading() as connection:
            return connection.execute(
                f"SELECT {columns} FROM unnest(%s::bigint[]) WITH ORDINALITY AS wanted (row, place)"
                f" JOIN {IMAGES} USING (row) WHERE collection = %s ORDER BY place",
                ([int(row) for row in rows], self.collection),
            ).fetchall()

    def _listed(self, after: str, limit: int) -> list[tuple[Any, ...]]:
        with self._connections.reading() as connection:
            return connection.execute(
                f"SELECT {IMAGE_COLUMNS} FROM {IMAGES} WHERE collection = %s AND id > %s ORDER BY id LIMIT %s",
                (self.collection, after, limit),
            ).fetchall()


def _locked_totals(connection: Connection, collection: int, name: str) -> tuple[int, int, int, Access]:
    """Return the last row, the number of images and bytes and which changes it takes, and keep others from changing the
    collection's images until the transaction ends. Raises NotFound for a deleted collection.

    Rows are numbered under this lock, so a row becomes visible after all rows before it.
    """
    found = connection.execute(
        "SELECT last_row, num_images, num_bytes, access FROM collections WHERE collection = %s AND NOT is_deleted"
        " FOR NO KEY UPDATE",
        (collection,),
    ).fetchone()
    if found is None:
        raise no_collection(name)
    last_row, num_images, num_bytes, access = found
    return last_row, num_images, num_bytes, access


def _found(connection: Connection, collection: int, columns: str, image_id: str) -> tuple[Any, ...]:
    """Read columns of an image and its content. Raises NotFound."""
    try:
        found = connection.execute(
            f"SELECT {columns} FROM {IMAGES} WHERE collection = %s AND id = %s", (collection, image_id)
        ).fetchone()
    except (UnicodeEncodeError, psycopg.DataError):  # an unpaired surrogate or U+0000, which no id contains
        found = None
    if found is None:
        raise no_image(image_id)
    return found


def _taken_ids(connection: Connection, collection: int, ids: Sequence[str]) -> dict[str, Record]:
    """Find the records of those ids that exist."""
    found = connection.execute(
        "SELECT id, digest, metadata FROM images WHERE collection = %s AND id = ANY (%s)", (collection, list(ids))
    )
    return {image_id: Record(image_id, digest, metadata) for image_id, digest, metadata in found}


def _stored_digests(connection: Connection, collection: int, digests: Iterable[str]) -> set[str]:
    """Return those digests whose bytes are stored."""
    found = connection.execute(
        "SELECT digest FROM contents WHERE collection = %s AND digest = ANY (%s)", (collection, list(digests))
    )
    return {digest for (digest,) in found}


def _insert(
    connection: Connection, collection: int, last_row: int, records: Sequence[Record], uploads: Mapping[str, Upload]
) -> list[int]:
    """Store images whose ids are free, and uploaded bytes that are not stored, after `last_row`; return their rows."""
    rows = list(range(last_row + 1, last_row + 1 + len(records)))
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO contents VALUES (%s, %s, %s, %s)",
            [(collection, digest, upload.num_bytes, upload.object_key) for digest, upload in uploads.items()],
        )
        cursor.executemany(
            "INSERT INTO images VALUES"
            " (%s, %s, %s, %s, coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8), %s, %s::jsonb)",
            [
                (collection, row, one.id, one.digest, one.created, one.metadata, searchable(collection, one.metadata))
                for row, one in zip(rows, records, strict=True)
            ],
        )
    connection.execute("UPDATE collections SET last_row = %s WHERE collection = %s", (rows[-1], collection))
    _count(connection, collection, len(records), sum(upload.num_bytes for upload in uploads.values()))
    return rows


def _remove(connection: Connection, collection: int, image_id: str) -> int:
    """Remove an image with its vectors, and its bytes if no other image has them; return its row. Raises NotFound.

    To be called under the collection's lock.
    """
    row, digest, num_bytes, object_key = _found(connection, collection, "row, digest, num_bytes, object_key", image_id)
    connection.execute("DELETE FROM images WHERE collection = %s AND row = %s", (collection, row))
    delete_vectors(connection, collection, row)
    others = connection.execute(
        "SELECT 1 FROM images WHERE collection = %s AND digest = %s LIMIT 1", (collection, digest)
    ).fetchone()
    if others:
        num_bytes = 0
    else:
        connection.execute("DELETE FROM contents WHERE collection = %s AND digest = %s", (collection, digest))
        condemn(connection, collection, object_key, num_bytes)
    _count(connection, collection, -1, -num_bytes)
    return int(row)


def stored_conditions(connection: Connection, collection: int) -> list[StoredCondition]:
    """List a collection's conditions in the order in which they were added."""
    found = connection.execute(
        "SELECT text, is_pinned, used FROM conditions WHERE collection = %s ORDER BY position", (collection,)
    )
    return [StoredCondition(text.decode(), is_pinned, used) for text, is_pinned, used in found]


def _count(connection: Connection, collection: int, num_images: int, num_bytes: int) -> None:
    connection.execute(
        "UPDATE collections SET num_images = num_images + %s, num_bytes = num_bytes + %s WHERE collection = %s",
        (num_images, num_bytes, collection),
    )
