"""Search by FAISS on a GPU: exact in vectors that are held there, and for candidates in inverted lists.

FAISS's kernels know no filters, so more is asked for than is wanted, and what is not allowed is removed. Shapes: Q
queries, N vectors, E width, K answers, R rows.
"""

import threading
from functools import cache
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from services.embed.collections.index.vector_table import Nearest, Rows, TableView, Vectors, ordered

# FAISS's kernels return at most this many results.
MAX_ANSWERS = 2048
# Kept for the numbers of a search. FAISS's own default is 1.5 GiB, which other models on the GPU could use.
SCRATCH_BYTES = 256 * 2**20


class Gpu:
    """The first GPU. One thread at a time may use it, so `lock` is held during every call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._resources = faiss.StandardGpuResources()
        self._resources.setTempMemory(SCRATCH_BYTES)

    def flat(self, width: int) -> Any:
        """Make an empty index that compares every vector."""
        return faiss.GpuIndexFlatIP(self._resources, width)

    def copy(self, lists: Any) -> Any:
        """Copy a FAISS index of inverted lists to the GPU."""
        return faiss.index_cpu_to_gpu(self._resources, 0, lists)

    def apart(self) -> "Gpu":
        """Return the same GPU for work that takes long, which so does not hold up searches."""
        return type(self)()


@cache
def first_gpu() -> Gpu | None:
    """Return the first GPU, for all indexes of the process; None where FAISS finds none or is built without."""
    return Gpu() if faiss.get_num_gpus() > 0 else None


class DeviceVectors:
    """The vectors of a table on a GPU."""

    def __init__(self, gpu: Gpu, width: int) -> None:
        self.gpu = gpu
        self._index = gpu.flat(width)

    @property
    def num_vectors(self) -> int:
        num: int = self._index.ntotal
        return num

    def hold(self, vectors: Vectors) -> None:
        """Extend to these vectors (N, E), which begin with those held already."""
        self._index.add(vectors[self._index.ntotal :])

    def clear(self) -> None:
        """Remove all vectors."""
        self._index.reset()

    def search(self, queries: Vectors, k: int, table: TableView, among: Rows | None) -> Nearest | None:
        """Find the k nearest live positions, of all or of `among`, ascending; None if too few are among the results
        that the device can return."""
        size, num_allowed = self.num_vectors, table.num_live if among is None else len(among)
        k = min(k, num_allowed)
        certain = min(k + size - num_allowed, MAX_ANSWERS)
        if k == 0 or (certain == MAX_ANSWERS and k * size > MAX_ANSWERS * num_allowed):
            return None  # so few are allowed that the processor compares them sooner
        for num_asked in sorted({min(certain, likely(k, num_allowed, size)), certain}):
            scores, positions = self._index.search(queries, num_asked)
            positions[~allowed(positions, table, among)] = -1
            if ((positions >= 0).sum(axis=1) >= k).all():
                found = ordered(positions, scores)
                return Nearest(found.positions[:, :k], found.scores[:, :k])
        return None


def likely(wanted: int, num_allowed: int, size: int) -> int:
    """Return how many results to ask for if some are removed and about `wanted` are to be left."""
    return min(MAX_ANSWERS, 2 * wanted * size // max(1, num_allowed)) if num_allowed < size else wanted


def allowed(positions: Rows, table: TableView, among: Rows | None) -> NDArray[np.bool_]:
    """Tell which of the positions found (Q, K) are live and in `among`, bool; places of −1 are not."""
    known = np.maximum(positions, 0)
    is_allowed: NDArray[np.bool_] = (positions >= 0) & table.live.at(known)
    if among is not None and len(among):
        is_allowed &= among[np.minimum(np.searchsorted(among, known), len(among) - 1)] == known
    return is_allowed
