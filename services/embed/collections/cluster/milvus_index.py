"""The vectors of all shared collections in one Milvus: a partition for each condition, with the promises of
`VectorIndex`.

Milvus takes 6 µs to read each row of an expression, whatever the vectors. Where most rows are wanted it is cheaper to
ask for more results and drop the others, which is exact if the search is: the best k of the wanted rows are with the
best of all rows as soon as k of them are.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient
from pymilvus.client.types import LoadState

from services.core.errors import Overloaded
from services.embed.collections.cluster.milvus import (
    TIMEOUT_S,
    MilvusVectors,
    Partition,
    VectorsUnreachable,
    drop,
    drop_checkpoint,
    partitions,
    reason_of,
)
from services.embed.collections.cluster.vectors import VectorsLost
from services.embed.collections.index.inverted_lists import RECALL_AT, fewest_lists, recall
from services.embed.collections.index.vector_index import Found, IndexOptions
from services.embed.collections.index.vector_table import Nearest, Rows, Vectors, merged, ordered, padded

KEY, VECTOR = "id", "vector"
# Bytes of the vectors in one message, in both directions.
MESSAGE_BYTES = 2**21
# Row numbers looked at by one request for rows; Milvus's own limit on the rows that an answer may have.
PAGE_ROWS = 16_384
# Milvus's limit on the results of one search.
MAX_K = 16_384
# The recall is measured with this many vectors, as many at a time as one request has time for.
SAMPLE_SIZE = 64
SAMPLE_PIECE = 8
# Milvus makes its lists in the background; small segments get none, and every search reads all of them.
BUILD_TIMEOUT_S = 3600.0
POLL_S = 0.5
MIN_SEGMENT_ROWS = 1024
# Once an index has grown by this factor its recall is measured again.
MAX_GROWTH = 2.0
# Rows in one expression.
PIECE_ROWS = 8192
# As many times the expected number of results are asked for, as wanted rows are not spread evenly.
SURPLUS = 2.0
SURPLUS_RESULTS = 50
# Measured: seconds for a row in an expression, and for a number of a vector that is compared.
EXPRESSION_S = 6e-6
COMPARISON_S = 4e-10
# Lists in each of Milvus's segments. A search that reads all of them is exact.
NUM_LISTS = 1024
# If more would have to be read, the search is exact instead.
MAX_LISTS = NUM_LISTS // 4
# More results lie in more lists, such as those from which a filter leaves ten; so it is measured at this number too.
DEEP_RECALL_AT = 250
# Lists are read that hold this many times as many vectors as results are wanted.
CANDIDATES = 4
# Part of the database's identity by which its vectors are told from those of others in the same Milvus.
IDENTITY_CHARACTERS = 12


@dataclass(frozen=True)
class Tuning:
    """A search reads `num_lists` in each segment, which finds `recall` of the ten nearest; `num_vectors` there were
    when this was measured. `deep_lists` find as much of the DEEP_RECALL_AT nearest. With NUM_LISTS and no recall, the
    search is exact."""

    num_lists: int
    recall: float | None
    num_vectors: int
    deep_lists: int = NUM_LISTS

    @property
    def is_exact(self) -> bool:
        return self.num_lists >= NUM_LISTS

    def lists_for(self, k: int) -> int:
        """Compute how many lists to read for k results: for other numbers than those measured, by log k."""
        if self.is_exact:
            return NUM_LISTS
        depth = max(0.0, math.log(k / RECALL_AT) / math.log(DEEP_RECALL_AT / RECALL_AT))
        for_recall = math.ceil(self.num_lists + depth * (self.deep_lists - self.num_lists))
        for_results = -(-CANDIDATES * k * NUM_LISTS // self.num_vectors)
        return min(NUM_LISTS, max(for_recall, for_results))


class MilvusIndex:
    """Unit vectors (N, E) by row. Thread-safe; any number of processes may use the same vectors.

    A search finds whatever was written before it began, by any process, for which Milvus waits until it knows of all
    writes: some 0.3 s. After `take_over` it waits only for what this process wrote or was told of. `tuning` tells how
    many lists are read; without one, searches are exact. Methods raise what MilvusVectors raises; VectorsLost if there
    is no such index, until `create`.
    """

    def __init__(self, vectors: MilvusVectors, partition: Partition, width: int, options: IndexOptions) -> None:
        self.partition = partition
        self.width = width
        self.options = options
        self.tuning: Tuning | None = None
        self._vectors = vectors
        self._written = 0
        self._is_following = False

    def create(self) -> None:
        """Make room for the vectors, if there is none yet, and let Milvus answer searches for them.

        For the first condition of a checkpoint this takes seconds, for others milliseconds.
        """
        collection, name = self.partition.milvus_collection, self.partition.name

        def create(milvus: MilvusClient) -> None:
            if not milvus.has_collection(collection, timeout=TIMEOUT_S):
                # one shard: segments, not shards, spread the work of a search
                milvus.create_collection(collection, schema=self._schema(), num_shards=1, timeout=TIMEOUT_S)
            if milvus.get_load_state(collection, timeout=TIMEOUT_S)["state"] != LoadState.Loaded:
                milvus.create_index(collection, _lists(milvus), timeout=TIMEOUT_S)
                milvus.load_collection(collection, timeout=6 * TIMEOUT_S)
            milvus.create_partition(collection, name, timeout=TIMEOUT_S)
            milvus.load_partitions(collection, [name], timeout=6 * TIMEOUT_S)

        self._vectors.run("make room for vectors", create)

    def drop(self) -> None:
        """Drop the vectors; no error if there are none."""
        drop(self._vectors, self.partition)

    def take_over(self, written: int, tuning: str | None) -> None:
        """Let later searches find what was written up to a moment, which `upsert` or `delete` of any process returned,
        and no longer wait for writes that this process was not told of; and search as `tune` has measured."""
        self._is_following = True
        self._written = max(self._written, written)
        self.tuning = None if tuning is None else Tuning(**json.loads(tuning))

    @property
    def is_there(self) -> bool:
        """Whether there is a place for the vectors."""
        collection, name = self.partition.milvus_collection, self.partition.name
        try:
            return bool(
                self._vectors.run(
                    "look for vectors", lambda milvus: milvus.has_partition(collection, name, timeout=TIMEOUT_S)
                )
            )
        except VectorsLost:
            return False

    @property
    def num_vectors(self) -> int:
        """Ask for the number of vectors; 0 if there is no such index."""
        try:
            ((counted,),) = (line.values() for line in self._query("", ["count(*)"]))
        except VectorsLost:
            return 0
        return int(counted)

    @property
    def kind(self) -> Literal["flat", "ivf"]:
        """flat: every vector is compared. ivf: only those in the nearest lists."""
        return "flat" if self.is_exact else "ivf"

    @property
    def is_exact(self) -> bool:
        """Whether every search compares every vector."""
        return self.tuning is None or self.tuning.is_exact

    @property
    def recall_at_10(self) -> float | None:
        """The recall@10 that was measured; None if searches are exact."""
        return None if self.tuning is None else self.tuning.recall

    def needs_tuning(self, num_vectors: int) -> bool:
        """Whether there are so many vectors that `tune` may make searches faster, or that it was too long ago."""
        if num_vectors <= self.options.max_exact:
            return False
        return self.tuning is None or num_vectors > MAX_GROWTH * self.tuning.num_vectors

    def upsert(self, rows: Rows, vectors: Vectors) -> int:
        """Store vectors (R, E) for rows (R,), in place of those that they have; repeating it changes nothing.

        Returns the moment that `take_over` takes. Raises ValueError.
        """
        rows, vectors = np.asarray(rows, np.int64), np.asarray(vectors, np.float32)
        if vectors.shape != (len(rows), self.width):
            raise ValueError(f"vectors must have shape ({len(rows)}, {self.width}), not {vectors.shape}")
        keys = self.partition.keys(rows).tolist()
        for piece in _pieces(len(rows), MESSAGE_BYTES // (4 * self.width)):
            lines = [{KEY: key, VECTOR: vector} for key, vector in zip(keys[piece], vectors[piece], strict=True)]
            self._vectors.run(
                "store vectors",
                partial(MilvusClient.upsert, data=lines, **self._partition(), timeout=TIMEOUT_S),
            )
        return self._note_change()

    def delete(self, rows: Rows) -> int:
        """Delete rows (R,); no error for those that do not exist, or if all are lost. Returns the moment that
        `take_over` takes."""
        keys = self.partition.keys(np.asarray(rows, np.int64))
        try:
            for piece in _pieces(len(keys), PIECE_ROWS):
                self._vectors.run(
                    "delete vectors",
                    partial(MilvusClient.delete, filter=_among(keys[piece]), **self._partition(), timeout=TIMEOUT_S),
                )
        except VectorsLost:
            return self._written
        return self._note_change()

    def rows(self, first: int, last: int) -> Rows:
        """Return the rows from `first` to `last` that have a vector, ascending, int64 (R,)."""
        found = [np.zeros(0, np.int64)]
        for start in range(first, last + 1, PAGE_ROWS):
            low, high = self.partition.keys(np.array([start, min(start + PAGE_ROWS - 1, last)]))
            lines = self._query(f"{low} <= {KEY} and {KEY} <= {high}", [KEY])
            found.append(np.sort(np.array([line[KEY] for line in lines], np.int64)))
        return self.partition.rows(np.concatenate(found))

    def vectors(self, rows: Rows) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return vectors (R, E) of rows (R,), zeros for missing rows, and which rows exist, bool (R,)."""
        keys = self.partition.keys(np.asarray(rows, np.int64))
        vectors, is_held = np.zeros((len(keys), self.width), np.float32), np.zeros(len(keys), np.bool_)
        for piece in _pieces(len(keys), MESSAGE_BYTES // (4 * self.width)):
            lines = self._query(_among(keys[piece]), [KEY, VECTOR])
            held = {line[KEY]: line[VECTOR] for line in lines}
            for position, key in enumerate(keys[piece].tolist(), start=piece.start):
                if key in held:
                    vectors[position], is_held[position] = held[key], True
        return vectors, is_held

    def search(self, queries: Vectors, k: int, *, among: Rows | None = None) -> Found:
        """Find the k nearest rows to unit vectors (Q, E), of all or of `among` (R,), in any order. Raises ValueError.

        Among up to `options.max_exact` rows all are compared. Which of several rows with the same cosine are found is
        not defined; of those found, the lower one comes first.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.width or not 1 <= k <= MAX_K:
            raise ValueError(
                f"queries must have shape (Q, {self.width}) and k be from 1 to {MAX_K}; got {queries.shape}, {k}"
            )
        found = self._search_all(queries, k) if among is None else self._search_among(queries, k, among)
        found = padded(found, k)
        return Found(found.positions, found.scores)

    def tune(self, sample: Rows) -> str:
        """Wait until Milvus has sorted the vectors into lists, and measure how many of them searches have to read.

        `sample` are rows chosen at random, of which the first 64 that exist are used as queries. Takes minutes. Returns
        what `take_over` takes.
        """
        self.tuning = self._measure(sample)
        return json.dumps(asdict(self.tuning))

    def _measure(self, sample: Rows) -> Tuning:
        num_vectors = self.num_vectors
        if num_vectors <= self.options.max_exact:
            return exact(num_vectors)
        self._wait_for_lists()
        queries, is_held = self.vectors(sample)
        own, queries = np.asarray(sample, np.int64)[is_held][:SAMPLE_SIZE], queries[is_held][:SAMPLE_SIZE]
        if not len(own):
            raise ValueError("none of the rows in the sample exists")
        # a result more than the recall is measured at, as each query finds itself
        best = self._sampled(queries, DEEP_RECALL_AT + 1, NUM_LISTS)

        def recall_with(num_lists: int, depth: int) -> float:
            wanted = Nearest(best.positions[:, : depth + 1], best.scores[:, : depth + 1])
            return recall(self._sampled(queries, depth + 1, num_lists), wanted, own)

        return tuned(recall_with, self.options.min_recall, num_vectors)

    def _search_all(self, queries: Vectors, k: int) -> Nearest:
        num_lists = self._num_lists(k)
        found = self._ask(queries, k, num_lists)
        # few vectors in the nearest lists: with fewer than k in all, nothing more is found
        is_short = found.positions.shape[1] < k or (found.positions < 0).any()
        return self._ask(queries, k, NUM_LISTS) if is_short and num_lists < NUM_LISTS else found

    def _search_among(self, queries: Vectors, k: int, among: Rows) -> Nearest:
        among = np.unique(np.asarray(among, np.int64))
        if len(among) > PIECE_ROWS and (more := self._search_more(queries, k, among)) is not None:
            return more
        found = Nearest(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32))
        for piece in _pieces(len(among), PIECE_ROWS):
            keys = self.partition.keys(among[piece])
            found = merged(found, self._ask(queries, k, NUM_LISTS, _among(keys)), k)
        return found

    def _search_more(self, queries: Vectors, k: int, among: Rows) -> Nearest | None:
        """Find so many of all rows that k of `among` should be with them; None if they are not, or if asking for
        `among` itself is cheaper."""
        num_vectors = self.num_vectors
        wanted = math.ceil(SURPLUS * k * num_vectors / len(among)) + SURPLUS_RESULTS
        may_approximate = len(among) > self.options.max_exact
        num_lists = self._num_lists(wanted) if may_approximate else NUM_LISTS
        scan_is_cheaper = num_vectors * self.width * COMPARISON_S < len(among) * EXPRESSION_S
        if wanted > min(MAX_K, num_vectors) or (num_lists == NUM_LISTS and not scan_is_cheaper):
            return None
        return only(self._ask(queries, wanted, num_lists), among, k)

    def _num_lists(self, k: int) -> int:
        return NUM_LISTS if self.tuning is None else self.tuning.lists_for(k)

    def _sampled(self, queries: Vectors, k: int, num_lists: int) -> Nearest:
        pieces = [
            padded(self._ask(queries[piece], k, num_lists, timeout_s=6 * TIMEOUT_S), k)
            for piece in _pieces(len(queries), SAMPLE_PIECE)
        ]
        return Nearest(np.concatenate([p.positions for p in pieces]), np.concatenate([p.scores for p in pieces]))

    def _ask(
        self, queries: Vectors, k: int, num_lists: int, expression: str = "", *, timeout_s: float = TIMEOUT_S
    ) -> Nearest:
        """Let Milvus search. Returns rows, at most k."""
        if not len(queries):
            return Nearest(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))
        answers = self._vectors.run(
            "search vectors",
            lambda milvus: milvus.search(
                self.partition.milvus_collection,
                data=list(queries),
                anns_field=VECTOR,
                filter=expression,
                limit=k,
                search_params={"metric_type": "IP", "params": {"nprobe": num_lists}},
                partition_names=[self.partition.name],
                timeout=timeout_s,
                **self._consistency(),
            ),
        )
        size = max((len(hits) for hits in answers), default=0)
        keys, scores = np.full((len(queries), size), -1, np.int64), np.full((len(queries), size), -np.inf, np.float32)
        for number, hits in enumerate(answers):
            keys[number, : len(hits)] = [hit[KEY] for hit in hits]
            scores[number, : len(hits)] = [hit["distance"] for hit in hits]
        return ordered(np.where(keys >= 0, self.partition.rows(keys), -1), scores)

    def _query(self, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = self._vectors.run(
            "read vectors",
            lambda milvus: milvus.query(
                self.partition.milvus_collection,
                filter=expression,
                output_fields=fields,
                partition_names=[self.partition.name],
                timeout=TIMEOUT_S,
                **self._consistency(),
            ),
        )
        return lines

    def _note_change(self) -> int:
        """Return a moment by Milvus's clock, after everything that it has acknowledged."""
        moment: int = self._vectors.run(
            # the moments that Milvus returns with changes are not those of deletions
            "tell the time",
            lambda milvus: milvus._get_connection().alloc_timestamp(timeout=TIMEOUT_S),
        )
        self._written = max(self._written, moment)
        return moment

    def _partition(self) -> dict[str, Any]:
        return {"collection_name": self.partition.milvus_collection, "partition_name": self.partition.name}

    def _consistency(self) -> dict[str, Any]:
        if not self._is_following:
            return {"consistency_level": "Strong"}
        # Milvus's number for "no earlier than now" is 0, for "whatever there is" 1
        return {"consistency_level": "Customized", "guarantee_timestamp": max(1, self._written)}

    def _wait_for_lists(self) -> None:
        """Wait until every large segment that Milvus searches has lists; otherwise searches of a sample would be
        exact, however few lists they read. Raises VectorsUnreachable if it takes too long."""
        name = self.partition.milvus_collection
        self._vectors.run("flush vectors", lambda milvus: milvus.flush(name, timeout=12 * TIMEOUT_S))
        give_up = time.monotonic() + BUILD_TIMEOUT_S
        while not self._has_lists():
            if time.monotonic() > give_up:
                raise VectorsUnreachable
            time.sleep(POLL_S)  # Milvus tells nobody when it is done

    def _has_lists(self) -> bool:
        """Whether every large segment that was flushed is searched by lists. Those not loaded yet are not."""
        name = self.partition.milvus_collection
        loaded, flushed = self._vectors.run(
            "list segments",
            lambda milvus: (
                milvus.list_loaded_segments(name, timeout=TIMEOUT_S),
                milvus.list_persistent_segments(name, timeout=TIMEOUT_S),
            ),
        )
        with_lists = {segment.segment_id for segment in loaded if segment.index_name}
        return all(segment.segment_id in with_lists or segment.num_rows < MIN_SEGMENT_ROWS for segment in flushed)

    def _schema(self) -> Any:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(KEY, DataType.INT64, is_primary=True)
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=self.width)
        return schema


