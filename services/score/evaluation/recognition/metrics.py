"""Metrics of zero-shot classification and of retrieval, as ELEVATER and FSC-CLIP use them. Ties are wrong.

Shapes: N images, K classes, Q queries and G things to be found.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.score.evaluation.records import percent

Labels = NDArray[np.int64]
Probabilities = NDArray[np.floating]

RECALL_POINTS = 11
KS = (1, 5, 10)


def is_right(labels: Labels, probabilities: Probabilities) -> NDArray[np.bool_]:
    """Tell for each image, (N,), whether its class is strictly the most probable one: (N,) and (N, K) → (N,)."""
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    others = probabilities.copy()
    others[rows, labels] = -np.inf
    return np.asarray(own > others.max(axis=1))


def accuracy(labels: Labels, probabilities: Probabilities) -> float:
    """The share of images whose class is the most probable one."""
    return float(is_right(labels, probabilities).mean())


def mean_per_class(labels: Labels, probabilities: Probabilities) -> float:
    """The mean over classes with images of their accuracy."""
    return percent(is_right(labels, probabilities).astype(np.float64), labels) / 100


def mean_average_precision_11(labels: NDArray[np.bool_], probabilities: Probabilities) -> float:
    """The mean over classes of VOC 2007's average precision: (N, K) and (N, K).

    Precision is interpolated: at each of eleven recalls, the highest one at this recall or above. Images of equal
    probability are found together. A class without images counts as 0.
    """
    points = np.linspace(0, 1, RECALL_POINTS)
    return float(
        np.mean([_average_precision(labels[:, k], probabilities[:, k], points) for k in range(labels.shape[1])])
    )


def _average_precision(
    is_positive: NDArray[np.bool_], probability: Probabilities, points: NDArray[np.float64]
) -> float:
    if not is_positive.any():
        return 0.0
    order = np.argsort(-probability, kind="stable")
    found = np.cumsum(is_positive[order])
    # only thresholds between different probabilities exist
    ends = np.flatnonzero(np.append(np.diff(probability[order]) != 0, True))
    precision = found[ends] / (ends + 1)
    recall = found[ends] / found[-1]
    return float(np.mean([precision[recall >= point - 1e-12].max() for point in points]))


def roc_auc(labels: Labels, probabilities: Probabilities) -> float:
    """The area under the ROC curve of two classes: how often an image of class 1 is above one of class 0, (N,), (N, 2).

    Equal probabilities count one half, as everywhere for this metric. Raises ValueError if a class has no images.
    """
    score = probabilities[:, 1]
    positive, negative = np.sort(score[labels == 1]), score[labels == 0]
    if not (len(positive) and len(negative)):
        raise ValueError("the area under the ROC curve needs images of both classes")
    above = len(positive) - np.searchsorted(positive, negative, side="right")
    ties = np.searchsorted(positive, negative, side="right") - np.searchsorted(positive, negative, side="left")
    return float((above + ties / 2).sum() / (len(positive) * len(negative)))


def best_ranks(similarities: Probabilities, is_own: NDArray[np.bool_]) -> Labels:
    """Count, for each query, the wrong things at least as similar as its most similar own one: (Q, G) → (Q,)."""
    best = np.where(is_own, similarities, -np.inf).max(axis=1, keepdims=True)
    return np.asarray(((similarities >= best) & ~is_own).sum(axis=1), np.int64)


def recalls(ranks: Labels, ks: Sequence[int] = KS) -> dict[str, float]:
    """Compute in percent how often one of a query's own things is among the first k, as `R@k`."""
    return {f"R@{k}": 100 * float((ranks < k).mean()) for k in ks}
