"""The vectors of shared indexes in PostgreSQL by pgvector: a table for each index, beside the images that it is of.

A search compares all vectors or, once there are many, follows a graph (HNSW) of the halves of all but the newest, and
compares these. What the graph finds is compared again, so scores are exact either way.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.errors import UndefinedTable
from psycopg.pq import Format

from services.core.errors import Overloaded
from services.embed.collections.cluster.connections import Connection, Connections
from services.embed.collections.index.inverted_lists import RECALL_AT, fewest_lists, recall
from services.embed.collections.index.vector_index import Found, IndexKind, IndexOptions
from services.embed.collections.index.vector_table import Nearest, Rows, Vectors, merged, ordered

# pgvector's limits on the candidates of a search and on the width of a graph of halves.
MAX_CANDIDATES = 1000
MAX_GRAPH_WIDTH = 4000
# The widest vector that fits into a page of a table.
MAX_PLAIN_WIDTH = 2000
# A search looks at so many times as many candidates as results are wanted, at least. Half as many reached a recall of
# 0.95 for stored vectors, by which it is measured, and 0.94 for others.
CANDIDATES = 4
# Rows whose vectors are used to measure searches.
SAMPLE_SIZE = 64
# The graph is made again once this share of the rows came after it. Writing a vector into a graph takes about a hundred
# times as long as into the table alone, and comparing 2,000 about as long as a search of a graph.
MAX_TAIL_SHARE = 0.02
# A search of the graph goes on, best first, until it has found enough that the filter wants. What came after the graph
# is found by its row, even if PostgreSQL does not know yet how little that is.
SEARCH_GRAPH = (
    "SELECT set_config('hnsw.ef_search', %s, true), set_config('hnsw.iterative_scan', 'strict_order', true),"
    " set_config('enable_seqscan', 'off', true)"
)
# The graphs of a table, and whether each is complete.
GRAPHS = (
    "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
    " WHERE indrelid = to_regclass(%s) AND NOT indisprimary"
)
# The number of bigint among PostgreSQL's types.
BIGINT = 20


class IndexRemoved(Overloaded):
    """Another process has removed the index; whoever asks again gets a new one."""

    def __init__(self) -> None:
        super().__init__("The index of this condition was removed meanwhile.", code="index_removed")


class Encoded(bytes):
    """A value as PostgreSQL receives it."""


class EncodedDumper(Dumper):
    """Hands on what is encoded already."""

    format = Format.BINARY

    def dump(self, obj: Encoded) -> bytes:
        return bytes(obj)


psycopg.adapters.register_dumper(Encoded, EncodedDumper)


@dataclass(frozen=True)
class Tuning:
    """A search of the graph, of the rows up to `through`, looks at `num_candidates`, which find `recall` of the ten
    nearest. Without candidates searches are exact, as the graph does not find enough."""

    num_candidates: int
    recall: float | None
    through: int


class SharedVectors:
    """The unit vectors (N, E) of the index `number` by row, and how far it is; without a number, of none yet.

    Thread-safe. Methods raise IndexRemoved and what Connections raises.
    """

    def __init__(self, connections: Connections, number: int | None, width: int, options: IndexOptions) -> None:
        self.number = number
        self.through = 0
        self.num_vectors = 0
        self._connections = connections
        self._table = f"vectors_{number}"
        self._width = width
        self._options = options
        self._tuning: Tuning | None = None

    def take_over(self, through: int, num_vectors: int, tuning: str | None) -> None:
        """Note the progress of the index, and what `tune` has measured."""
        self.through = through
        self.num_vectors = num_vectors
        measured = {} if tuning is None else json.loads(tuning)
        # graphs of earlier versions held all rows, and are made again
        self._tuning = Tuning(**measured) if "through" in measured else None

    @property
    def num_bytes(self) -> int:
        return 4 * self._width * self.num_vectors

    @property
    def kind(self) -> IndexKind:
        return "flat" if self.is_exact else "hnsw"

    @property
    def is_exact(self) -> bool:
        return self._tuning is None or not self._tuning.num_candidates

    @property
    def recall_at_10(self) -> float | None:
        return None if self._tuning is None else self._tuning.recall

    @property
    def needs_tuning(self) -> bool:
        """Whether so many vectors are in no graph that `tune` may make searches faster."""
        if self.num_vectors <= self._options.max_exact or self._width > MAX_GRAPH_WIDTH:
            return False
        return self._tuning is None or self.through - self._tuning.through > MAX_TAIL_SHARE * self.num_vectors

    def search(self, queries: Vectors, k: int, *, among: Rows | None = None) -> Found:
        """Find the k nearest rows to unit vectors (Q, E), of all or of `among` (R,), in any order.

        Among up to `max_exact` rows all are compared. Of rows with the same cosine the lower one comes first.
        """
        tuning = self._tuning
        if tuning is None or not tuning.num_candidates or (among is not None and len(among) <= self._options.max_exact):
            found = self._compare_all(queries, k, among)
        else:
            found = self._search_graph(tuning, queries, k, among) or self._compare_all(queries, k, among)
        return Found(found.positions, found.scores)

    def vectors(self, rows: Rows) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return vectors (R, E) of rows (R,), zeros for missing rows, and which rows exist, bool (R,)."""
        vectors, is_held = np.zeros((len(rows), self._width), np.float32), np.zeros(len(rows), np.bool_)
        if self.number is None:
            return vectors, is_held
        with self._reading() as connection:
            found = connection.execute(
                f"SELECT place - 1, vector_send(vector) FROM {self._table}"
                " JOIN unnest(%s::bigint[]) WITH ORDINALITY AS wanted (row, place) USING (row)",
                (encoded_rows(rows),),
                binary=True,
            )
            for place, sent in found:
                vectors[place], is_held[place] = np.frombuffer(sent, ">f4", offset=4), True
        return vectors, is_held

    def tune(self, sample: Rows) -> str:
        """Make a graph of all rows, and measure how many candidates a search of it needs. Takes minutes.

        `sample` are rows chosen at random. Returns what `take_over` takes.
        """
        through = self.through
        self._make_graph(through)
        queries, is_held = self.vectors(sample)
        own, queries = sample[is_held], queries[is_held]
        # a result more than the recall is measured at, as each query finds itself
        best = self._compare_all(queries, RECALL_AT + 1, None)

        def recall_with(number: int) -> float:
            found = self._search_graph(Tuning(number, None, through), queries, RECALL_AT + 1, None)
            return 0.0 if found is None else recall(found, best, own)

        found = fewest_lists(
            recall_with, self._options.min_recall, at_least=CANDIDATES * RECALL_AT, at_most=MAX_CANDIDATES
        )
        num_candidates, reached = found or (0, None)
        return json.dumps(asdict(Tuning(num_candidates, reached, through)))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._connections.reading() as connection:
            try:
                yield connection
            except UndefinedTable as error:
                raise IndexRemoved from error

    def _make_graph(self, through: int) -> None:
        """Make the graph of the rows up to one while others write, and remove what came before it.

        Searches by an earlier one follow the new one instead. What an interrupted attempt left is removed first.
        """
        graph = f"{self._table}_graph_{through}"
        with self._reading() as connection:
            earlier = connection.execute(GRAPHS, (self._table,)).fetchall()
            for name in [name for name, is_complete in earlier if not is_complete]:
                connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            connection.execute(
                f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {graph} ON {self._table}"
                f" USING hnsw ((vector::halfvec({self._width})) halfvec_ip_ops) WHERE row <= {through}"
            )
            for name in [name for name, is_complete in earlier if is_complete and name != graph]:
                connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")

    def _search_graph(self, tuning: Tuning, queries: Vectors, k: int, among: Rows | None) -> Nearest | None:
        """Search the graph, and compare what came after it. None if it found too few, as its search has a limit."""
        through, halves = tuning.through, f"halfvec({self._width})"
        early, late = (None, None) if among is None else (among[among <= through], among[among > through])
        in_graph = (
            f"(SELECT * FROM {self._rows(f'row <= {through}', early)}"
            f" ORDER BY vector::{halves} <#> %(query)s::vector::{halves} LIMIT %(k)s) AS near"
        )
        parts = [(in_graph, early), (self._rows(f"row > {through}", late), late)]
        num_candidates = min(MAX_CANDIDATES, max(tuning.num_candidates, CANDIDATES * k))
        found, others = self._ask(queries, k, parts, num_candidates)
        return None if (found.positions < 0).any() else merged(found, others, k)

    def _compare_all(self, queries: Vectors, k: int, among: Rows | None) -> Nearest:
        (found,) = self._ask(queries, k, [(self._rows("true", among), among)])
        return found

    def _rows(self, which: str, among: Rows | None) -> str:
        return f"{self._table} WHERE {which}" + ("" if among is None else " AND row = ANY (%(among)s::bigint[])")

    def _ask(
        self, queries: Vectors, k: int, parts: Sequence[tuple[str, Rows | None]], num_candidates: int = 0
    ) -> list[Nearest]:
        """Find the nearest rows (Q, k) in each part of the table, −1 where there are fewer. A part is what to select
        from, and the rows of its filter; with candidates it may be the graph."""
        found = [(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)) for _ in parts]
        if self.number is None:
            return [Nearest(*part) for part in found]
        with self._reading() as connection, connection.pipeline(), connection.transaction():
            if num_candidates:
                connection.execute(SEARCH_GRAPH, (str(num_candidates),))
            answers = [_nearest(connection, source, queries, k, among) for source, among in parts]
            for (positions, scores), answer in zip(found, answers, strict=True):
                for place, cursor in enumerate(answer):
                    for rank, (row, score) in enumerate(cursor):
                        positions[place, rank], scores[place, rank] = row, score
        return [ordered(*part) for part in found]


