"""An index in PostgreSQL with the images that it is of, for tests and benchmarks."""

from services.embed.collections.cluster.connections import Connections
from services.embed.collections.cluster.leases import IndexWork
from services.embed.collections.cluster.vectors import SharedVectors, delete_vectors, store_vectors
from services.embed.collections.index.vector_index import IndexOptions
from services.embed.collections.index.vector_table import Rows, Vectors

OPTIONS = IndexOptions()


class ClusterIndex:
    """The index of a collection of its own, in which an image for each vector is made."""

    def __init__(self, connections: Connections, width: int, options: IndexOptions = OPTIONS) -> None:
        self.connections = connections
        with connections.transaction() as connection:
            (self.collection,) = connection.execute(
                "INSERT INTO collections (tenant, name, model, created)"
                " VALUES ('default', gen_random_uuid()::text, 'model', 0) RETURNING collection"
            ).fetchone() or (0,)
            connection.execute("INSERT INTO contents VALUES (%s, 'digest', 1, 'key')", (self.collection,))
        self.work = IndexWork(connections, self.collection, "checkpoint", "tests")
        self.number = self.work.start_index("plain", width)
        self.index = SharedVectors(connections, self.number, width, options)
        self.search, self.vectors = self.index.search, self.index.vectors

    @property
    def is_exact(self) -> bool:
        return self.index.is_exact

    def add_images(self, rows: Rows) -> None:
        with self.connections.reading() as connection:
            connection.execute(
                "INSERT INTO images SELECT %s, row, row::text, 'digest', 0, 'null', 'null' FROM unnest(%s::bigint[])"
                " AS one (row) ON CONFLICT DO NOTHING",
                (self.collection, rows.tolist()),
            )

    def add(self, rows: Rows, vectors: Vectors) -> None:
        self.add_images(rows)
        self.store(rows, vectors)

    def store(self, rows: Rows, vectors: Vectors) -> None:
        store_vectors(self.connections, self.collection, rows, {self.number: vectors})

    def delete(self, rows: list[int]) -> None:
        for row in rows:
            with self.connections.transaction() as connection:
                connection.execute("DELETE FROM images WHERE collection = %s AND row = %s", (self.collection, row))
                delete_vectors(connection, self.collection, row)

    def rows(self) -> list[int]:
        with self.connections.reading() as connection:
            found = connection.execute(f"SELECT row FROM vectors_{self.number} ORDER BY row").fetchall()
            return [row for (row,) in found]
