"""Resizing for vision-language models, most of which read images of any size."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from services.core.errors import InvalidRequest

# Longer images are refused, as by Qwen's processors.
MAX_ASPECT_RATIO = 200
SAMPLE_SIDE = 224


@dataclass(frozen=True)
class ImageFit:
    """Resizes RGB images: to sides that `factor` divides, of `min_pixels` to `max_pixels`, or to `max_side` at most.

    `size` is the (height, width) of a sample.
    """

    factor: int
    min_pixels: int | None
    max_pixels: int | None
    max_side: int | None = None
    size: tuple[int, int] = (SAMPLE_SIDE, SAMPLE_SIDE)

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        """Resize to (height, width, 3). Raises InvalidRequest for an image much longer than wide."""
        width, height = self.fitted(*image.size)
        if any(max(size) > MAX_ASPECT_RATIO * min(size) for size in (image.size, (width, height))):
            raise InvalidRequest(f"the image is more than {MAX_ASPECT_RATIO} times as long as wide")
        if (width, height) != image.size:
            by_pixels = self.max_side is None
            image = image.resize((width, height), Image.Resampling.BICUBIC if by_pixels else Image.Resampling.LANCZOS)
        return np.asarray(image)

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height to which an image of this size is resized."""
        if (side := self.max_side) is not None:
            longer = max(width, height)
            return (width, height) if longer <= side else (
                max(1, side * width // longer), max(1, side * height // longer)
            )  # fmt: skip
        assert self.min_pixels is not None and self.max_pixels is not None
        whole = [max(self.factor, round(one / self.factor) * self.factor) for one in (width, height)]
        if math.prod(whole) > self.max_pixels:
            beta = math.sqrt(width * height / self.max_pixels)
            whole = [max(self.factor, math.floor(one / beta / self.factor) * self.factor) for one in (width, height)]
        elif math.prod(whole) < self.min_pixels:
            beta = math.sqrt(self.min_pixels / (width * height))
            whole = [math.ceil(one * beta / self.factor) * self.factor for one in (width, height)]
        return whole[0], whole[1]


def image_factor(images: Any) -> int:
    """Return the pixels of a token's side, of transformers' image processor.

    Raises ValueError for a model whose images are not of any size.
    """
    patch, merged = getattr(images, "patch_size", None), getattr(images, "merge_size", None)
    if not isinstance(patch, int) or not isinstance(merged, int):
        raise ValueError("preprocessor_config.json has no patch_size and merge_size, as of models that read any size")
    return patch * merged
