"""A collection's images as tables: the schema, and the queries and updates on one connection."""

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.embed.collections.storage.image_store import Access, Record, no_image

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


def find(connection: sqlite3.Connection, columns: str, image_id: str) -> tuple[Any, ...]:
    """Read columns of an image and its content. Raises NotFound."""
    try:
        found: tuple[Any, ...] | None = connection.execute(
            f"SELECT {columns} FROM images JOIN contents USING (content) WHERE id = ?", (image_id,)
        ).fetchone()
    except UnicodeEncodeError:  # an unpaired surrogate, which no id contains
        found = None
    if found is None:
        raise no_image(image_id)
    return found


def find_rows(connection: sqlite3.Connection, columns: str, rows: Iterable[int]) -> list[tuple[Any, ...]]:
    """Read columns of those rows that exist, in the order of `rows`."""
    return connection.execute(
        f"SELECT {columns} FROM (SELECT value FROM json_each(?)) CROSS JOIN images ON row = value"
        " JOIN contents USING (content)",
        (json.dumps([int(row) for row in rows]),),
    ).fetchall()


def taken_ids(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Record]:
    """Find the records of those ids that exist."""
    found = connection.execute(
        "SELECT id, digest, metadata FROM (SELECT value FROM json_each(?)) CROSS JOIN images ON id = value"
        " JOIN contents USING (content)",
        (json.dumps(ids),),
    )
    return {image_id: Record(image_id, digest, metadata) for image_id, digest, metadata in found}


def stored_digests(connection: sqlite3.Connection, digests: Iterable[str]) -> set[str]:
    """Return those digests whose bytes are stored."""
    found = connection.execute(
        "SELECT digest FROM (SELECT value FROM json_each(?)) CROSS JOIN contents ON digest = value",
        (json.dumps(list(digests)),),
    )
    return {digest for (digest,) in found}


def stored_access(connection: sqlite3.Connection) -> Access:
    """Return which changes the collection takes."""
    access: Access = connection.execute("SELECT access FROM collection").fetchone()[0]
    return access


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of images and of their bytes, shared ones counted once."""
    num_images, num_bytes = connection.execute("SELECT num_images, num_bytes FROM totals").fetchone()
    return num_images, num_bytes


def insert(connection: sqlite3.Connection, records: Sequence[Record], contents: Mapping[str, bytes]) -> list[int]:
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


def remove(connection: sqlite3.Connection, image_id: str) -> int:
    """Remove an image, and its bytes if no other image has them; return its row. Raises NotFound."""
    row, content, num_bytes = find(connection, "row, content, num_bytes", image_id)
    connection.execute("DELETE FROM images WHERE row = ?", (row,))
    if connection.execute("SELECT 1 FROM images WHERE content = ?", (content,)).fetchone():
        num_bytes = 0
    else:
        connection.execute("DELETE FROM contents WHERE content = ?", (content,))
    _count(connection, -1, -num_bytes)
    return int(row)


def _count(connection: sqlite3.Connection, num_images: int, num_bytes: int) -> None:
    connection.execute(
        "UPDATE totals SET num_images = num_images + ?, num_bytes = num_bytes + ?", (num_images, num_bytes)
    )
