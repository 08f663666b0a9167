"""Items and results of a batch: images and texts ready to be encoded, and their readings.

Shapes: E embedding width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from services.nn.clip_texts import Text

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Pixels = Bytes
# `ImageEngine.state_bytes` bytes, (state_bytes,); only the engine that computed one can read it.
ImageState = Bytes
Embeddings = np.ndarray[Any, np.dtype[np.float32]]


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
