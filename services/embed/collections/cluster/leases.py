"""Indexing shared by any number of processes: each leases rows for a while, and every row is leased until it is done.

An image of a collection is above the row up to which an index is handed out, in a lease, or indexed; each step between
these is one transaction. There is no entry for an image, so none can be lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.embed.collections.cluster.connections import Connection, Connections
from services.embed.collections.cluster.image_store import stored_conditions
from services.embed.collections.cluster.vectors import create_table, drop_indexes
from services.embed.collections.storage.catalog import no_collection
from services.embed.collections.storage.image_store import StoredCondition

# Rows in one lease.
LEASE_ROWS = 512

# The use of a checkpoint is noted at most so often.
NOTE_USE_EVERY_S = 600.0

PROGRESS = (
    "SELECT condition, index, through, CASE WHEN through < %s"
    " THEN (SELECT count(*) FROM images WHERE images.collection = indexes.collection AND row > through) ELSE 0 END,"
    " tuning"
    " FROM indexes CROSS JOIN LATERAL (SELECT least(handed_out, (SELECT min(first_row) - 1 FROM claims"
    " WHERE claims.collection = indexes.collection AND claims.checkpoint = indexes.checkpoint"
    " AND index = ANY (claims.indexes))) AS through) AS reached"
    " WHERE collection = %s AND checkpoint = %s ORDER BY index"
)


@dataclass(frozen=True)
class Lease:
    """Rows to index by one process: the images from `first_row` to `last_row` that exist, in each of `indexes`.

    `attempt` counts the processes that have leased them.
    """

    number: int
    first_row: int
    last_row: int
    indexes: Sequence[int]
    attempt: int


@dataclass(frozen=True)
class IndexProgress:
    """An index's number, the row up to which it has all images, how many it lacks, and how it is best searched."""

    number: int
    through: int
    num_waiting: int
    tuning: str | None


@dataclass(frozen=True)
class Progress:
    """A collection's newest row and number of images, its conditions in order, and the progress of each index."""

    last_row: int
    num_images: int
    conditions: Sequence[StoredCondition]
    indexes: Mapping[str, IndexProgress]


