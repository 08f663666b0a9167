"""Confidence intervals of shares."""

import math

# Of the standard normal distribution, for 95 %.
DEVIATIONS = 1.959964


def wilson(num_right: int, total: int, deviations: float = DEVIATIONS) -> tuple[float, float]:
    """Compute Wilson's score interval of a share; (0, 1) without items.

    Unlike the usual normal interval, it is right for few items too, and never leaves 0..1.
    """
    if not total:
        return 0.0, 1.0
    share, square = num_right / total, deviations**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = deviations / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def correlation_interval(r: float, num_rows: int) -> tuple[float, float]:
    """Compute the 95 % interval of a correlation of `num_rows` rows by Fisher's transformation; −1..1 for 3 or fewer.

    tanh(artanh r ± 1.96 / √(N − 3))
    """
    if num_rows <= 3:
        return -1.0, 1.0
    if abs(r) >= 1:
        return r, r
    half = DEVIATIONS / math.sqrt(num_rows - 3)
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
