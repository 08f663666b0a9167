"""A collection's images as rows in PostgreSQL: the queries and updates on one connection."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from services.embed.collections.cluster.connections import Connection
from services.embed.collections.cluster.contents import Upload, condemn
from services.embed.collections.cluster.metadata_filter import searchable
from services.embed.collections.storage.catalog import no_collection
from services.embed.collections.storage.image_store import Access, Record, StoredCondition, no_image

IMAGES = "images JOIN contents USING (collection, digest)"


def locked_totals(connection: Connection, collection: int, name: str) -> tuple[int, int, int, Access]:
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


def find(connection: Connection, collection: int, columns: str, image_id: str) -> tuple[Any, ...]:
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


def find_rows(connection: Connection, collection: int, columns: str, rows: Iterable[int]) -> list[tuple[Any, ...]]:
    """Read columns of those rows that exist, in the order of `rows`."""
    return connection.execute(
        f"SELECT {columns} FROM unnest(%s::bigint[]) WITH ORDINALITY AS wanted (row, place)"
        f" JOIN {IMAGES} USING (row) WHERE collection = %s ORDER BY place",
        ([int(row) for row in rows], collection),
    ).fetchall()


def taken_ids(connection: Connection, collection: int, ids: Sequence[str]) -> dict[str, Record]:
    """Find the records of those ids that exist."""
    found = connection.execute(
        "SELECT id, digest, metadata FROM images WHERE collection = %s AND id = ANY (%s)", (collection, list(ids))
    )
    return {image_id: Record(image_id, digest, metadata) for image_id, digest, metadata in found}


def stored_digests(connection: Connection, collection: int, digests: Iterable[str]) -> set[str]:
    """Return those digests whose bytes are stored."""
    found = connection.execute(
        "SELECT digest FROM contents WHERE collection = %s AND digest = ANY (%s)", (collection, list(digests))
    )
    return {digest for (digest,) in found}


def insert(
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


def remove(connection: Connection, collection: int, image_id: str) -> int:
    """Remove an image, and its bytes if no other image has them; return its row. Raises NotFound.

    To be called under the collection's lock.
    """
    row, digest, num_bytes, object_key = find(connection, collection, "row, digest, num_bytes, object_key", image_id)
    connection.execute("DELETE FROM images WHERE collection = %s AND row = %s", (collection, row))
    connection.execute("INSERT INTO deleted_rows VALUES (%s, %s)", (collection, row))
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


def live_rows(connection: Connection, collection: int, rows: Sequence[int]) -> set[int]:
    """Return those rows that exist."""
    found = connection.execute("SELECT row FROM images WHERE collection = %s AND row = ANY (%s)", (collection, rows))
    return {row for (row,) in found}


def _count(connection: Connection, collection: int, num_images: int, num_bytes: int) -> None:
    connection.execute(
        "UPDATE collections SET num_images = num_images + %s, num_bytes = num_bytes + %s WHERE collection = %s",
        (num_images, num_bytes, collection),
    )
