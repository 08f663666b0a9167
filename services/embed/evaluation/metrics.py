"""Retrieval metrics of the dissertation's tables.

Shapes: Q queries, N gallery images, E embedding width, m relevant and n irrelevant images of a query. Similarities are
cosines, higher is closer. For ties, an irrelevant image ranks before a relevant one of the same similarity.

If every image is a query that is left out of its own gallery, similarities are any iterable of N rows (N,): a matrix,
or `cosine_rows`, which never holds the whole matrix.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
Array32 = NDArray[np.float32]
Similarities = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

# Rows of similarities computed in one matrix product: for 20,000 images 40 MB at a time instead of 1.6 GB.
ROWS_AT_ONCE = 512


def cosine_rows(embeddings: Array32) -> Iterator[Array32]:
    """The cosines of each of N L2-normalised embeddings (N, E) with all of them, row by row: N times (N,)."""
    for start in range(0, len(embeddings), ROWS_AT_ONCE):
        yield from embeddings[start : start + ROWS_AT_ONCE] @ embeddings.T


def average_precision(relevant: Similarities, irrelevant: Similarities) -> float:
    """Mean of the precisions at the ranks of the relevant images, from similarities (m,) and (n,), m ≥ 1."""
    best_first = np.sort(relevant)[::-1]
    num_irrelevant_before = len(irrelevant) - np.searchsorted(np.sort(irrelevant), best_first, side="left")
    hits = np.arange(1, len(relevant) + 1)
    return float(np.mean(hits / (hits + num_irrelevant_before)))


def average_precisions(similarity: Iterable[Similarities], labels: Labels) -> Array:
    """Leave-one-out average precision of every image as a query against all others: (N,).

    `labels` (N,): the relevant images are the others with the query's label; NaN if there are none.
    """
    precisions = np.full(len(labels), np.nan)
    for query, row in enumerate(similarity):
        is_relevant = labels == labels[query]
        irrelevant = row[~is_relevant]
        is_relevant[query] = False
        if is_relevant.any():
            precisions[query] = average_precision(row[is_relevant], irrelevant)
    return precisions


def mean_average_precision(similarity: Iterable[Similarities], labels: Labels) -> float:
    """Mean of `average_precisions` over the queries that have at least one relevant image.

    Raises ValueError if no query has one.
    """
    precisions = average_precisions(similarity, labels)
    if np.isnan(precisions).all():
        raise ValueError("no class has two images: there is nothing to retrieve")
    return float(np.nanmean(precisions))


def expected_average_precision(num_gallery: int, num_relevant: int) -> float:
    """Compute the exact AP of a random ranking of n, m of them relevant: (H_n + (m − 1)/(n − 1) · (n − H_n)) / n.

    Requires 1 ≤ m ≤ n.
    """
    n, m = num_gallery, num_relevant
    if n == 1:
        return 1.0
    harmonic = float(np.sum(1 / np.arange(1, n + 1)))
    return (harmonic + (m - 1) / (n - 1) * (n - harmonic)) / n


def random_mean_average_precision(labels: Labels) -> float:
    """Expected leave-one-out mAP of a random ranking, over the queries that have a relevant image."""
    _, counts = np.unique(labels, return_counts=True)
    counts = counts[counts > 1]
    expected = [expected_average_precision(len(labels) - 1, count - 1) for count in counts.tolist()]
    return float(np.average(expected, weights=counts))


def scaled_average_precision(mean_ap: float, random_ap: float) -> float:
    """CelebA's scaled mAP, (p − r) / (1 − r): 0 is chance, 1 is perfect."""
    return (mean_ap - random_ap) / (1 - random_ap)


def target_recall(similarity: Similarities, k: int) -> float:
    """GeneCIS's Recall@k: (Q, N) similarities whose target is column 0."""
    rank = (similarity[:, 1:] >= similarity[:, :1]).sum(axis=1)
    return float(np.mean(rank < k))


def continuous_color_correlation(similarity: Iterable[Similarities], rgb: Array) -> float:
    """Mean over queries of Spearman's ρ between similarity and minus the distance in RGB (N, 3)."""
    correlations = []
    for query, row in enumerate(similarity):
        others = np.arange(len(rgb)) != query
        closeness = -np.linalg.norm(rgb[others] - rgb[query], axis=1)
        correlations.append(np.corrcoef(rankdata(row[others]), rankdata(closeness))[0, 1])
    return float(np.mean(correlations))
