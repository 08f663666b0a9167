"""Exact search for the rows of a matrix with the greatest dot products to a query, and merging of two results.

Shapes: Q queries, N vectors, E width, K answers, C candidates. FAISS reads the matrix in place; nothing is copied.
"""

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Nearest:
    """Positions in a matrix, int64 (Q, K), best first, −1 if there are fewer; scores, float32 (Q, K), −∞ for these.

    Of equal scores the lower position comes first.
    """

    positions: Rows
    scores: Vectors


def use_threads(num_threads: int) -> None:
    """Set the number of FAISS's threads for calls from the calling thread; other threads keep their own number."""
    faiss.omp_set_num_threads(num_threads)


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
