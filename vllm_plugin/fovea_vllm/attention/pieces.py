"""A row's tokens cut into pieces, each of one document or of none: the units of the kernel's work.

The kernel merges pieces in chunks of `CHUNK`, and needs a document's pieces in one of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

CHUNK = 32  # pieces that are merged at once
SIZE = 256  # tokens of a piece, unless a document would have more than CHUNK pieces
OUTSIDE = -1  # the part of tokens that belong to no document


@dataclass(frozen=True, eq=False)
class Pieces:
    """`start`, `end` and `part` (P,): positions in the row's sequence and the document, or OUTSIDE.

    A document's pieces follow each other, ordered by document, before those outside. A piece with start == end is
    padding.
    """

    start: Ints
    end: Ints
    part: Ints

    def __len__(self) -> int:
        return len(self.start)

    def with_tail(self, start: int, end: int, size: int) -> "Pieces":
        """Append the tokens from `start` up to `end`, which belong to no document."""
        starts = np.arange(start, end, size, dtype=np.int32)
        return Pieces(
            np.concatenate((self.start, starts)),
            np.concatenate((self.end, np.minimum(starts + size, end, dtype=np.int32))),
            np.concatenate((self.part, np.full(len(starts), OUTSIDE, dtype=np.int32))),
        )


def piece_size(spans: Sequence[tuple[int, int]], size: int = SIZE) -> int:
    """Choose the length of pieces so that no document has more than CHUNK of them."""
    longest = max((end - start for start, end in spans), default=0)
    return max(size, -(-longest // CHUNK))


def cut(spans: Sequence[tuple[int, int]], first: int, last: int, size: int = SIZE) -> Pieces:
    """Cut the tokens from `first` up to `last` into pieces of about `size`; each is in one piece.

    `spans` do not overlap, and may be empty and in any order.
    """
    size = piece_size(spans, size)
    found: list[tuple[int, int, int]] = []
    for document, (start, end) in enumerate(spans):
        own = _ranges(max(start, first), min(end, last), size)
        if len(found) % CHUNK + len(own) > CHUNK:
            found += [(0, 0, OUTSIDE)] * (CHUNK - len(found) % CHUNK)
        found += [(begin, stop, document) for begin, stop in own]
    bounds = [first, *itertools.chain.from_iterable(sorted(span for span in spans if span[0] < span[1])), last]
    for start, end in zip(bounds[::2], bounds[1::2], strict=True):
        found += [(begin, stop, OUTSIDE) for begin, stop in _ranges(max(start, first), min(end, last), size)]
    pieces: Any = np.array(found, dtype=np.int32).reshape(-1, 3)
    return Pieces(pieces[:, 0], pieces[:, 1], pieces[:, 2])


def _ranges(start: int, end: int, size: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + size, end)) for begin in range(start, end, size)]
