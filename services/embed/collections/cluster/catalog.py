"""The collections of all tenants in PostgreSQL, for any number of processes at once, and the removal of what nobody
needs any more: deleted collections, objects without images, indexes that no process serves."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from psycopg.errors import ForeignKeyViolation

from services.core.exchange import DEFAULT_TENANT
from services.core.store.errors import StoreUnavailable
from services.core.store.objects import Objects
from services.embed.collections.cluster.connections import Connections, alone
from services.embed.collections.cluster.contents import Contents, OwnStore, condemn
from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.cluster.vectors import drop_indexes
from services.embed.collections.storage.catalog import (
    BackedUp,
    Catalog,
    CollectionKey,
    check_name,
    check_tenant,
    no_collection,
)
from services.embed.collections.storage.image_store import CollectionInfo

# Lines removed in one transaction, so that a large collection's removal does not hold up others.
SWEPT_LINES = 10_000
# Tables of a deleted collection beside its indexes.
OWN_TABLES = ("claims", "conditions", "images")

TO_INDEX = (
    "SELECT tenant, name FROM collections"
    " JOIN unnest(%s::text[], %s::text[]) AS served (model, checkpoint) USING (model)"
    " WHERE NOT is_deleted AND last_row > 0 AND ("
    " NOT EXISTS (SELECT 1 FROM indexes WHERE indexes.collection = collections.collection"
    " AND indexes.checkpoint = served.checkpoint)"
    " OR EXISTS (SELECT 1 FROM indexes WHERE indexes.collection = collections.collection"
    " AND indexes.checkpoint = served.checkpoint AND handed_out < last_row)"
    " OR EXISTS (SELECT 1 FROM claims WHERE claims.collection = collections.collection"
    " AND claims.checkpoint = served.checkpoint AND expires < clock_timestamp()))"
)
SOME = "ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE collection = %s LIMIT %s))"
# Any number, the same in all replicas.
SWEEP_LOCK = 0x0F0FEB
# The indexes of a checkpoint that no process has served for this time are removed.
UNUSED_AFTER_S = 24 * 3600.0


class PostgresCatalog(BackedUp):
    """A Catalog that any number of processes use at once.

    `objects` holds the bytes of the images. Methods raise CatalogUnreachable while PostgreSQL can't be reached.
    """

    kind = "cluster"

    def __init__(self, connections: Connections, objects: Objects) -> None:
        self.connections = connections
        self._objects = objects
        self._own_store = OwnStore(connections, objects)

    @classmethod
    def open(cls, url: str, objects: Objects, *, is_changing: bool = True) -> "PostgresCatalog":
        """Connect to `postgresql://…`; a database that is only read is not changed.

        Raises IncompatibleDatabase, also where the images are in another store.
        """
        catalog = cls(Connections.open(url, is_migrating=is_changing), objects)
        try:
            with suppress(StoreUnavailable):  # indexes are searched without it; additions check again
                catalog._own_store.check(is_marking=is_changing)
        except BaseException:
            catalog.close()
            raise
        return catalog

    def close(self) -> None:
        """End the connections; open stores fail from now on."""
        self.connections.close()

    def tenants(self) -> list[str]:
        with self.connections.reading() as connection:
            found = connection.execute("SELECT DISTINCT tenant FROM collections WHERE NOT is_deleted")
            return sorted({DEFAULT_TENANT, *(tenant for (tenant,) in found)})

    def names(self, tenant: str = DEFAULT_TENANT) -> list[str]:
        check_tenant(tenant)
        return [store.info.name for store in self.open_stores(tenant)]

    def create(self, info: CollectionInfo, tenant: str = DEFAULT_TENANT) -> PostgresImageStore:
        check_name(info.name)
        check_tenant(tenant)
        with self.connections.reading() as connection:
            made = connection.execute(
                "INSERT INTO collections (tenant, name, model, created) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (tenant, name) WHERE NOT is_deleted DO NOTHING RETURNING collection",
                (tenant, info.name, info.model, info.created),
            ).fetchone()
        if made is None:
            raise FileExistsError(f"The collection {info.name!r} already exists.")
        return self._store(made[0], info)

    def open_store(self, name: str, tenant: str = DEFAULT_TENANT) -> PostgresImageStore:
        check_name(name)
        check_tenant(tenant)
        for store in self._stores("tenant = %s AND name = %s", (tenant, name)):
            return store
        raise no_collection(name)

    def open_stores(self, tenant: str | None) -> list[PostgresImageStore]:
        """Open all stores of a tenant in the order of their names, or those of all tenants."""
        return self._stores("(tenant = %s OR %s)", (tenant, tenant is None))

    def to_index(self, checkpoints: Mapping[str, str]) -> list[CollectionKey]:
        """List the collections that have something to do for a process that serves these checkpoints, by model."""
        with self.connections.reading() as connection:
            found = connection.execute(TO_INDEX, (list(checkpoints), list(checkpoints.values()))).fetchall()
            return [CollectionKey(tenant, name) for tenant, name in found]

    def delete(self, name: str, tenant: str = DEFAULT_TENANT) -> None:
        """Free the name at once; what is left of the collection is removed by `sweep`. Raises NotFound."""
        check_name(name)
        check_tenant(tenant)
        with self.connections.reading() as connection:
            deleted = connection.execute(
                "UPDATE collections SET is_deleted = true WHERE tenant = %s AND name = %s AND NOT is_deleted",
                (tenant, name),
            ).rowcount
        if not deleted:
            raise no_collection(name)

    @contextmanager
    def snapshot(self) -> Iterator[Catalog]:
        with self.connections.snapshot() as connections:
            yield PostgresCatalog(connections, self._objects)

    def sweep(self) -> None:
        """Remove what is left of deleted collections, and objects that no image has.

        It may end at any point, and run in several processes.
        """
        with self.connections.reading() as connection:
            deleted = connection.execute("SELECT collection FROM collections WHERE is_deleted").fetchall()
        for (collection,) in deleted:
            with self.connections.transaction() as connection:
                drop_indexes(connection, "collection = %s", (collection,))
            with self.connections.reading() as connection:
                # each time a small transaction
                for table in OWN_TABLES:
                    some = f"DELETE FROM {table} WHERE {SOME.format(table=table)}"
                    while connection.execute(some, (collection, SWEPT_LINES)).rowcount:
                        pass
                while condemn(connection, SOME.format(table="contents"), (collection, SWEPT_LINES)):
                    pass
            contents = Contents(self.connections, self._objects, collection)
            while contents.sweep(grace_s=0.0):
                pass
            # what is being uploaded to it is swept later, and the collection's line with that
            with suppress(ForeignKeyViolation), self.connections.reading() as connection:
                connection.execute("DELETE FROM collections WHERE collection = %s", (collection,))
        with self.connections.reading() as connection:
            loose = connection.execute("SELECT DISTINCT collection FROM loose_objects").fetchall()
        for (collection,) in loose:
            Contents(self.connections, self._objects, collection).sweep()

    def _stores(self, which: str, given: Sequence[object]) -> list[PostgresImageStore]:
        with self.connections.reading() as connection:
            found = connection.execute(
                f"SELECT collection, name, model, created FROM collections WHERE {which} AND NOT is_deleted"
                " ORDER BY name",
                given,
            ).fetchall()
        return [self._store(number, CollectionInfo(*info)) for number, *info in found]

    def _store(self, collection: int, info: CollectionInfo) -> PostgresImageStore:
        contents = Contents(self.connections, self._objects, collection, self._own_store)
        return PostgresImageStore(self.connections, contents, collection, info)


def sweep(catalog: PostgresCatalog, *, unused_after_s: float = UNUSED_AFTER_S) -> bool:
    """Remove what no process needs; False if another process does so at the moment. It may end at any point.

    Raises what Connections and the object store raise.
    """
    with alone(catalog.connections, SWEEP_LOCK) as is_alone:
        if is_alone:
            catalog.sweep()
            _forget_indexes(catalog.connections, unused_after_s)
        return is_alone


def _forget_indexes(connections: Connections, unused_after_s: float) -> None:
    with connections.transaction() as connection:
        drop_indexes(connection, "used < clock_timestamp() - make_interval(secs => %s)", (unused_after_s,))
        connection.execute(
            "DELETE FROM claims WHERE expires < clock_timestamp() AND NOT EXISTS"
            " (SELECT 1 FROM indexes WHERE index = ANY (claims.indexes))"
        )
