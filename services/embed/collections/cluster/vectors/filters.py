"""Restricting a search to some rows: as an expression in Milvus's language, or by dropping the others afterwards.

Milvus takes 6 µs to read each row of an expression, whatever the vectors. Where most rows are wanted it is cheaper to
ask for more results and drop the others, which is exact if the search is: the best k of the wanted rows are with the
best of all rows as soon as k of them are.
"""

import math

import numpy as np

from services.embed.collections.index.exact_search import Nearest, Rows, ordered

# Rows in one expression.
PIECE_ROWS = 8192
# As many times the expected number of results are asked for, as wanted rows are not spread evenly.
SURPLUS = 2.0
SURPLUS_RESULTS = 50
# Measured: seconds for a row in an expression, and for a number of a vector that is compared.
EXPRESSION_S = 6e-6
COMPARISON_S = 4e-10


def among(field: str, keys: Rows) -> str:
    """Write an expression for these values of a field."""
    return f"{field} in {keys.tolist()}"


def enough(k: int, num_wanted: int, num_vectors: int) -> int:
    """Estimate how many of all rows have to be found for k of the wanted ones to be among them."""
    return math.ceil(SURPLUS * k * num_vectors / num_wanted) + SURPLUS_RESULTS


def scan_is_cheaper(num_vectors: int, width: int, num_wanted: int) -> bool:
    """Whether comparing all vectors takes less time than writing and reading an expression."""
    return num_vectors * width * COMPARISON_S < num_wanted * EXPRESSION_S


def only(found: Nearest, wanted: Rows, k: int) -> Nearest | None:
    """Keep the k best results that are in `wanted`, ascending; None if a query has fewer."""
    places = np.minimum(np.searchsorted(wanted, found.positions), len(wanted) - 1)
    is_wanted = (wanted[places] == found.positions) & (found.positions >= 0)
    if (is_wanted.sum(axis=1) < k).any():
        return None
    rest = ordered(np.where(is_wanted, found.positions, -1), found.scores.copy())
    return Nearest(rest.positions[:, :k], rest.scores[:, :k])
