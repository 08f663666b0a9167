"""Waits that double, for what goes on for ever and so is no call that stamina could repeat."""


def backoff_s(num_failures: int, first_s: float, longest_s: float) -> float:
    """Return the seconds to wait after this many failures in a row: `first_s` after one, at most `longest_s`."""
    return min(first_s * 2.0 ** min(max(0, num_failures - 1), 64), longest_s)
