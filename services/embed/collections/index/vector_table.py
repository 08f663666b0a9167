"""Vectors in row order, and exact search in them.

One writer appends and marks rows as dead, readers use views and never wait. FAISS reads the vectors in place; nothing
is copied. Shapes: Q queries, N vectors, E width, K answers, C candidates, R rows.
"""

from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
GROWTH = 1.5
MIN_CAPACITY = 1024


@dataclass(frozen=True, eq=False)
class Nearest:
    """Positions in a matrix, int64 (Q, K), best first, −1 if there are fewer; scores, float32 (Q, K), −∞ for these.

    Of equal scores the lower position comes first.
    """

    positions: Rows
    scores: Vectors


def scan(queries: Vectors, vectors: Vectors, k: int, *, selector: Any = None) -> Nearest:
    """Compare queries (Q, E) with all vectors (N, E), or with those in a FAISS selector of positions."""
    found = _empty(len(queries), min(k, len(vectors)))
    if found.positions.size:
        num_queries, width = queries.shape
        faiss.knn_inner_product(
            faiss.swig_ptr(queries),
            faiss.swig_ptr(vectors),
            width,
            num_queries,
            len(vectors),
            found.positions.shape[1],
            faiss.swig_ptr(found.scores),
            faiss.swig_ptr(found.positions),
            selector,
        )
    return _settled(found)


def scan_positions(queries: Vectors, vectors: Vectors, positions: Rows, k: int) -> Nearest:
    """Compare queries (Q, E) with the vectors at some positions: the same for all queries (C,), or different for each
    query (Q, C), possibly ending in −1s."""
    num_candidates = positions.shape[-1]
    found = _empty(len(queries), min(k, num_candidates))
    if found.positions.size:
        num_queries, width = queries.shape
        faiss.knn_inner_products_by_idx(
            faiss.swig_ptr(queries),
            faiss.swig_ptr(vectors),
            faiss.swig_ptr(positions),
            width,
            num_queries,
            len(vectors),
            num_candidates,
            found.positions.shape[1],
            faiss.swig_ptr(found.scores),
            faiss.swig_ptr(found.positions),
            num_candidates if positions.ndim == 2 else 0,
        )
    return _settled(found)


def merged(first: Nearest, second: Nearest, k: int) -> Nearest:
    """Merge two searches of different positions into the k best."""
    positions = np.concatenate([first.positions, second.positions], axis=1)
    scores = np.concatenate([first.scores, second.scores], axis=1)
    best = ordered(positions, scores)
    return Nearest(best.positions[:, :k], best.scores[:, :k])


def shifted(found: Nearest, start: int) -> Nearest:
    """Convert positions in a slice of the matrix that begins at `start` into positions in the matrix."""
    return Nearest(np.where(found.positions >= 0, found.positions + start, -1), found.scores)


def padded(found: Nearest, k: int) -> Nearest:
    """Pad the result to exactly k columns."""
    if found.positions.shape[1] == k:
        return found
    lacking = ((0, 0), (0, k - found.positions.shape[1]))
    return Nearest(
        np.pad(found.positions, lacking, constant_values=-1), np.pad(found.scores, lacking, constant_values=-np.inf)
    )


def _settled(found: Nearest) -> Nearest:
    """Sort FAISS's answer if needed: it is sorted except for ties and empty places."""
    has_ties = (found.scores[:, 1:] == found.scores[:, :-1]).any()
    return ordered(found.positions, found.scores) if has_ties or (found.positions < 0).any() else found


def ordered(positions: Rows, scores: Vectors) -> Nearest:
    """Sort positions (Q, K) and their scores (Q, K), best first; scores of empty places become −∞, in place."""
    scores[positions < 0] = -np.inf
    order = np.lexsort((positions, -scores), axis=-1)
    return Nearest(np.take_along_axis(positions, order, axis=1), np.take_along_axis(scores, order, axis=1))


def _empty(num_queries: int, k: int) -> Nearest:
    return Nearest(np.empty((num_queries, k), np.int64), np.empty((num_queries, k), np.float32))


