"""The vectors of a collection's images under one condition, and the search in them.

Readers use the contents published at the moment and never wait; the writer publishes new contents after each change; a
deletion clears a bit that readers check. Shapes: Q queries, N vectors, E width, K answers, R rows.
"""

import threading
from dataclasses import dataclass, replace
from typing import Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from services.embed.collections.index.gpu import DeviceVectors, Gpu, first_gpu
from services.embed.collections.index.inverted_lists import MIN_LIST_SIZE, InvertedLists, trained, tuned
from services.embed.collections.index.vector_table import (
    Nearest,
    Rows,
    TableView,
    Vectors,
    VectorTable,
    merged,
    padded,
    scan,
    scan_positions,
    shifted,
)

# Centroids are used until there are this many times as many vectors as they were computed from.
MAX_GROWTH = 2.0
# A rebuild is due once this share of the vectors is dead, or is compared one by one because no list holds it.
MAX_DEAD_SHARE = 0.25
MAX_TAIL_SHARE = 0.1
# flat: every vector is compared. ivf: only those in the nearest inverted lists. hnsw: those that a graph leads to.
IndexKind = Literal["flat", "ivf", "hnsw"]


@dataclass(frozen=True, eq=False)
class Contents:
    """The images up to row `through`: vectors in a table, the first of them also in inverted lists if there are any.

    The first `num_judged` positions existed when it was last decided whether to use lists.
    """

    table: TableView
    through: int = 0
    lists: InvertedLists | None = None
    num_judged: int = 0

    def search(self, queries: Vectors, k: int, *, among: Rows | None, max_exact: int) -> Nearest:
        """Find at most k positions (Q, ≤ K) of live rows, all or `among`. Up to `max_exact` rows are all compared."""
        positions = None if among is None else self.table.live_positions(among)
        if self.lists is not None and (positions is None or len(positions) > max_exact):
            found = self._search_lists(self.lists, queries, k, positions)
            if found is not None:
                return found
        if positions is not None:
            return scan_positions(queries, self.table.vectors, positions, k)
        return self.scan_from(0, queries, k)

    def scan_from(self, start: int, queries: Vectors, k: int) -> Nearest:
        """Compare the queries with all live vectors from a position on that is a multiple of 8."""
        live = self.table.live
        selector = None
        if live.num_dead:
            selector = live.selector if start == 0 else faiss.IDSelectorBitmap(live.bits[start // 8 :])
        return shifted(scan(queries, self.table.vectors[start:], k, selector=selector), start)

    def _search_lists(self, lists: InvertedLists, queries: Vectors, k: int, positions: Rows | None) -> Nearest | None:
        if positions is None:
            found = lists.search(queries, self.table, k)
            if found is None or lists.size == len(self.table):
                return found
            return merged(found, self.scan_from(lists.size, queries, k), k)
        in_lists, behind = np.split(positions, [np.searchsorted(positions, lists.size)])
        found = lists.search(queries, self.table, k, among=in_lists)
        if found is None or not len(behind):
            return found
        return merged(found, scan_positions(queries, self.table.vectors, behind, k), k)


def compacted(seen: TableView, keep: NDArray[np.bool_]) -> VectorTable:
    """Make a new table of the positions of `keep`, bool (N,)."""
    table = VectorTable(seen.vectors.shape[1], int(keep.sum()))
    table.append(seen.rows[keep], seen.vectors[keep])
    return table


def catch_up(table: VectorTable, keep: NDArray[np.bool_], now: TableView) -> None:
    """Update a table that was compacted from the first positions of `now` to the state of `now`."""
    num_seen, num_kept = len(keep), int(keep.sum())
    is_dead = ~now.live.mask(len(now))
    table.append(now.rows[num_seen:], now.vectors[num_seen:])
    table.clear(np.flatnonzero(is_dead[:num_seen][keep]))
    table.clear(num_kept + np.flatnonzero(is_dead[num_seen:]))


def lists_for(
    table: TableView,
    old: InvertedLists | None,
    keep: NDArray[np.bool_],
    *,
    max_exact: int,
    min_recall: float,
    gpu: Gpu | None = None,
) -> InvertedLists | None:
    """Make inverted lists of a table without dead rows; None if it is small or they would not reach `min_recall`.

    `old` are lists of the table from which this one was compacted by `keep`; they are extended while they suffice.
    """
    if len(table) <= max(max_exact, MIN_LIST_SIZE):
        return None
    if old is not None and len(table) <= MAX_GROWTH * old.num_trained:
        extended = tuned(old.keeping(keep).extended(table), table, min_recall)
        if extended is not None:
            return extended
    return tuned(trained(table, gpu), table, min_recall)


@dataclass(frozen=True)
class IndexOptions:
    """Search is exact up to `max_exact` vectors, and beyond that if no approximate index reaches the recall@10 of
    `min_recall`. `device` cuda: on the GPU, if there is one, and exact for all vectors that fit into `max_device_bytes`
    of it."""

    max_exact: int = 50_000
    min_recall: float = 0.95
    device: Literal["cpu", "cuda"] = "cpu"
    max_device_bytes: int = 8 * 2**30


@dataclass(frozen=True, eq=False)
class Found:
    """Rows int64 (Q, K), best first, −1 where there are fewer than K; their cosines, float32 (Q, K), −∞ there."""

    rows: Rows
    scores: Vectors


class VectorIndex:
    """Unit vectors (N, E) by row, rows ascending. Any number of threads may search while others append, delete and
    rebuild; these three wait for each other only briefly, because a rebuild is published at its end."""

    def __init__(self, width: int, options: IndexOptions, *, gpu: Gpu | None = None) -> None:
        """Create an empty index. `gpu` overrides where it is searched."""
        self.width = width
        self.options = options
        if gpu is None and options.device == "cuda":
            gpu = first_gpu()
        self._device = None if gpu is None else DeviceVectors(gpu, width)
        self._max_exact = options.max_exact
        if gpu is not None:
            self._max_exact = max(options.max_exact, options.max_device_bytes // (4 * width))
        self._writing = threading.Lock()
        self._rebuilding = threading.Lock()
        self._table = VectorTable(width)
        self._contents = Contents(self._table.view)

    @classmethod
    def holding(cls, table: VectorTable, contents: Contents, options: IndexOptions) -> "VectorIndex":
        """Make an index of contents whose table is the current view of `table`, without lists that the options
        exclude."""
        index = cls(contents.table.vectors.shape[1], options)
        lists = contents.lists
        is_wanted = contents.table.num_live > index._max_exact
        if lists is not None and not (is_wanted and lists.recall >= options.min_recall):
            lists = None
        index._table = table
        lists = index._placed(lists)
        index._publish(replace(contents, lists=lists, num_judged=0 if lists is None else lists.size))
        return index

    @property
    def contents(self) -> Contents:
        """The currently published contents; later deletions are visible in them."""
        return self._contents

    @property
    def through(self) -> int:
        """The highest row that was added, even if deleted since; 0 initially."""
        return self._contents.through

    @property
    def rows(self) -> Rows:
        """Live rows, ascending, int64 (N,)."""
        return self._contents.table.live_rows()

    @property
    def num_vectors(self) -> int:
        """Number of live rows."""
        return self._contents.table.num_live

    @property
    def num_bytes(self) -> int:
        """Memory of the contents in bytes, including dead rows but not spare capacity."""
        contents = self._contents
        per_vector = 4 * self.width + 8
        return len(contents.table) * per_vector + (contents.lists.num_bytes if contents.lists else 0)

    @property
    def kind(self) -> IndexKind:
        return "flat" if self._contents.lists is None else "ivf"

    @property
    def is_exact(self) -> bool:
        """Whether every search compares every vector."""
        return self._contents.lists is None

    @property
    def recall_at_10(self) -> float | None:
        """The recall@10 measured when the inverted lists were made; None if there are none."""
        lists = self._contents.lists
        return None if lists is None else lists.recall

    @property
    def needs_rebuild(self) -> bool:
        """Whether many rows are dead, or many are not sorted into lists yet."""
        contents = self._contents
        size, num_dead = len(contents.table), contents.table.live.num_dead
        if num_dead > MAX_DEAD_SHARE * size:
            return True
        is_large = size - num_dead > self._max_exact
        return is_large and size - contents.num_judged > MAX_TAIL_SHARE * size

    def append(self, rows: Rows, vectors: Vectors, *, through: int) -> None:
        """Add rows (R,), ascending, with vectors (R, E); `through` may be beyond the last row. Raises ValueError."""
        rows, vectors = np.asarray(rows, np.int64), np.asarray(vectors, np.float32)
        with self._writing:
            known = self._contents.through
            is_ascending = bool((np.diff(rows, prepend=known, append=through + 1) > 0).all())
            if vectors.shape != (len(rows), self.width) or not is_ascending:
                raise ValueError(
                    f"rows must ascend within {known + 1} to {through}, with a vector of {self.width} numbers each; "
                    f"got {len(rows)} rows and vectors of shape {vectors.shape}"
                )
            self._table.append(rows, vectors)
            self._publish(replace(self._contents, table=self._table.view, through=through))

    def delete(self, row: int) -> None:
        """Delete a row; later searches do not find it. No error if it does not exist here."""
        with self._writing:
            self._table.clear(self._contents.table.live_positions(np.array([row])))

    def vectors(self, rows: Rows) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return vectors (R, E) of rows (R,), zeros for missing rows, and which rows exist, bool (R,)."""
        table = self._contents.table
        positions, is_held = table.find(np.asarray(rows, np.int64))
        vectors = np.zeros((len(positions), self.width), np.float32)
        vectors[is_held] = table.vectors[positions[is_held]]
        return vectors, is_held

    def search(self, queries: Vectors, k: int, *, among: Rows | None = None) -> Found:
        """Find the k nearest rows to unit vectors (Q, E), of all or of `among` (R,), ascending. Raises ValueError.

        Of rows with equal cosines, the lower one comes first.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.width or k < 1:
            raise ValueError(f"queries must have shape (Q, {self.width}) and k be positive; got {queries.shape}, {k}")
        faiss.omp_set_num_threads(1)  # of this thread's calls: requests run beside each other
        table, found = self._search(queries, k, among)
        found = padded(found, k)
        rows = np.full(found.positions.shape, -1, np.int64)
        is_found = found.positions >= 0
        rows[is_found] = table.rows[found.positions[is_found]]
        return Found(rows, found.scores)

    def rebuild(self) -> None:
        """Drop dead rows; sort the vectors into lists, or none if they are few. Takes seconds to minutes.

        Searches, appends and deletions continue meanwhile, and none of them is lost.
        """
        faiss.omp_set_num_threads(1)  # of this thread's calls: requests run beside each other
        with self._rebuilding:
            seen = self._contents
            keep = seen.table.live.mask(len(seen.table))
            compact = None if keep.all() else compacted(seen.table, keep)
            table = seen.table if compact is None else compact.view
            gpu = None if self._device is None else self._device.gpu
            made = lists_for(
                table, seen.lists, keep, max_exact=self._max_exact, min_recall=self.options.min_recall, gpu=gpu
            )
            lists = self._placed(made)
            with self._writing:
                if compact is not None:
                    catch_up(compact, keep, self._contents.table)
                    self._table = compact
                num_judged = len(table) if len(table) > self._max_exact else 0
                contents = Contents(self._table.view, self.through, lists, num_judged)
                self._publish(contents, is_compacted=compact is not None)

    def _search(self, queries: Vectors, k: int, among: Rows | None) -> tuple[TableView, Nearest]:
        """Search, and return positions in a table."""
        if self._device is not None:
            with self._device.gpu.lock:
                table = self._contents.table
                positions = None if among is None else table.live_positions(among)
                # none is held of what is too large, or is in lists
                is_held = self._device.num_vectors == len(table)
                held = self._device.search(queries, k, table, positions) if is_held else None
            if held is not None:
                return table, held
        contents = self._contents
        found = contents.search(queries, k, among=among, max_exact=self.options.max_exact)
        return contents.table, found

    def _placed(self, lists: InvertedLists | None) -> InvertedLists | None:
        """Copy lists to the GPU, if there is one."""
        if lists is None or self._device is None:
            return lists
        with self._device.gpu.lock:
            return lists.on_gpu(self._device.gpu)

    def _publish(self, contents: Contents, *, is_compacted: bool = False) -> None:
        """Publish new contents to readers, and update the device's vectors."""
        if self._device is None:
            self._contents = contents
            return
        with self._device.gpu.lock:
            has_room = contents.lists is None and len(contents.table) <= self._max_exact
            if is_compacted or not has_room:
                self._device.clear()
            if has_room:
                self._device.hold(contents.table.vectors)
            self._contents = contents
