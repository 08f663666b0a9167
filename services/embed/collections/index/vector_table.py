"""Vectors in row order: one writer appends and marks rows as dead, readers use views and never wait."""

from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

GROWTH = 1.5
MIN_CAPACITY = 1024


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
