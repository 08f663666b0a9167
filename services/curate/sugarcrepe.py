"""Adversarial refinement: pairs of captions chosen so that no model of texts alone can tell the true ones (SugarCrepe).

    g_m = M_m(positive) − M_m(negative)                  the gap of a pair between the scores of blind model m
    |G_kept| = |G*_kept| = min(|G|, |G*|)                for each cell G of the gaps and its reflection G* through 0

Algorithm 1 of the dissertation divides the square of two models' gaps into 100 × 100 cells. Here are M models, with
50 cells on each side of 0. What the text leaves open is as in the released code, except at the edge:

- A gap of exactly 0 lies in no cell. Pairs with some gaps of 0 are balanced among those with the same ones, in 10 cells
  on each side for the remaining gaps; pairs whose gaps are all 0 are kept.
- A cell includes its edge nearer to 0; a gap of 1 or −1 lies in the outermost cell, where the code raises KeyError.

Shapes: N pairs, M models.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# Cells on each side of 0, and those for a pair of which some gap is 0.
NUM_CELLS = 50
NUM_CELLS_BESIDE_ZERO = 10
# A pair's cell is one number of 64 bits.
MAX_MODELS = 9


def refine(gaps: Floats, generator: np.random.Generator) -> NDArray[np.int64]:
    """Choose pairs, (N, M) → (K,) ascending: as many in each cell as in its reflection, and as many as possible.

    Afterwards each model prefers the positive caption in exactly as many pairs as the negative one. How many pairs
    are kept depends on the gaps alone, which of a larger cell on the generator. Raises ValueError for gaps that are not
    numbers in −1..1, and for more than 9 models.
    """
    cells = cell_numbers(gaps)
    order = generator.permutation(len(cells))
    order = order[np.argsort(cells[order], kind="stable")]
    found, starts, sizes = np.unique(cells[order], return_index=True, return_counts=True)
    # the cells found are in ascending order; where a reflection holds no pair, this is the place of another cell
    reflected = np.minimum(np.searchsorted(found, -found), len(found) - 1)
    partners = np.where(found[reflected] == -found, sizes[reflected], 0)
    allowed = np.minimum(sizes, partners)
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    return np.sort(order[place < np.repeat(allowed, sizes)])


def cell_numbers(gaps: Floats) -> NDArray[np.int64]:
    """Number the cells of gaps, (N, M) → (N,); a cell's reflection through 0 has the negative number.

    Raises ValueError as `refine` does.
    """
    if gaps.ndim != 2 or not 1 <= gaps.shape[1] <= MAX_MODELS:
        raise ValueError(f"gaps of shape {gaps.shape} are not those of 1 to {MAX_MODELS} models, (pairs, models)")
    if not np.all(np.abs(gaps) <= 1):
        raise ValueError("a gap is not a number in −1..1")
    num_cells = np.where((gaps == 0).any(axis=1), NUM_CELLS_BESIDE_ZERO, NUM_CELLS)
    numbers = np.zeros(len(gaps), np.int64)
    for column in gaps.T:
        from_zero = np.minimum((np.abs(column) * num_cells).astype(np.int64) + 1, num_cells)
        numbers = numbers * (2 * NUM_CELLS + 1) + np.sign(column).astype(np.int64) * from_zero
    return numbers


def likelihood_gap(positive: Floats, negative: Floats) -> Floats:
    """Compute the gap of two mean log-probabilities, (N,) and (N,) → (N,) in −1..1.

    It is tanh((a − b) / 2) = (eᵃ − eᵇ) / (eᵃ + eᵇ): the difference of the mean probabilities of a token as a share of
    their sum. A difference of log-probabilities itself has no bound; this one keeps its sign and its order.
    """
    gap: Floats = np.tanh((positive - negative) / 2)
    return gap


def better_ratio(ours: Floats, theirs: Floats) -> float:
    """Compute the share of captions, (N,) and (N,), of which ours has the strictly higher score (Table 4.4)."""
    return float(np.mean(ours > theirs)) if len(ours) else float("nan")
