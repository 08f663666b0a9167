"""The number of an index's lists that a search has to read: the fewest that reach the wanted recall, measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.embed.collections.index.exact_search import Rows, Vectors
from services.embed.collections.index.vector_index import Found

# Lists in each of Milvus's segments. A search that reads all of them is exact.
NUM_LISTS = 1024
# If more would have to be read, the search is exact instead.
MAX_LISTS = NUM_LISTS // 4
RECALL_AT = 10
# Scores that differ by less belong to the same vector; only the order of summation differed.
SAME_SCORE = 1e-6


@dataclass(frozen=True)
class Tuning:
    """A search reads `num_lists` in each segment, which finds `recall` of the ten nearest; `num_vectors` there were
    when this was measured. With NUM_LISTS and no recall, the search is exact."""

    num_lists: int
    recall: float | None
    num_vectors: int

    @property
    def is_exact(self) -> bool:
        return self.num_lists >= NUM_LISTS

    def to_json(self) -> dict[str, Any]:
        """Return what PostgreSQL keeps."""
        return {"num_lists": self.num_lists, "recall": self.recall, "num_vectors": self.num_vectors}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Tuning":
        return cls(kept["num_lists"], kept["recall"], kept["num_vectors"])


def exact(num_vectors: int) -> Tuning:
    """Describe a search that compares all vectors."""
    return Tuning(NUM_LISTS, None, num_vectors)


def tuned(recall_with: Callable[[int], float], min_recall: float, num_vectors: int) -> Tuning:
    """Find the smallest number of lists that reaches `min_recall`; an exact search if none up to MAX_LISTS does."""
    too_few, enough = 0, 1
    while (recall := recall_with(enough)) < min_recall:
        if enough == MAX_LISTS:
            return exact(num_vectors)
        too_few, enough = enough, min(2 * enough, MAX_LISTS)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if (found := recall_with(middle)) >= min_recall:
            recall, enough = found, middle
        else:
            too_few = middle
    return Tuning(enough, recall, num_vectors)


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
