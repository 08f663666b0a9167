"""Approximate search: vectors are sorted into lists around centroids, and a query searches only the nearest lists.

The lists hold the first M positions of a table as 8-bit codes, a quarter of what an exact scan would read. Candidates
found by codes are compared again exactly, so scores are exact and only the recall is approximate: it is measured when
the lists are made. Lists never change; they are replaced by new ones.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from services.embed.collections.index.gpu import MAX_ANSWERS, Gpu, allowed, likely
from services.embed.collections.index.vector_table import Nearest, Rows, TableView, Vectors, scan, scan_positions

RECALL_AT = 10
# Scores that differ by less belong to the same vector; only the order of summation differed.
SAME_SCORE = 1e-6
# Codes are too coarse to order near neighbours, so this many times k candidates are compared again.
CANDIDATES = 4
# If a query must search a larger share of the lists than this, an exact scan is faster.
MAX_PROBED_SHARE = 0.25
# Codes are read so fast that fewer and longer lists than FAISS recommends for float vectors are faster.
LISTS_PER_ROOT = 1.5
MIN_LIST_SIZE = 32
TRAINING_VECTORS_PER_LIST = 64
SAMPLE_SIZE = 512
# Vectors are sorted into lists in pieces of this number on a GPU.
PIECE_VECTORS = 65_536


def recall(found: Nearest, best: Nearest, own: Rows) -> float:
    """Return the share of the exact results `best` that a search found.

    The queries are the stored vectors `own`, and both have one result more than is compared: the vector itself, which
    does not count. Another vector of equal score is as good.
    """
    scores, wanted = _without_self(found, own), _without_self(best, own)
    return float((scores >= wanted[:, -1:] - SAME_SCORE).mean())


def fewest_lists(
    recall_with: Callable[[int], float], min_recall: float, *, at_least: int = 1, at_most: int
) -> tuple[int, float] | None:
    """Find the smallest number of lists that reaches `min_recall`, and its recall; None if even the most do not."""
    too_few, enough = at_least - 1, at_least
    while (reached := recall_with(enough)) < min_recall:
        if enough >= at_most:
            return None
        too_few, enough = enough, min(2 * enough, at_most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if (found := recall_with(middle)) >= min_recall:
            reached, enough = found, middle
        else:
            too_few = middle
    return enough, reached


def _without_self(found: Nearest, own: Rows) -> Vectors:
    """Return the scores (Q, K − 1) without each query's own position, or without the last if that was not found."""
    is_own = found.positions == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    others: Vectors = found.scores[~is_own].reshape(len(own), -1)
    return np.where(np.isfinite(others), others, np.float32(-2))


