"""open_clip's image preprocessing, split at the point where pixels are still bytes.

Shapes: B images.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# Aspect ratio from which the ends of an image are cut off before it is resized; the centre crop drops them anyway.
MAX_ASPECT_RATIO = 32
RESIZE_MODES = ("shortest", "longest", "squash")
# Where folders in transformers' layout have their settings.
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"


def published_settings(directory: Path) -> dict[str, Any]:
    """Read how a folder in transformers' layout says that images are prepared. Raises OSError without its files."""
    path = directory / PREPROCESSOR
    # if transformers 5 saved a whole processor, the image part is in the processor's file
    settings: dict[str, Any] = (
        json.loads(path.read_text())
        if path.is_file()
        else json.loads((directory / PROCESSOR).read_text())["image_processor"]
    )
    return settings


@dataclass(frozen=True)
class ImageTransform:
    """open_clip's image preprocessing, split at the point where pixels are still bytes.

    `size` is (height, width) in pixels; `mean` and `std` are those of RGB in 0..1; `resize_mode` is open_clip's
    `shortest` (resize the shorter side, crop the centre), `longest` (resize the longer side, add black bars) or
    `squash` (ignore the aspect ratio). Raises ValueError for another one.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"

    def __post_init__(self) -> None:
        if self.resize_mode not in RESIZE_MODES:
            raise ValueError(f"resize_mode is {self.resize_mode!r}, which is not one of {', '.join(RESIZE_MODES)}")

    def __call__(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Resize and crop an RGB image of any size → (height, width, 3) uint8."""
        resampling = Image.Resampling[self.interpolation.upper()]
        height, width = self.size
        if self.resize_mode == "squash":
            return np.asarray(image.resize((width, height), resampling))
        if height != width:
            raise ValueError(f"resize_mode {self.resize_mode!r} needs a square input, this model's is {self.size}")
        if self.resize_mode == "longest":
            return padded(np.asarray(image.resize(fitting(image.size, height), resampling)), height)
        image = _without_far_ends(image)
        short = min(image.size)
        scaled = (height * image.width // short, height * image.height // short)
        if scaled != image.size:
            image = image.resize(scaled, resampling)
        left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
        return np.asarray(image.crop((left, top, left + width, top + height)))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise (B, height, width, 3) uint8 → (B, 3, height, width) float32, on the device of `pixels`."""
        mean, std = _of_channels(self.mean, pixels.device), _of_channels(self.std, pixels.device)
        return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


@functools.cache
def _of_channels(values: tuple[float, float, float], device: torch.device) -> Tensor:
    """Copy a number of each channel to the device once, usable in training too."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)


def fitting(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Scale (width, height) in pixels such that the longer one is `side` and the other at least 1."""
    scale = side / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def padded(pixels: np.ndarray[Any, np.dtype[np.uint8]], side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Add black bars on both sides: (height, width, 3), at most `side` each → (side, side, 3)."""
    height, width = pixels.shape[:2]
    top, left = (side - height) // 2, (side - width) // 2
    square = np.zeros((side, side, 3), dtype=np.uint8)
    square[top : top + height, left : left + width] = pixels
    return square


def _without_far_ends(image: Image.Image) -> Image.Image:
    """Return the middle of a very long image: the ends are cropped away anyway, and resizing them first could fill the
    memory (a line of 30,000 pixels becomes a plane of a hundred million)."""
    short = min(image.size)
    width, height = (min(side, MAX_ASPECT_RATIO * short) for side in image.size)
    if (width, height) == image.size:
        return image
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
