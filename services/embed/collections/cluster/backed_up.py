"""Shared collections as a backup reads them: PostgreSQL's rows as of one moment, and the objects that they name."""

from collections.abc import Iterator
from contextlib import contextmanager

from services.core.store.objects import Objects
from services.embed.collections.cluster.catalog import PostgresCatalog
from services.embed.collections.cluster.connections import Connections
from services.embed.collections.cluster.contents import OwnStore
from services.embed.collections.storage.backed_up import BackedUp
from services.embed.collections.storage.catalog import Catalog


class ClusterBackedUp(PostgresCatalog, BackedUp):
    """The shared collections while processes use them."""

    kind = "cluster"

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

    @contextmanager
    def snapshot(self) -> Iterator[Catalog]:
        with self.connections.snapshot() as connections:
            yield PostgresCatalog(connections, self._objects)
