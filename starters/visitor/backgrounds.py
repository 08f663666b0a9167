"""Backgrounds of drawn pictures, as RGB pixels."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.float64]  # (height, width, 3), from 0 to 255
Color = tuple[int, int, int]
Size = tuple[int, int]  # width, height

Background = Literal["white", "pale", "colored", "black", "dark", "gradient", "texture", "noise"]

# Pale tones, and full ones of hues that no usual thing has.
_PALE: tuple[Color, ...] = ((186, 214, 235), (205, 232, 197), (244, 214, 196), (221, 207, 236), (250, 236, 186))
_FULL: tuple[Color, ...] = ((168, 118, 204), (240, 172, 112), (104, 186, 188), (206, 128, 156), (134, 102, 78))
_DARK: tuple[Color, ...] = ((24, 26, 38), (38, 30, 28), (20, 38, 34), (44, 44, 48), (36, 22, 44))


def paint_background(kind: Background, size: Size, random: np.random.Generator) -> Image.Image:
    """Paint a background of a kind; the same generator state gives the same pixels."""
    pixels = _PAINTERS[kind](size, random)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _flat(color: Color, size: Size) -> Pixels:
    return np.full((size[1], size[0], 3), color, dtype=np.float64)


def _one_of(colors: tuple[Color, ...], random: np.random.Generator) -> Color:
    return colors[int(random.integers(len(colors)))]


def _white(size: Size, _random: np.random.Generator) -> Pixels:
    return _flat((255, 255, 255), size)


def _light(size: Size, random: np.random.Generator) -> Pixels:
    level = int(random.integers(225, 250))
    return _flat((level, level, level), size)


def _colored(size: Size, random: np.random.Generator) -> Pixels:
    return _flat(_one_of(_PALE + _FULL, random), size)


def _black(size: Size, _random: np.random.Generator) -> Pixels:
    return _flat((0, 0, 0), size)


def _dark(size: Size, random: np.random.Generator) -> Pixels:
    return _flat(_one_of(_DARK, random), size)


def _gradient(size: Size, random: np.random.Generator) -> Pixels:
    """Blend two colors along a random direction."""
    width, height = size
    angle = random.uniform(0, 2 * np.pi)
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    along = x * np.cos(angle) + y * np.sin(angle)
    share = ((along - along.min()) / (along.max() - along.min()))[..., None]
    ends = random.choice(np.array(_PALE + _FULL + _DARK), size=2, replace=False)
    blended: Pixels = (1 - share) * ends[0] + share * ends[1]
    return blended


def _texture(size: Size, random: np.random.Generator) -> Pixels:
    """Draw wallpaper: stripes, checks or waves of two close tones."""
    width, height = size
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    period = max(4.0, min(size) * random.uniform(0.05, 0.12))
    kind = int(random.integers(3))
    if kind == 0:
        angle = random.uniform(0, np.pi)
        mask = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / period) > 0
    elif kind == 1:
        mask = (x // period + y // period) % 2 == 0
    else:
        mask = np.sin(2 * np.pi * (y + 0.4 * period * np.sin(2 * np.pi * x / (3 * period))) / period) > 0
    first = np.array(_one_of(_PALE + _FULL, random), dtype=np.float64)
    return np.where(mask[..., None], first, first * random.uniform(0.78, 0.9))


def _noise(size: Size, random: np.random.Generator) -> Pixels:
    """Sum smooth noise of several scales, weak noise of color and fine grain, as a photograph out of focus has it."""
    width, height = size
    pixels = np.broadcast_to(random.uniform(95, 160, size=3), (height, width, 3)).copy()
    for cells, strength in ((3, 34.0), (7, 20.0), (16, 11.0), (40, 6.0)):
        pixels += _smooth(cells, strength, size, random)[..., None]
    pixels += np.stack([_smooth(4, 9.0, size, random) for _ in range(3)], axis=-1)
    grain: Pixels = random.normal(scale=5.0, size=(height, width, 1))
    return pixels + grain


def _smooth(cells: int, strength: float, size: Size, random: np.random.Generator) -> NDArray[np.float64]:
    coarse = (random.normal(size=(cells, cells)) * strength).astype(np.float32)
    return np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), dtype=np.float64)


_PAINTERS: dict[Background, Callable[[Size, np.random.Generator], Pixels]] = {
    "white": _white,
    "pale": _light,
    "colored": _colored,
    "black": _black,
    "dark": _dark,
    "gradient": _gradient,
    "texture": _texture,
    "noise": _noise,
}