@dataclass(eq=False)
class LiveBits:
    """A bit for each position of a table, 1 while its row lives, lowest bit first; `selector` is FAISS's view of it.

    Bits are only ever cleared while readers use them, so a search that begins after `clear` returned cannot find the
    row.
    """

    bits: NDArray[np.uint8]
    num_dead: int = 0
    selector: Any = field(init=False)

    def __post_init__(self) -> None:
        self.selector = faiss.IDSelectorBitmap(self.bits)

    def clear(self, position: int) -> None:
        """Mark a live position as dead."""
        self.bits[position >> 3] &= 0xFF ^ (1 << (position & 7))
        self.num_dead += 1

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Copy the bits of the first `size` positions, bool (size,), true if live."""
        return np.unpackbits(self.bits, count=size, bitorder="little").view(np.bool_)

    def at(self, positions: Rows) -> NDArray[np.bool_]:
        """Tell which of these positions are live, bool of the same shape."""
        is_live: NDArray[np.bool_] = self.bits[positions >> 3] >> (positions & 7) & 1 == 1
        return is_live


@dataclass(frozen=True, eq=False)
class TableView:
    """A reader's view: vectors float32 (N, E), their rows int64 (N,) ascending, and which of them are live."""

    vectors: Vectors
    rows: Rows
    live: LiveBits

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_live(self) -> int:
        return len(self) - self.live.num_dead

    def live_rows(self) -> Rows:
        """Live rows, ascending, int64."""
        return self.rows[self.live.mask(len(self))]

    def find(self, rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        """Find rows (R,): positions int64 (R,), and whether each exists here and is live, bool (R,)."""
        if not len(self):
            return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
        positions = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
        return positions, (self.rows[positions] == rows) & self.live.at(positions)

    def live_positions(self, among: Rows) -> Rows:
        """Return the positions of those rows of `among` that exist here and are live."""
        positions, is_held = self.find(among)
        return positions[is_held]


class VectorTable:
    """The writer's side, for one thread at a time: arrays with spare capacity, filled beyond what readers see."""

    def __init__(self, width: int, capacity: int = 0) -> None:
        self._width = width
        self._size = 0
        self._allocate(capacity)

    @classmethod
    def of(cls, rows: Rows, vectors: Vectors) -> "VectorTable":
        """Make a table that takes over rows (N,), ascending, and vectors (N, E)."""
        table = cls(vectors.shape[1])
        table._rows, table._vectors, table._size = rows, vectors, len(rows)
        table._live = LiveBits(np.full(-(-len(rows) // 8), 0xFF, np.uint8))
        return table

    @property
    def view(self) -> TableView:
        """View everything that was appended so far."""
        return TableView(self._vectors[: self._size], self._rows[: self._size], self._live)

    def append(self, rows: Rows, vectors: Vectors) -> None:
        """Add rows (R,) and vectors (R, E). Existing views do not change; the next one includes these."""
        size = self._size + len(rows)
        if size > len(self._rows):
            self._grow(size)
        self._vectors[self._size : size] = vectors
        self._rows[self._size : size] = rows
        self._size = size

    def clear(self, positions: Rows) -> None:
        """Mark live positions as dead, immediately for all readers."""
        for position in positions.tolist():
            self._live.clear(position)

    def _grow(self, size: int) -> None:
        old = self.view
        self._allocate(int(GROWTH * size))
        self._vectors[: len(old)] = old.vectors
        self._rows[: len(old)] = old.rows
        self._live.bits[: len(old.live.bits)] = old.live.bits
        self._live.num_dead = old.live.num_dead

    def _allocate(self, capacity: int) -> None:
        # pages that are never written use no memory, so the spare capacity is nearly free
        capacity = max(capacity, MIN_CAPACITY)
        self._vectors = np.empty((capacity, self._width), np.float32)
        self._rows = np.empty(capacity, np.int64)
        self._live = LiveBits(np.full(-(-capacity // 8), 0xFF, np.uint8))
