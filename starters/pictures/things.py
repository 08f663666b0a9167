"""Facts of a picture: its things, its background and how it was taken."""

from dataclasses import dataclass
from typing import Literal

Rgb = tuple[float, float, float]  # each from 0 to 1

# Paints that people call by one word; a thing's paint is a mixture of two of its word's.
PAINTS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (214, 39, 40), (190, 20, 30), (225, 55, 45)),
    "orange": ((255, 165, 0), (255, 127, 14), (240, 135, 35)),
    "yellow": ((255, 255, 0), (240, 210, 30), (250, 228, 80), (255, 215, 0)),
    "green": ((0, 128, 0), (44, 140, 44), (0, 200, 0), (40, 175, 75)),
    "blue": ((0, 0, 255), (40, 80, 220), (25, 50, 170), (65, 115, 235)),
    "purple": ((128, 0, 128), (128, 50, 160), (155, 75, 200), (105, 40, 150)),
    "pink": ((255, 192, 203), (245, 120, 190), (255, 105, 180), (250, 155, 190)),
    "brown": ((139, 69, 19), (125, 75, 40), (101, 67, 33), (150, 90, 50)),
    "black": ((0, 0, 0), (25, 25, 25), (40, 38, 42)),
    "white": ((255, 255, 255), (246, 246, 246), (236, 238, 236)),
    "gray": ((128, 128, 128), (112, 115, 118), (155, 155, 155)),
    "cyan": ((0, 255, 255), (30, 200, 210), (64, 224, 208), (0, 185, 200)),
}
Texture = Literal["plain", "striped", "dotted", "checkered", "wavy"]
BackgroundKind = Literal["plain", "gradient", "pattern", "noise"]


@dataclass(frozen=True)
class Thing:
    """A shape at a place: `x` and `y` of its centre as fractions of the width and the height, y downwards.

    `radius` is a fraction of the picture's shorter side, `angle` in radians. `stroke` is the width of an outline as a
    fraction of the radius, 0 for a filled thing. A texture paints part of the thing in `second_rgb`; `period` is its
    repetition as a fraction of the radius and `slant` its angle to the thing in radians.
    """

    shape: str
    color: str
    texture: Texture
    x: float
    y: float
    radius: float
    angle: float
    rgb: Rgb
    second_rgb: Rgb
    stroke: float = 0.0
    period: float = 0.5
    slant: float = 0.0

    @property
    def is_outline(self) -> bool:
        return self.stroke > 0


@dataclass(frozen=True)
class Background:
    """A background that is called by the word `color`; `period` is that of a pattern, as a fraction of the shorter
    side, `angle` its angle and that of a gradient. `contrast` (0..1) is how far it reaches from `rgb` to
    `second_rgb`."""

    kind: BackgroundKind
    color: str
    rgb: Rgb
    second_rgb: Rgb
    pattern: Texture = "plain"
    period: float = 0.2
    angle: float = 0.0
    contrast: float = 1.0


@dataclass(frozen=True)
class Picture:
    """Things from back to front on a background. `aspect` is the width divided by the height.

    `light` are the changes of brightness from left to right and from top to bottom, `brightness` multiplies all of it,
    `noise` is the standard deviation of each pixel's own, `jpeg` the quality of a compression, None for none. `seed`
    determines all noise.
    """

    things: tuple[Thing, ...]
    background: Background
    aspect: float = 1.0
    light: tuple[float, float] = (0.0, 0.0)
    brightness: float = 1.0
    noise: float = 0.0
    jpeg: int | None = None
    seed: int = 0