@dataclass(frozen=True, eq=False)
class InvertedLists:
    """`index` is a FAISS IVF index of the positions below `size`, a multiple of 8; `num_trained` is the number of
    vectors from which its centroids were computed. `nprobe` lists are searched; `recall` is the recall@10 measured with
    it. `gpu` has a copy of the index, `copy`, which is searched in its place."""

    index: Any
    size: int
    num_trained: int
    nprobe: int = 1
    recall: float = 0.0
    gpu: Gpu | None = None
    copy: Any = None

    @property
    def num_bytes(self) -> int:
        """Size in bytes of codes, positions and centroids."""
        per_vector = self.index.code_size + np.dtype(np.int64).itemsize
        return int(self.size * per_vector + self.index.nlist * self.index.d * np.dtype(np.float32).itemsize)

    def search(self, queries: Vectors, table: TableView, k: int, *, among: Rows | None = None) -> Nearest | None:
        """Find the k nearest of the first `size` positions, or of those in `among` (ascending), scored exactly.

        None if the lists do not help because too many would have to be searched or they held fewer than k.
        """
        share = 1.0 if among is None else len(among) / max(1, len(table))
        nprobe = self._nprobe(k, share)
        if nprobe > max(self.nprobe, MAX_PROBED_SHARE * self.index.nlist):
            return None
        candidates = self._candidates(queries, table, CANDIDATES * k, nprobe, among)
        if candidates is None:
            return None
        found = scan_positions(queries, table.vectors, candidates, k)
        return found if (found.positions >= 0).all() else None

    def on_gpu(self, gpu: Gpu) -> "InvertedLists":
        """Return these lists with a copy on the GPU, whose lock is held."""
        return replace(self, gpu=gpu, copy=gpu.copy(self.index))

    def _candidates(
        self, queries: Vectors, table: TableView, num_wanted: int, nprobe: int, among: Rows | None
    ) -> Rows | None:
        """Return positions (Q, C) by their codes, ending in −1s; None if the GPU can't return as many."""
        if self.gpu is None:
            parameters = faiss.SearchParametersIVF(nprobe=nprobe, sel=self._selector(table, among))
            candidates: Rows = self.index.search(queries, num_wanted, params=parameters)[1]
            return candidates
        num_allowed = table.num_live if among is None else len(among)
        num_asked = likely(num_wanted, num_allowed, len(table))
        if max(num_wanted, num_asked, nprobe) > MAX_ANSWERS:
            return None
        with self.gpu.lock:
            found: Rows = self.copy.search(queries, num_asked, params=faiss.SearchParametersIVF(nprobe=nprobe))[1]
        found[~allowed(found, table, among)] = -1
        return np.take_along_axis(found, np.argsort(found < 0, axis=1, kind="stable"), axis=1)

    def keeping(self, keep: NDArray[np.bool_]) -> "InvertedLists":
        """Copy these lists for a table with only the positions of `keep`, bool (at least `size`,), in their order."""
        moved = np.cumsum(keep[: self.size]) - 1
        size = int(moved[-1] + 1) // 8 * 8
        kept = keep[: self.size] & (moved < size)
        index = faiss.clone_index(self.index)
        index.reset()
        for number, positions, codes in _entries(self.index):
            stays = kept[positions]
            if stays.any():
                ids, bytes_ = moved[positions[stays]], codes[stays]
                index.invlists.add_entries(number, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(bytes_))
        index.ntotal = size
        return replace(self, index=index, size=size, gpu=None, copy=None)

    def extended(self, table: TableView) -> "InvertedLists":
        """Sort the rest of the table into these lists, and return them; the old object must no longer be used."""
        size = len(table) // 8 * 8
        self.index.add(table.vectors[self.size : size])
        return replace(self, size=size, gpu=None, copy=None)

    def _nprobe(self, k: int, share: float) -> int:
        """Compute `nprobe` for k answers from a share of the vectors; the index's own is for ten answers from all."""
        num_lists: int = self.index.nlist
        for_answers = CANDIDATES * k * num_lists / self.size
        return min(num_lists, math.ceil(max(self.nprobe, for_answers) / max(share, 1e-9)))

    @staticmethod
    def _selector(table: TableView, among: Rows | None) -> Any:
        if among is None:
            return table.live.selector if table.live.num_dead else None
        mask = np.zeros(len(table), np.bool_)
        mask[among] = True
        return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def trained(table: TableView, gpu: Gpu | None = None) -> InvertedLists:
    """Make lists of all but the last few positions of a table without dead rows. Takes seconds to minutes.

    Centroids, and the nearest one of each vector, are found on the GPU if there is one.
    """
    size = len(table) // 8 * 8
    num_lists = max(1, min(round(LISTS_PER_ROOT * math.sqrt(size)), size // MIN_LIST_SIZE))
    index = faiss.index_factory(table.vectors.shape[1], f"IVF{num_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = TRAINING_VECTORS_PER_LIST
    index.cp.min_points_per_centroid = 1
    vectors = table.vectors[:size]
    if gpu is None:
        index.train(vectors)
        index.add(vectors)
        return InvertedLists(index, size, num_trained=size)
    centroids = gpu.apart().flat(index.d)
    index.clustering_index = centroids
    index.train(vectors)
    index.clustering_index = None
    centroids.reset()
    centroids.add(index.quantizer.reconstruct_n(0, num_lists))
    for start in range(0, size, PIECE_VECTORS):
        piece, ids = vectors[start : start + PIECE_VECTORS], np.arange(start, min(start + PIECE_VECTORS, size))
        nearest = centroids.search(piece, 1)[1]
        index.add_core(len(piece), *map(faiss.swig_ptr, (piece, ids, nearest)))
    return InvertedLists(index, size, num_trained=size)


def tuned(lists: InvertedLists, table: TableView, min_recall: float) -> InvertedLists | None:
    """Find the least `nprobe` that reaches `min_recall`, and its recall@10; None if none does.

    Queries are stored vectors, each without itself; correct results score as high as the tenth of an exact search.
    """
    sample = np.random.default_rng(0).choice(lists.size, min(SAMPLE_SIZE, lists.size), replace=False)
    queries = table.vectors[sample]
    k = min(RECALL_AT, lists.size - 1) + 1
    exact = scan(queries, table.vectors[: lists.size], k)

    def recall_with(nprobe: int) -> float:
        parameters = faiss.SearchParametersIVF(nprobe=nprobe)
        _, candidates = lists.index.search(queries, CANDIDATES * k, params=parameters)
        return recall(scan_positions(queries, table.vectors, candidates, k), exact, sample)

    largest = max(1, int(MAX_PROBED_SHARE * lists.index.nlist))
    found = fewest_lists(recall_with, min_recall, at_most=largest)
    return None if found is None else replace(lists, nprobe=found[0], recall=found[1])


def _entries(index: Any) -> Iterator[tuple[int, Rows, NDArray[np.uint8]]]:
    """Yield for each list its number, its positions (n,) and its codes (n, code bytes), both in FAISS's memory."""
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        if size:
            positions = faiss.rev_swig_ptr(index.invlists.get_ids(number), size)
            codes = faiss.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size)
            yield number, positions, codes.reshape(size, index.code_size)