class IndexWork:
    """The indexes of one collection under one checkpoint. Thread-safe; all times are PostgreSQL's.

    `holder` names this process in the database. Methods raise what Connections raises.
    """

    def __init__(self, connections: Connections, collection: int, checkpoint: str, holder: str) -> None:
        self._connections = connections
        self._collection = collection
        self._checkpoint = checkpoint
        self._holder = holder

    def start_index(self, condition: str, width: int) -> int:
        """Return the number of a condition's index, which is made, for vectors of this width, if it does not exist."""
        key = (self._collection, self._checkpoint, condition)
        with self._connections.transaction() as connection:
            made = connection.execute(
                "INSERT INTO indexes (collection, checkpoint, condition) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
                " RETURNING index",
                key,
            ).fetchone()
            if made is not None:
                create_table(connection, made[0], width)
            found = (
                made
                or connection.execute(
                    "SELECT index FROM indexes WHERE collection = %s AND checkpoint = %s AND condition = %s", key
                ).fetchone()
            )
            return int(found[0]) if found else 0

    def drop_index(self, condition: str) -> None:
        """Remove an index; no error if there is none. Leases of its rows are of use to the other indexes only."""
        with self._connections.transaction() as connection:
            drop_indexes(
                connection,
                "collection = %s AND checkpoint = %s AND condition = %s",
                (self._collection, self._checkpoint, condition),
            )

    def note_use(self) -> None:
        """Keep the indexes of this checkpoint, which would be removed if no process served it any more."""
        with self._connections.reading() as connection:
            connection.execute(
                "UPDATE indexes SET used = clock_timestamp() WHERE collection = %s AND checkpoint = %s"
                " AND used < clock_timestamp() - make_interval(secs => %s)",
                (self._collection, self._checkpoint, NOTE_USE_EVERY_S),
            )

    def take(self, lease_s: float, num_rows: int = LEASE_ROWS) -> Lease | None:
        """Take rows that nobody is indexing for `lease_s` seconds; None if there are none at the moment.

        Indexes that are equally far behind get the same rows, so that each image is read once for all of them.
        """
        with self._connections.transaction() as connection:
            return self._take_over(connection, lease_s) or self._hand_out(connection, lease_s, num_rows)

    def renew(self, lease: Lease, lease_s: float) -> bool:
        """Keep a lease for `lease_s` seconds from now; False if another process has it."""
        with self._connections.reading() as connection:
            renewed = connection.execute(
                "UPDATE claims SET expires = clock_timestamp() + make_interval(secs => %s) WHERE claim = %s"
                " AND attempt = %s",
                (lease_s, lease.number, lease.attempt),
            )
            return renewed.rowcount == 1

    def finish(self, lease: Lease) -> bool:
        """End a lease once its vectors are stored; False if another process has it, which then stores the same."""
        with self._connections.reading() as connection:
            finished = connection.execute(
                "DELETE FROM claims WHERE claim = %s AND attempt = %s", (lease.number, lease.attempt)
            )
            return finished.rowcount == 1

    def note_tuning(self, number: int, tuning: str) -> None:
        """Keep how an index is best searched."""
        with self._connections.reading() as connection:
            connection.execute("UPDATE indexes SET tuning = %s WHERE index = %s", (tuning, number))

    def progress(self) -> Progress:
        """Return how far the indexes are. Raises NotFound for a deleted collection."""
        with self._connections.reading() as connection:
            found = connection.execute(
                "SELECT last_row, num_images, name, is_deleted FROM collections WHERE collection = %s",
                (self._collection,),
            ).fetchone()
            if found is None or found[3]:
                raise no_collection(found[2] if found else str(self._collection))
            # the newest row is read first, so an index that has it has all images up to it; conditions are read last,
            # because they are noted before their indexes
            indexes = connection.execute(PROGRESS, (found[0], self._collection, self._checkpoint)).fetchall()
            conditions = stored_conditions(connection, self._collection)
        progress = {condition: IndexProgress(*others) for condition, *others in indexes}
        return Progress(found[0], found[1], conditions, progress)

    def _take_over(self, connection: Connection, lease_s: float) -> Lease | None:
        """Take an expired lease; two processes never take the same."""
        found = connection.execute(
            "UPDATE claims SET holder = %s, attempt = attempt + 1,"
            " expires = clock_timestamp() + make_interval(secs => %s)"
            " WHERE claim = (SELECT claim FROM claims WHERE collection = %s AND checkpoint = %s"
            " AND expires < clock_timestamp() ORDER BY first_row LIMIT 1 FOR UPDATE SKIP LOCKED)"
            " RETURNING claim, first_row, last_row, indexes, attempt",
            (self._holder, lease_s, self._collection, self._checkpoint),
        ).fetchone()
        if found is None:
            return None
        number, first_row, last_row, indexes, attempt = found
        kept = connection.execute("SELECT index FROM indexes WHERE index = ANY (%s)", (indexes,)).fetchall()
        existing = {index for (index,) in kept}
        return Lease(number, first_row, last_row, [index for index in indexes if index in existing], attempt)

    def _hand_out(self, connection: Connection, lease_s: float, num_rows: int) -> Lease | None:
        """Lease the next rows of the indexes that are furthest behind, up to where the next ones are."""
        # others wait here, and then see what was handed out
        handed_out: dict[int, int] = dict(
            connection.execute(
                "SELECT index, handed_out FROM indexes WHERE collection = %s AND checkpoint = %s"
                " ORDER BY index FOR NO KEY UPDATE",
                (self._collection, self._checkpoint),
            ).fetchall()
        )
        (last,) = connection.execute(
            "SELECT last_row FROM collections WHERE collection = %s", (self._collection,)
        ).fetchone() or (0,)
        while handed_out and (start := min(handed_out.values())) < last:
            group = [index for index, row in handed_out.items() if row == start]
            end = min((row for row in handed_out.values() if row > start), default=last)
            rows = [
                row
                for (row,) in connection.execute(
                    "SELECT row FROM images WHERE collection = %s AND row > %s AND row <= %s ORDER BY row LIMIT %s",
                    (self._collection, start, end, num_rows),
                )
            ]
            if len(rows) == num_rows:
                end = rows[-1]
            connection.execute("UPDATE indexes SET handed_out = %s WHERE index = ANY (%s)", (end, group))
            if rows:
                return self._new_lease(connection, start + 1, end, group, lease_s)
            handed_out |= dict.fromkeys(group, end)  # all images there are deleted
        return None

    def _new_lease(
        self, connection: Connection, first_row: int, last_row: int, indexes: Sequence[int], lease_s: float
    ) -> Lease:
        found = connection.execute(
            "INSERT INTO claims (collection, checkpoint, first_row, last_row, indexes, holder, expires)"
            " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s)) RETURNING claim",
            (self._collection, self._checkpoint, first_row, last_row, list(indexes), self._holder, lease_s),
        ).fetchone()
        assert found is not None, "an insert returns its line"
        return Lease(found[0], first_row, last_row, indexes, attempt=1)
