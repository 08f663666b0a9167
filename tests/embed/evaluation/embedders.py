"""Embedders that see one plain thing, and note what they are asked."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from services.embed.evaluation.embedders import NoTextSide


class MeanColor:
    """Sees an image's mean colour, whatever it is asked."""

    name = "mean colour"
    image_size = 8

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.num_images = 0

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> NDArray[np.float32]:
        means = np.stack([np.asarray(image, np.float32).mean(axis=(0, 1)) - 127 for image in images])
        self.asked += instructions
        self.num_images += len(means)
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return np.broadcast_to(means, (len(instructions), *means.shape))

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise NoTextSide("a colour has no text side")


class ColorWords(MeanColor):
    """Reads the first of three colours that a text names."""

    name = "colour words"

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.read += texts
        primaries = np.eye(3, dtype=np.float32) * 255 - 127
        rows = [primaries[next(i for i, word in enumerate(("red", "green", "blue")) if word in t)] for t in texts]
        features = np.stack(rows)
        unit: NDArray[np.float32] = features / np.linalg.norm(features, axis=1, keepdims=True)
        return unit
