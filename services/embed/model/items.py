"""Items and results of a batch: images and texts ready to be encoded, their readings, and what of them is distinct.

Shapes: E embedding width, R distinct pairs of an image and a condition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from services.nn.clip_texts import Text

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Pixels = Bytes
# `ImageEngine.state_bytes` bytes, (state_bytes,); only the engine that computed one can read it.
ImageState = Bytes
Embeddings = np.ndarray[Any, np.dtype[np.float32]]

# Places of an image and a condition in a batch.
Pair = tuple[int, int]
UNCONDITIONAL = -1


@dataclass(frozen=True, eq=False)
class ImageItem:
    """An image, transformed but still bytes (height, width, 3), to be read under each of `conditions`.

    `digest` identifies the image: items of equal digest share one pass. A condition of None gives the unconditional
    embedding. `keeps_state` asks for the image's state in addition to the embeddings.
    """

    digest: str
    pixels: Pixels
    conditions: tuple[Text | None, ...]
    keeps_state: bool = False


@dataclass(frozen=True, eq=False)
class StateItem:
    """An image that was encoded before and is read from its state under each of `conditions`."""

    digest: str
    state: ImageState
    conditions: tuple[Text | None, ...]


Item = ImageItem | StateItem | Text


@dataclass(frozen=True, eq=False)
class Reading:
    """The result of a batch for an item: `rows` (conditions, E), one for a text, L2-normalised float32.

    `state` is set if it was asked for, unless one of its numbers is too large for half precision or
    `ImageEngine.state_bytes` is None.
    """

    rows: Embeddings
    state: ImageState | None = None


@dataclass(frozen=True)
class ReadoutPlan:
    """Distinct `pairs` of the places of an image and a condition (or UNCONDITIONAL), so that each is computed once for
    all requests that contain it; `row_index` into them for each condition of each item, in order; `ends` of the items
    in `row_index`."""

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

    def scatter(self, rows: Embeddings) -> list[Embeddings]:
        """Split the pairs' rows (R, E) into each item's own."""
        spread = rows[self.row_index]
        return [spread[start:end] for start, end in pairwise([0, *self.ends])]
