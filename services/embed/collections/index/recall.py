"""The recall of approximate search, and the fewest lists of vectors that reach one."""

from collections.abc import Callable

import numpy as np

from services.embed.collections.index.vector_table import Nearest, Rows, Vectors

RECALL_AT = 10
# Scores that differ by less belong to the same vector; only the order of summation differed.
SAME_SCORE = 1e-6


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
