"""Vectors to search among, and what a plain search by numpy finds."""

import numpy as np
from numpy.typing import NDArray

from services.embed.collections.index.vector_table import Rows, Vectors


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Every vector (N, E) divided by its length."""
    scaled: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def uniform(seed: int, size: int, width: int) -> Vectors:
    """Unit vectors (N, E) with no structure, which no approximate index can find its way in."""
    return unit(np.random.default_rng(seed).standard_normal((size, width)))


def clustered(seed: int, size: int, width: int, *, num_clusters: int = 40, num_latent: int = 8) -> Vectors:
    """Unit vectors (N, E) about a few centres, near a plane of few dimensions, as embeddings of images are.

    The centres are the same for every seed, the members are not.
    """
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    plane = fixed.standard_normal((num_latent, width))
    centres = fixed.standard_normal((num_clusters, num_latent))
    latent = centres[rng.integers(0, num_clusters, size)] + 0.3 * rng.standard_normal((size, num_latent))
    return unit(latent @ plane + 0.1 * rng.standard_normal((size, width)))


def best_scores(queries: Vectors, vectors: Vectors, k: int) -> Vectors:
    """The k greatest cosines of each query (Q, E) to vectors (N, E), float32 (Q, K), −∞ where there are fewer."""
    scores = np.full((len(queries), max(k, len(vectors))), -np.inf, np.float32)
    scores[:, : len(vectors)] = queries @ vectors.T
    best: Vectors = -np.sort(-scores, axis=1)[:, :k]
    return best


def rows_from(first: int, size: int, *, step: int = 1) -> Rows:
    """`size` ascending rows, int64."""
    return np.arange(first, first + size * step, step, dtype=np.int64)