def _nearest(
    connection: Connection, source: str, queries: Vectors, k: int, among: Rows | None
) -> list[psycopg.Cursor[tuple[Any, ...]]]:
    """Ask for the nearest of a part to each query, in a pipeline."""
    # with an offset the vectors are compared here, before they are sorted, and not by the graph
    statement = (
        f"SELECT row, -score FROM (SELECT row, vector <#> %(query)s::vector AS score FROM {source} OFFSET 0)"
        " AS scored ORDER BY score, row LIMIT %(k)s"
    )
    given: dict[str, Any] = {"k": k} if among is None else {"k": k, "among": encoded_rows(among)}
    # planned for its filter each time, as a plan for any filter is slow
    return [
        connection.execute(statement, given | {"query": encoded(query)}, prepare=False, binary=True)
        for query in queries
    ]


def create_table(connection: Connection, number: int, width: int) -> None:
    """Make the table of an index, in the transaction that notes the index."""
    connection.execute(f"CREATE TABLE vectors_{number} (row bigint PRIMARY KEY, vector vector({width}) NOT NULL)")
    # vectors do not compress
    storage = "PLAIN" if width <= MAX_PLAIN_WIDTH else "EXTERNAL"
    connection.execute(f"ALTER TABLE vectors_{number} ALTER vector SET STORAGE {storage}")


