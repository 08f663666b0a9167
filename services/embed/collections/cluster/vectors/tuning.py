"""The number of an index's lists that a search has to read: the fewest that reach the wanted recall, measured."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from services.embed.collections.index.exact_search import Rows, Vectors
from services.embed.collections.index.vector_index import Found

# Lists in each of Milvus's segments. A search that reads all of them is exact.
NUM_LISTS = 1024
# If more would have to be read, the search is exact instead.
MAX_LISTS = NUM_LISTS // 4
RECALL_AT = 10
# More results lie in more lists, such as those from which a filter leaves ten; so it is measured at this number too.
DEEP_RECALL_AT = 250
# Lists are read that hold this many times as many vectors as results are wanted.
CANDIDATES = 4
# Scores that differ by less belong to the same vector; only the order of summation differed.
SAME_SCORE = 1e-6


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

    def to_json(self) -> dict[str, Any]:
        """Return what PostgreSQL keeps."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Tuning":
        return cls(**kept)


def exact(num_vectors: int) -> Tuning:
    """Describe a search that compares all vectors."""
    return Tuning(NUM_LISTS, None, num_vectors)


def tuned(recall_with: Callable[[int, int], float], min_recall: float, num_vectors: int) -> Tuning:
    """Find the smallest numbers of lists that reach `min_recall`; an exact search if none up to MAX_LISTS does.

    `recall_with` measures with so many lists the recall of so many nearest.
    """
    num_lists, reached = fewest(lambda lists: recall_with(lists, RECALL_AT), min_recall)
    if reached is None:
        return exact(num_vectors)
    deep_lists, _ = fewest(lambda lists: recall_with(lists, DEEP_RECALL_AT), min_recall, at_least=num_lists)
    return Tuning(num_lists, reached, num_vectors, deep_lists)


def fewest(recall_with: Callable[[int], float], min_recall: float, *, at_least: int = 1) -> tuple[int, float | None]:
    """Find the smallest number of lists that reaches `min_recall`, and its recall; NUM_LISTS and None if none up to
    MAX_LISTS does."""
    too_few, enough = at_least - 1, at_least
    while (recall := recall_with(enough)) < min_recall:
        if enough == MAX_LISTS:
            return NUM_LISTS, None
        too_few, enough = enough, min(2 * enough, MAX_LISTS)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if (found := recall_with(middle)) >= min_recall:
            recall, enough = found, middle
        else:
            too_few = middle
    return enough, recall


def recall(found: Found, best: Found, own: Rows) -> float:
    """Return the share of the exact results of stored vectors, the rows `own`, that a search found, both with one
    result more than is compared: the vector itself, which does not count. A row of equal score is as good."""
    scores, wanted = _without_self(found, own), _without_self(best, own)
    return float((scores >= wanted[:, -1:] - SAME_SCORE).mean())


def _without_self(found: Found, own: Rows) -> Vectors:
    """Return the scores (Q, K − 1) without each query's own row, or without the last if that was not found."""
    is_own = found.rows == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    others: Vectors = found.scores[~is_own].reshape(len(own), -1)
    return np.where(np.isfinite(others), others, np.float32(-2))