class MilvusDatabase:
    """A VectorDatabase; `identity` is that of the database to which the vectors belong."""

    def __init__(self, url: str, identity: str, options: IndexOptions) -> None:
        """`url` may have a user and a password, which are sent as Milvus's token."""
        self._vectors = MilvusVectors(url)
        self._prefix = f"{identity[:IDENTITY_CHARACTERS]}_"
        self._options = options

    def problem(self) -> str:
        try:
            self._vectors.run("list collections", lambda milvus: milvus.list_collections(timeout=TIMEOUT_S))
        except Overloaded as error:
            return reason_of(error.__cause__ or error)
        except (OSError, ValueError) as error:
            return reason_of(error)
        return ""

    def index(self, collection: int, checkpoint: str, number: int, width: int = 0) -> MilvusIndex:
        partition = Partition(collection, self._prefix + checkpoint, str(number))
        return MilvusIndex(self._vectors, partition, width, self._options)

    def stored(self) -> Iterable[tuple[int, str, int]]:
        return [
            (one.collection, one.checkpoint.removeprefix(self._prefix), int(one.condition))
            for one in partitions(self._vectors)
            if one.checkpoint.startswith(self._prefix) and one.condition.isdecimal()
        ]

    def drop_checkpoint(self, collection: int, checkpoint: str) -> None:
        drop_checkpoint(self._vectors, collection, self._prefix + checkpoint)

    def close(self) -> None:
        self._vectors.close()


