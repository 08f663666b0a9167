"""Texts of a small student that go round in circles."""

from collections.abc import Sequence

MAX_BLOCK = 8
TIMES = 3


def before_circles(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens up to the first block that is repeated `TIMES` times in a row, with the block once.

    All of them if no block of at most `MAX_BLOCK` tokens is.
    """
    ids = tuple(token_ids)
    for start in range(len(ids)):
        for size in range(1, MAX_BLOCK + 1):
            stop = start + TIMES * size
            if stop <= len(ids) and ids[start:stop] == ids[start : start + size] * TIMES:
                return ids[: start + size]
    return ids
