"""A collection's images, metadata and conditions in PostgreSQL, and the bytes in an object store."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from psycopg.errors import ForeignKeyViolation

from services.core.errors import Overloaded
from services.embed.collections.cluster.connections import Connection, Connections
from services.embed.collections.cluster.contents import Contents, ContentsChanged, Upload, condemn, take
from services.embed.collections.cluster.vectors import delete_vectors
from services.embed.collections.storage.catalog import no_collection
from services.embed.collections.storage.database import DatabaseFailed
from services.embed.collections.storage.filters import postgres_condition
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
    check_conditions,
    checked,
)
from services.embed.collections.storage.metadata import searchable

# An addition begins again if what it relies on was deleted meanwhile.
MAX_ATTEMPTS = 3
# Rows fetched at a time, so that a large collection's are never in memory as Python objects.
FETCHED_ROWS = 10_000


class PostgresImageStore(ImageStore):
    """An ImageStore that any number of processes use at once; `collection` is its number in the database.

    Methods that write, and those that read bytes, raise NotFound once the collection is deleted.
    """

    IMAGES = "images JOIN contents USING (collection, digest)"
    ACCESS = TOTALS = "collections"
    AMONG = "= ANY (?)"

    def __init__(self, connections: Connections, contents: Contents, collection: int, info: CollectionInfo) -> None:
        super().__init__(connections, f"collection = {collection}")
        self.info = info
        self.collection = collection
        self._connections = connections
        self._contents = contents

    def close(self) -> None:
        """Do nothing: the connections belong to the catalog."""

    def add(self, images: Sequence[NewImage], limits: CollectionLimits, *, fill: bool = False) -> Added:
        asked = checked(images, limits)
        if not asked:
            return Added(0, 0, [], [])
        for _ in range(MAX_ATTEMPTS):
            with self._connections.reading() as connection:
                state = self._state(connection, is_locking=False)
                lacking = self._new(connection, asked, limits, state, fill=fill).lacking
            with self._existing():
                data = {image.digest: image.data for image in images if image.digest in lacking}
                uploads = self._contents.upload(data)
            try:
                return self._add(asked, uploads, limits, fill=fill)
            except ContentsChanged:
                continue
        raise Overloaded("The images are being deleted at the same time.", code="images_changing")

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

    def rows_matching(self, filter: Mapping[str, Any]) -> Rows:
        condition, bound = postgres_condition(self.collection, filter)
        return self._rows(f"{condition} ORDER BY row", bound)

    def conditions(self) -> list[StoredCondition]:
        with self._connections.reading() as connection:
            return stored_conditions(connection, self.collection)

    def put_condition(self, text: str, *, is_pinned: bool) -> None:
        with self._existing(), self._connections.transaction() as connection:
            if is_pinned:
                check_conditions(self.info.name, self._state(connection).access)
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

    def _state(self, connection: Connection, *, is_locking: bool = True) -> State:
        """Raises NotFound for a deleted collection.

        Rows are numbered under the lock, so a row becomes visible after all rows before it.
        """
        found = connection.execute(
            "SELECT num_images, num_bytes, access, last_row FROM collections"
            f" WHERE collection = %s AND NOT is_deleted{' FOR NO KEY UPDATE' if is_locking else ''}",
            (self.collection,),
        ).fetchone()
        if found is None:
            raise no_collection(self.info.name)
        return State(*found)

    def _add(self, asked: Asked, uploads: Mapping[str, Upload], limits: CollectionLimits, *, fill: bool) -> Added:
        """Store images. Raises ContentsChanged if bytes of some are neither stored any more nor uploaded."""
        with self._connections.transaction() as connection:
            state = self._state(connection)
            new = self._new(connection, asked, limits, state, fill=fill)
            if not new.records:
                return new.added(asked, [])
            if not new.lacking.keys() <= uploads.keys():
                raise ContentsChanged
            used = {digest: uploads[digest] for digest in new.lacking}
            take(connection, used.values())
            rows = self._insert(connection, state.last_row, new.records, used)
        return new.added(asked, rows)

    def _insert(
        self, connection: Connection, last_row: int, records: Sequence[Record], uploads: Mapping[str, Upload]
    ) -> list[int]:
        """Store images whose ids are free, and uploaded bytes that are not stored, after `last_row`; return their
        rows."""
        rows, own = list(range(last_row + 1, last_row + 1 + len(records))), self.collection
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO contents VALUES (%s, %s, %s, %s)",
                [(own, digest, upload.num_bytes, upload.object_key) for digest, upload in uploads.items()],
            )
            cursor.executemany(
                "INSERT INTO images VALUES"
                " (%s, %s, %s, %s, coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8), %s, %s::jsonb)",
                [
                    (own, row, one.id, one.digest, one.created, one.metadata, searchable(own, one.metadata))
                    for row, one in zip(rows, records, strict=True)
                ],
            )
        connection.execute("UPDATE collections SET last_row = %s WHERE collection = %s", (rows[-1], own))
        self._count(connection, len(records), sum(upload.num_bytes for upload in uploads.values()))
        return rows

    def _write_metadata(self, connection: Connection, row: int, text: str) -> None:
        connection.execute(
            "UPDATE images SET metadata = %s, searchable = %s::jsonb WHERE collection = %s AND row = %s",
            (text, searchable(self.collection, text), self.collection, row),
        )

    def _delete_row(self, connection: Connection, row: int) -> None:
        super()._delete_row(connection, row)
        delete_vectors(connection, self.collection, row)

    def _delete_content(self, connection: Connection, digest: str) -> None:
        condemn(connection, "collection = %s AND digest = %s", (self.collection, digest))

    def _rows(self, condition: str, bound: Sequence[object]) -> Rows:
        with self._connections.transaction() as connection, connection.cursor("rows", binary=True) as cursor:
            cursor.itersize = FETCHED_ROWS
            statement = f"SELECT row FROM images WHERE {self._own} AND {condition}"
            cursor.execute(_in_psycopg(statement), bound)
            return np.fromiter((row for (row,) in cursor), np.int64)

    def _ask(self, connection: Connection, statement: str, bound: Sequence[object]) -> Any:
        return connection.execute(_in_psycopg(statement), bound)

    @contextmanager
    def _existing(self) -> Iterator[None]:
        """Raise NotFound for writes in the block that find the collection removed."""
        try:
            yield
        except ForeignKeyViolation as error:
            raise no_collection(self.info.name) from error


def _in_psycopg(statement: str) -> str:
    return statement.replace("?", "%s")


def stored_conditions(connection: Connection, collection: int) -> list[StoredCondition]:
    """List a collection's conditions in the order in which they were added."""
    found = connection.execute(
        "SELECT text, is_pinned, used FROM conditions WHERE collection = %s ORDER BY position", (collection,)
    )
    return [StoredCondition(text.decode(), is_pinned, used) for text, is_pinned, used in found]
