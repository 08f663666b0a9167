"""Approximate search: vectors sorted into lists about centroids, of which a query looks into the nearest few.

The lists hold the first M positions of a table as 8-bit codes, a quarter of what an exact scan would read. What the
codes propose is compared again exactly, so scores are true and only an answer's completeness is approximate: it is
measured when the lists are made. Lists never change; new ones take their place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from services.embed.collections.index.exact_search import Nearest, Rows, Vectors, scan, scan_positions
from services.embed.collections.index.vector_table import TableView

# The codes blur the order of near neighbours: this many times k are compared again.
CANDIDATES = 4
# A query that must look into more of the lists than this is answered sooner by an exact scan.
MAX_PROBED_SHARE = 0.25
# Codes are read so fast that fewer and longer lists than FAISS advises for float vectors are sooner done with.
LISTS_PER_ROOT = 1.5
MIN_LIST_SIZE = 32
TRAINING_VECTORS_PER_LIST = 64
SAMPLE_SIZE = 512
RECALL_AT = 10
# Scores that differ by less are the same vector's, added up in another order.
SAME_SCORE = 1e-6


@dataclass(frozen=True, eq=False)
class InvertedLists:
    """`index` is a FAISS IVF index of the positions below `size`, a multiple of 8; `num_trained` is how many vectors
    its centroids were fitted to. `nprobe` lists are looked into; `recall` is recall@10 as measured with that."""

    index: Any
    size: int
    num_trained: int
    nprobe: int = 1
    recall: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, positions and centroids."""
        per_vector = self.index.code_size + np.dtype(np.int64).itemsize
        return int(self.size * per_vector + self.index.nlist * self.index.d * np.dtype(np.float32).itemsize)

    def search(self, queries: Vectors, table: TableView, k: int, *, among: Rows | None = None) -> Nearest | None:
        """The k nearest of the first `size` positions, or of those `among` them (ascending), scored exactly.

        None where the lists are no help: where too many would have to be looked into, or held fewer than k.
        """
        share = 1.0 if among is None else len(among) / max(1, len(table))
        nprobe = self._nprobe(k, share)
        if nprobe > max(self.nprobe, MAX_PROBED_SHARE * self.index.nlist):
            return None
        selector = self._selector(table, among)
        _, candidates = self.index.search(
            queries, CANDIDATES * k, params=faiss.SearchParametersIVF(nprobe=nprobe, sel=selector)
        )
        found = scan_positions(queries, table.vectors, candidates, k)
        return found if (found.positions >= 0).all() else None

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
        return replace(self, index=index, size=size)

    def extended(self, table: TableView) -> "InvertedLists":
        """Sort the rest of the table into these lists, and return them; the old object may no longer be used."""
        size = len(table) // 8 * 8
        self.index.add(table.vectors[self.size : size])
        return replace(self, size=size)

    def _nprobe(self, k: int, share: float) -> int:
        """`nprobe` was chosen for ten answers among all: fewer vectors to choose from, or more answers, need more."""
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


def trained(table: TableView) -> InvertedLists:
    """Lists of all but the last few positions of a table, none of them dead. Takes seconds to minutes."""
    size = len(table) // 8 * 8
    num_lists = max(1, min(round(LISTS_PER_ROOT * math.sqrt(size)), size // MIN_LIST_SIZE))
    index = faiss.index_factory(table.vectors.shape[1], f"IVF{num_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = TRAINING_VECTORS_PER_LIST
    index.cp.min_points_per_centroid = 1
    index.train(table.vectors[:size])
    index.add(table.vectors[:size])
    return InvertedLists(index, size, num_trained=size)


def tuned(lists: InvertedLists, table: TableView, min_recall: float) -> InvertedLists | None:
    """The lists with the least `nprobe` that reaches `min_recall`, and its recall@10; None where none does.

    Asked are stored vectors, each without itself; right is what scores as high as the tenth of an exact search.
    """
    sample = np.random.default_rng(0).choice(lists.size, min(SAMPLE_SIZE, lists.size), replace=False)
    queries = table.vectors[sample]
    k = min(RECALL_AT, lists.size - 1)
    exact = _without_self(scan(queries, table.vectors[: lists.size], k + 1), sample)

    def at(nprobe: int) -> InvertedLists:
        parameters = faiss.SearchParametersIVF(nprobe=nprobe)
        _, candidates = lists.index.search(queries, CANDIDATES * (k + 1), params=parameters)
        found = _without_self(scan_positions(queries, table.vectors, candidates, k + 1), sample)
        is_right = found >= exact[:, -1:] - SAME_SCORE
        return replace(lists, nprobe=nprobe, recall=float(is_right.mean()))

    largest = max(1, int(MAX_PROBED_SHARE * lists.index.nlist))
    too_few, enough = 0, 1
    while (best := at(enough)).recall < min_recall:
        if enough == largest:
            return None
        too_few, enough = enough, min(2 * enough, largest)
    while enough - too_few > 1:
        middle = at((too_few + enough) // 2)
        if middle.recall >= min_recall:
            best, enough = middle, middle.nprobe
        else:
            too_few = middle.nprobe
    return best


def _without_self(found: Nearest, own: Rows) -> Vectors:
    """Scores (Q, K − 1) of all but each query's own position, or but the last where that was not found."""
    is_own = found.positions == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    others: Vectors = found.scores[~is_own].reshape(len(own), -1)
    return others


def _entries(index: Any) -> Iterator[tuple[int, Rows, NDArray[np.uint8]]]:
    """List by list: its number, its positions (n,) and its codes (n, code bytes), both where FAISS has them."""
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        if size:
            positions = faiss.rev_swig_ptr(index.invlists.get_ids(number), size)
            codes = faiss.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size)
            yield number, positions, codes.reshape(size, index.code_size)
