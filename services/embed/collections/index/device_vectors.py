"""Exact search on a GPU, in a copy of a table's vectors."""

import threading
from typing import Any

import faiss
import numpy as np

from services.embed.collections.index.exact_search import Nearest, Vectors, ordered
from services.embed.collections.index.vector_table import LiveBits

# FAISS's GPU kernels return at most this many results.
MAX_ANSWERS = 2048


class DeviceVectors:
    """A flat FAISS index over inner products that one thread may use at a time: `lock` is held during every call.

    It does not know dead rows: they are searched too, and removed from the result.
    """

    def __init__(self, index: Any) -> None:
        self.lock = threading.Lock()
        self._index = index

    @classmethod
    def on_gpu(cls, width: int) -> "DeviceVectors":
        """Make an index on the first GPU. Raises ValueError if FAISS has none."""
        if faiss.get_num_gpus() == 0:
            raise ValueError(
                "device 'cuda' needs a GPU and a FAISS built for it: install the extra 'search-gpu' instead of "
                "'search', or set the device to 'cpu'"
            )
        return cls(faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), width))

    def hold(self, vectors: Vectors) -> None:
        """Extend to these vectors (N, E), which begin with those held already."""
        self._index.add(vectors[self._index.ntotal :])

    def clear(self) -> None:
        """Remove all vectors."""
        self._index.reset()

    def search(self, queries: Vectors, k: int, live: LiveBits) -> Nearest | None:
        """Find the k nearest live positions; None if that needs more results than the device can return."""
        num_asked = min(k + live.num_dead, self._index.ntotal)
        if not 0 < num_asked <= MAX_ANSWERS:
            return None
        scores, positions = self._index.search(queries, num_asked)
        is_dead = (positions >= 0) & ~live.at(np.maximum(positions, 0))
        positions[is_dead] = -1
        found = ordered(positions, scores)
        return Nearest(found.positions[:, :k], found.scores[:, :k])
