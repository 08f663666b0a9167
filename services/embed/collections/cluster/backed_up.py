"""Shared collections as a backup reads them: PostgreSQL's rows as of one moment, and the objects that they name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import IsolationLevel

from services.core.store.objects import Objects
from services.embed.collections.cluster.connections import Connection, Connections
from services.embed.collections.cluster.contents import Contents, OwnStore
from services.embed.collections.cluster.image_store import IMAGES, stored_conditions
from services.embed.collections.storage.backed_up import PAGE, BackedUp, CollectionAsOf, Content
from services.embed.collections.storage.image_store import IMAGE_COLUMNS, CollectionInfo, StoredImage, stored_image


class ClusterBackedUp(BackedUp):
    """The shared collections while processes use them, all as of the same moment."""

    kind = "cluster"

    def __init__(self, connections: Connections, objects: Objects) -> None:
        self._connections = connections
        self._contents = Contents(connections, objects, 0)

    @classmethod
    def open(cls, url: str, objects: Objects) -> "ClusterBackedUp":
        """Connect to a database, which is not changed.

        Raises IncompatibleDatabase for one of another version or store, StoreUnavailable.
        """
        connections = Connections.open(url, is_migrating=False)
        try:
            OwnStore(connections, objects).check(is_marking=False)
        except BaseException:
            connections.close()
            raise
        return cls(connections, objects)

    def close(self) -> None:
        self._connections.close()

    def contents(self) -> Iterator[list[Content]]:
        last: tuple[Any, ...] = (0, "")
        while True:
            with self._connections.reading() as connection:
                found = connection.execute(
                    "SELECT collection, digest, object_key FROM contents WHERE (collection, digest) > (%s, %s)"
                    " ORDER BY collection, digest LIMIT %s",
                    (*last, PAGE),
                ).fetchall()
            if not found:
                return
            last = found[-1][:2]
            yield [Content(digest, object_key) for _, digest, object_key in found]

    @contextmanager
    def snapshot(self) -> Iterator[Iterator[CollectionAsOf]]:
        with self._connections.reading() as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            try:
                with connection.transaction():
                    yield self._as_of(connection)
            finally:
                connection.isolation_level = connection.read_only = None

    def read(self, contents: Sequence[Content]) -> list[bytes | None]:
        return self._contents.read([content.place for content in contents])

    def _as_of(self, connection: Connection) -> Iterator[CollectionAsOf]:
        found = connection.execute(
            "SELECT collection, tenant, access, name, model, created FROM collections WHERE NOT is_deleted"
            " ORDER BY tenant, name"
        ).fetchall()
        for number, tenant, access, *info in found:
            conditions = stored_conditions(connection, number)
            yield CollectionAsOf(tenant, CollectionInfo(*info), access, conditions, _images(connection, number))


def _images(connection: Connection, collection: int) -> Iterator[tuple[StoredImage, Content]]:
    with connection.cursor("backed_up") as cursor:
        cursor.itersize = PAGE
        cursor.execute(
            f"SELECT object_key, {IMAGE_COLUMNS} FROM {IMAGES} WHERE collection = %s ORDER BY id", (collection,)
        )
        for object_key, *record in cursor:
            image = stored_image(tuple(record))
            yield image, Content(image.digest, object_key)