def exact(num_vectors: int) -> Tuning:
    """Describe a search that compares all vectors."""
    return Tuning(NUM_LISTS, None, num_vectors)


def tuned(recall_with: Callable[[int, int], float], min_recall: float, num_vectors: int) -> Tuning:
    """Find the smallest numbers of lists that reach `min_recall`; an exact search if none up to MAX_LISTS does.

    `recall_with` measures with so many lists the recall of so many nearest.
    """
    found = fewest_lists(lambda lists: recall_with(lists, RECALL_AT), min_recall, at_most=MAX_LISTS)
    if found is None:
        return exact(num_vectors)
    deep = fewest_lists(
        lambda lists: recall_with(lists, DEEP_RECALL_AT), min_recall, at_least=found[0], at_most=MAX_LISTS
    )
    return Tuning(found[0], found[1], num_vectors, deep[0] if deep is not None else NUM_LISTS)


def only(found: Nearest, wanted: Rows, k: int) -> Nearest | None:
    """Keep the k best results that are in `wanted`, ascending; None if a query has fewer."""
    places = np.minimum(np.searchsorted(wanted, found.positions), len(wanted) - 1)
    is_wanted = (wanted[places] == found.positions) & (found.positions >= 0)
    if (is_wanted.sum(axis=1) < k).any():
        return None
    rest = ordered(np.where(is_wanted, found.positions, -1), found.scores.copy())
    return Nearest(rest.positions[:, :k], rest.scores[:, :k])


def _among(keys: Rows) -> str:
    """Write an expression for these primary keys."""
    return f"{KEY} in {keys.tolist()}"


def _lists(milvus: MilvusClient) -> Any:
    """Describe the index: lists of whole vectors, so that a search that reads all lists is exact."""
    parameters = milvus.prepare_index_params()
    parameters.add_index(VECTOR, index_type="IVF_FLAT", metric_type="IP", params={"nlist": NUM_LISTS})
    return parameters


def _pieces(size: int, piece: int) -> Iterator[slice]:
    return (slice(start, min(start + piece, size)) for start in range(0, size, piece))
