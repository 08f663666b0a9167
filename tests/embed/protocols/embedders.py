"""Embedders that see one plain thing, and note what they are asked."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image


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
        raise ValueError("a colour has no text side")
