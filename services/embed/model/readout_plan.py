"""The distinct (image, condition) pairs of a batch, so that each is computed once for all requests that contain it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

UNCONDITIONAL = -1

Pair = tuple[int, int]
Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class ReadoutPlan:
    """Distinct `pairs` of the places of an image and a condition (or UNCONDITIONAL); `row_index` into them for each
    condition of each item, in order; `ends` of the items in `row_index`."""

    pairs: Sequence[Pair]
    row_index: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, items: Sequence[tuple[int, Sequence[str | None]]], place_of: Mapping[str, int]) -> "ReadoutPlan":
        """Plan `items`, each the place of an image and its conditions' digests, None for the unconditional embedding;
        `place_of` maps a condition's digest to its place."""
        wanted = [
            (image, UNCONDITIONAL if digest is None else place_of[digest])
            for image, digests in items
            for digest in digests
        ]
        row_of = {pair: row for row, pair in enumerate(dict.fromkeys(wanted))}
        return cls(list(row_of), [row_of[pair] for pair in wanted], list(accumulate(len(d) for _, d in items)))

    def scatter(self, rows: Rows) -> list[Rows]:
        """Split the pairs' rows (R, E) into each item's own."""
        spread = rows[self.row_index]
        return [spread[start:end] for start, end in pairwise([0, *self.ends])]