def drop_indexes(connection: Connection, which: str, given: Sequence[object]) -> None:
    """Remove indexes with their vectors, in a transaction; `which` is a condition on the table `indexes`."""
    for (number,) in connection.execute(f"DELETE FROM indexes WHERE {which} RETURNING index", given).fetchall():
        connection.execute(f"DROP TABLE vectors_{number}")


def store_vectors(connections: Connections, collection: int, rows: Rows, vectors: Mapping[int, Vectors]) -> None:
    """Add vectors (R, E) of rows (R,), or replace them, by the number of the index.

    Images that are deleted and indexes that are removed are left out: whoever removes one waits for the others here,
    and then removes what they wrote.
    """
    with connections.transaction() as connection:
        images = connection.execute(
            "SELECT row FROM images WHERE collection = %s AND row = ANY (%s::bigint[]) ORDER BY row FOR KEY SHARE",
            (collection, encoded_rows(rows)),
        ).fetchall()
        places = np.flatnonzero(np.isin(rows, [row for (row,) in images]))
        for number in _kept(connection, "index = ANY (%s)", (list(vectors),)):
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO vectors_{number} VALUES (%s, %s::vector)"
                    " ON CONFLICT (row) DO UPDATE SET vector = excluded.vector",
                    [(int(rows[place]), encoded(vectors[number][place])) for place in places],
                )


def delete_vectors(connection: Connection, collection: int, row: int) -> None:
    """Remove an image's vectors, in the transaction that has deleted the image."""
    for number in _kept(connection, "collection = %s", (collection,)):
        connection.execute(f"DELETE FROM vectors_{number} WHERE row = %s", (row,))


def _kept(connection: Connection, which: str, given: Sequence[object]) -> list[int]:
    """Return the numbers of those indexes that exist, and keep others from removing them until the transaction ends."""
    found = connection.execute(f"SELECT index FROM indexes WHERE {which} ORDER BY index FOR KEY SHARE", given)
    return [number for (number,) in found.fetchall()]


def encoded(vector: Vectors) -> Encoded:
    """Encode a vector (E,) as pgvector receives one."""
    return Encoded(struct.pack(">hh", len(vector), 0) + vector.astype(">f4").tobytes())


def encoded_rows(rows: Rows) -> Encoded:
    """Encode rows (R,) as a bigint[], which for many rows is much faster than a list."""
    elements = np.empty(len(rows), [("size", ">i4"), ("row", ">i8")])
    elements["size"], elements["row"] = 8, rows
    return Encoded(struct.pack(">iiIii", 1, 0, BIGINT, len(rows), 1) + elements.tobytes())
