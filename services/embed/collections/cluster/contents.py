"""The bytes of a collection's images in the object store.

Each upload has a key of its own, which is noted in PostgreSQL before and used once. An object is therefore never
replaced, and only deleted after a commit that keeps everybody from using it.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from services.core.errors import Overloaded
from services.core.store.errors import NotFoundInStore, StoreUnavailable
from services.core.store.objects import Objects
from services.embed.collections.cluster.connections import Connection, Connections
from services.embed.collections.storage.database import IncompatibleDatabase

In = TypeVar("In")
Out = TypeVar("Out")
# Objects read or written at once, for one request or one piece of indexing.
AT_ONCE = 16
# An upload that takes longer is begun again.
UNUSED_AFTER_S = 3600.0
# A reader that has looked up a key still finds the object for so long.
GRACE_S = 60.0
# Objects deleted by one sweep.
MAX_SWEPT = 1000


class OwnStore:
    """A check that all processes of a database use the same object store, whatever it is called in their settings."""

    def __init__(self, connections: Connections, objects: Objects) -> None:
        self._connections = connections
        self._objects = objects
        self._is_certain = False

    def check(self, *, is_marking: bool = True) -> None:
        """Look for the mark, and set it where there are no images yet; done once there are some.

        Raises IncompatibleDatabase for another store, StoreUnavailable, and what Connections raises.
        """
        if self._is_certain:
            return
        with self._connections.transaction() as connection:
            # others that start now wait, and then see what was marked
            found = connection.execute("SELECT id, store_mark FROM identity FOR UPDATE").fetchone()
            assert found is not None, "a database has an identity"
            identity, mark = found
            held = connection.execute("SELECT object_key FROM contents LIMIT 1").fetchone()
            # a database that an earlier version made may have images and no mark
            expected = mark or (held[0] if held is not None else None)
            is_own = expected is not None and self._has(expected)
            if held is not None and not is_own:
                raise IncompatibleDatabase(
                    f"The images of this database are not in the object store {self._objects.label}; set"
                    " FOVEA_EMBED_COLLECTIONS_STORE_URL as in the other processes."
                )
            if is_marking and (mark is None or not is_own):
                mark = f"databases/{identity}-{uuid.uuid4().hex}"
                self._objects.write(mark, [b""], 0)
                connection.execute("UPDATE identity SET store_mark = %s", (mark,))
        self._is_certain = held is not None

    def _has(self, key: str) -> bool:
        try:
            self._objects.size_bytes(key)
        except NotFoundInStore:
            return False
        return True


class ObjectsUnreachable(Overloaded):
    """The object store can't be reached or used."""

    def __init__(self) -> None:
        super().__init__("The stored images currently can't be read or written.", code="object_store_unavailable")


class ContentsChanged(Exception):
    """Bytes that an addition relies on were deleted meanwhile; it begins again."""


@dataclass(frozen=True)
class Upload:
    """An object that no image has yet."""

    object_key: str
    num_bytes: int


class Contents:
    """Thread-safe. Methods raise ObjectsUnreachable, and what Connections raises."""

    def __init__(
        self, connections: Connections, objects: Objects, collection: int, own_store: OwnStore | None = None
    ) -> None:
        """With `own_store`, nothing is uploaded to another one."""
        self._connections = connections
        self._objects = objects
        self._own_store = own_store
        self._collection = collection

    def upload(self, data: Mapping[str, bytes]) -> dict[str, Upload]:
        """Store bytes by digest, each under a new key."""
        uploads = {
            digest: Upload(f"images/{self._collection}/{digest}-{uuid.uuid4().hex}", len(some))
            for digest, some in data.items()
        }
        if not uploads:
            return uploads
        self._check_store()
        with self._connections.transaction() as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO loose_objects (object_key, collection, num_bytes, is_condemned)"
                " VALUES (%s, %s, %s, false)",
                [(upload.object_key, self._collection, upload.num_bytes) for upload in uploads.values()],
            )
        self._at_once(self._write, [(uploads[digest], some) for digest, some in data.items()])
        return uploads

    def read(self, object_keys: Sequence[str]) -> list[bytes | None]:
        """Read objects, None for those that are missing."""
        return self._at_once(self._read, object_keys)

    def sweep(self, *, unused_after_s: float = UNUSED_AFTER_S, grace_s: float = GRACE_S) -> int:
        """Delete objects that no image has; return the number of bytes. It may end at any point, or run twice."""
        with self._connections.reading() as connection:
            connection.execute(
                "UPDATE loose_objects SET is_condemned = true, since = clock_timestamp() WHERE collection = %s"
                " AND NOT is_condemned AND since < clock_timestamp() - make_interval(secs => %s)",
                (self._collection, unused_after_s),
            )
            due = connection.execute(
                "SELECT object_key, num_bytes FROM loose_objects WHERE collection = %s AND is_condemned"
                " AND since < clock_timestamp() - make_interval(secs => %s) ORDER BY since LIMIT %s",
                (self._collection, grace_s, MAX_SWEPT),
            ).fetchall()
        keys = [key for key, _ in due]
        self._at_once(lambda key: self._objects.delete([key]), keys)
        with self._connections.reading() as connection:
            connection.execute("DELETE FROM loose_objects WHERE object_key = ANY (%s)", (keys,))
        return sum(num_bytes for _, num_bytes in due)

    def _check_store(self) -> None:
        try:
            if self._own_store is not None:
                self._own_store.check()
        except (StoreUnavailable, IncompatibleDatabase) as error:
            raise ObjectsUnreachable from error

    def _at_once(self, use: Callable[[In], Out], each: Sequence[In]) -> list[Out]:
        try:
            if len(each) <= 1:
                return [use(one) for one in each]
            with ThreadPoolExecutor(min(AT_ONCE, len(each)), "image-objects") as threads:
                return list(threads.map(use, each))
        except StoreUnavailable as error:
            raise ObjectsUnreachable from error

    def _write(self, what: tuple[Upload, bytes]) -> None:
        upload, data = what
        self._objects.write(upload.object_key, [data], len(data))

    def _read(self, object_key: str) -> bytes | None:
        try:
            return b"".join(self._objects.read_chunks(object_key))
        except NotFoundInStore:
            return None


def take(connection: Connection, uploads: Iterable[Upload]) -> None:
    """Make uploads permanent within a transaction. Raises ContentsChanged if one took so long that it was swept."""
    keys = [upload.object_key for upload in uploads]
    taken = connection.execute(
        "DELETE FROM loose_objects WHERE object_key = ANY (%s) AND NOT is_condemned", (keys,)
    ).rowcount
    if taken != len(keys):
        raise ContentsChanged


def condemn(connection: Connection, which: str, given: Sequence[object]) -> int:
    """Remove the lines of bytes that no image has any more, and let their objects be swept; return how many."""
    return connection.execute(
        f"WITH gone AS (DELETE FROM contents WHERE {which} RETURNING *)"
        " INSERT INTO loose_objects (object_key, collection, num_bytes, is_condemned)"
        " SELECT object_key, collection, num_bytes, true FROM gone",
        given,
    ).rowcount
