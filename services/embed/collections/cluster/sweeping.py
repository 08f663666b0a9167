"""Removal of what nobody needs any more: deleted collections, objects without images, vectors without an index."""

from collections import defaultdict

import numpy as np

from services.embed.collections.cluster.catalog import PostgresCatalog
from services.embed.collections.cluster.connections import alone
from services.embed.collections.cluster.shared_vectors import VectorDatabase

# Any number, the same in all replicas.
SWEEP_LOCK = 0x0F0FEB
# The vectors of a deleted image are removed once more after this time, and then forgotten.
FORGET_AFTER_S = 600.0
# The indexes of a checkpoint that no process has served for this time are removed.
UNUSED_AFTER_S = 24 * 3600.0
# Rows forgotten by one sweep.
MAX_FORGOTTEN = 10_000


class Sweeper:
    """Sweeps on behalf of all processes; it may end at any point, and only one sweeps at a time.

    Methods raise what Connections, the object store and the vector database raise.
    """

    def __init__(self, catalog: PostgresCatalog, vectors: VectorDatabase) -> None:
        self._catalog = catalog
        self._connections = catalog.connections
        self._vectors = vectors

    def sweep(self, *, forget_after_s: float = FORGET_AFTER_S, unused_after_s: float = UNUSED_AFTER_S) -> bool:
        """Remove what is not needed; False if another process does so at the moment."""
        with alone(self._connections, SWEEP_LOCK) as is_alone:
            if is_alone:
                self._catalog.sweep()
                self._forget_indexes(unused_after_s)
                self._drop_unknown_vectors()
                self._forget_rows(forget_after_s)
            return is_alone

    def _forget_indexes(self, unused_after_s: float) -> None:
        with self._connections.reading() as connection:
            connection.execute(
                "DELETE FROM indexes WHERE used < clock_timestamp() - make_interval(secs => %s)", (unused_after_s,)
            )
            connection.execute(
                "DELETE FROM claims WHERE expires < clock_timestamp() AND NOT EXISTS"
                " (SELECT 1 FROM indexes WHERE index = ANY (claims.indexes))"
            )

    def _drop_unknown_vectors(self) -> None:
        # an index is noted before it has vectors, so those that are seen first and not noted then are not needed
        stored = list(self._vectors.stored())
        with self._connections.reading() as connection:
            known = set(connection.execute("SELECT collection, checkpoint, index FROM indexes").fetchall())
        used = {(collection, checkpoint) for collection, checkpoint, _ in known}
        for collection, checkpoint, number in stored:
            if (collection, checkpoint) in used and (collection, checkpoint, number) not in known:
                self._vectors.index(collection, checkpoint, number).drop()
        for collection, checkpoint in {(collection, checkpoint) for collection, checkpoint, _ in stored} - used:
            self._vectors.drop_checkpoint(collection, checkpoint)

    def _forget_rows(self, forget_after_s: float) -> None:
        """Remove the vectors of deleted images, as those who deleted them may not have come to it."""
        with self._connections.reading() as connection:
            deleted = connection.execute(
                "SELECT collection, row FROM deleted_rows"
                " WHERE since < clock_timestamp() - make_interval(secs => %s) AND NOT EXISTS"
                " (SELECT 1 FROM claims WHERE claims.collection = deleted_rows.collection"
                " AND row BETWEEN first_row AND last_row) LIMIT %s",
                (forget_after_s, MAX_FORGOTTEN),
            ).fetchall()
            rows: dict[int, list[int]] = defaultdict(list)
            for collection, row in deleted:
                rows[collection].append(row)
            indexes = connection.execute(
                "SELECT collection, checkpoint, index FROM indexes WHERE collection = ANY (%s)", (list(rows),)
            ).fetchall()
        for collection, checkpoint, number in indexes:
            self._vectors.index(collection, checkpoint, number).delete(np.array(rows[collection], dtype=np.int64))
        with self._connections.reading() as connection:
            for collection, some in rows.items():
                connection.execute(
                    "DELETE FROM deleted_rows WHERE collection = %s AND row = ANY (%s)", (collection, some)
                )
