"""Pictures of things: flat shapes with a color and a pattern, anti-aliased and encoded as JPEG."""

import base64
import colorsys
import io
import math
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from starters.visitor.backgrounds import Background, Color, Size, paint_background

# Shapes are drawn larger by this factor and then reduced, which smooths their edges.
SUPERSAMPLING = 3
Point = tuple[float, float]
Pattern = Literal["plain", "outline", "striped", "dotted", "checkered"]

COLORS: dict[str, Color] = {
    "red": (212, 33, 38),
    "green": (44, 158, 62),
    "blue": (38, 82, 201),
    "yellow": (242, 208, 36),
    "orange": (240, 128, 28),
    "purple": (124, 48, 160),
    "pink": (240, 130, 178),
    "brown": (121, 76, 42),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "hexagon", "cross", "crescent")
# Those that every drawing of a first visitor has; the others are for rows of their own.
USUAL_COLORS = ("red", "green", "blue", "yellow")
USUAL_SHAPES = ("circle", "square", "triangle", "star")


@dataclass(frozen=True)
class Thing:
    """A shape at a place: `x`, `y` in shares of width and height, `radius` in shares of the shorter side.

    `angle` is in degrees, `stroke` the width of an outline in shares of the radius.
    """

    color: str
    shape: str
    x: float = 0.5
    y: float = 0.5
    radius: float = 0.3
    angle: float = 0.0
    pattern: Pattern = "plain"
    stroke: float = 0.12


@dataclass(frozen=True)
class Picture:
    """Things on a background; `size` in pixels, `quality` of the JPEG encoding."""

    things: tuple[Thing, ...]
    background: Background = "white"
    size: Size = (192, 192)
    quality: int = 92


def encode_picture(picture: Picture, random: Random) -> str:
    """Draw a picture and return it as a data URI."""
    buffer = io.BytesIO()
    draw_picture(picture, random).save(buffer, "JPEG", quality=picture.quality)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def draw_picture(picture: Picture, random: Random) -> Image.Image:
    """Draw a picture; colors vary a little, so that no two pictures are alike."""
    generator = np.random.default_rng(random.getrandbits(64))
    canvas = paint_background(picture.background, picture.size, generator)
    for thing in picture.things:
        _draw_thing(canvas, thing, _varied(COLORS[thing.color], random))
    return canvas


def _varied(color: Color, random: Random) -> Color:
    """Change hue, saturation and value within what still has the same name."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(channel / 255 for channel in color))
    hue = (hue + random.uniform(-0.012, 0.012)) % 1
    saturation = min(1.0, saturation * random.uniform(0.92, 1.05))
    value = min(1.0, value * random.uniform(0.9, 1.06))
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def _draw_thing(canvas: Image.Image, thing: Thing, color: Color) -> None:
    """Draw the shape's masks in a square around it, enlarged, and paste its colors through them."""
    width, height = canvas.size
    radius = thing.radius * min(width, height)
    side = math.ceil(2 * radius * (1 + thing.stroke)) + 2
    left, top = round(thing.x * width - side / 2), round(thing.y * height - side / 2)
    scale = SUPERSAMPLING * radius
    middle = SUPERSAMPLING * side / 2
    points = [(middle + scale * x, middle + scale * y) for x, y in _rotated(_outline(thing.shape), thing.angle)]
    mask = Image.new("L", (SUPERSAMPLING * side, SUPERSAMPLING * side), 0)
    draw = ImageDraw.Draw(mask)
    if thing.pattern == "outline":
        draw.line(
            [*points, *points[:2]], fill=255, width=max(SUPERSAMPLING, round(thing.stroke * scale)), joint="curve"
        )
    else:
        draw.polygon(points, fill=255)
    canvas.paste(color, (left, top), mask.reduce(SUPERSAMPLING))
    if thing.pattern not in ("plain", "outline"):
        light = tuple(round(channel + 0.8 * (255 - channel)) for channel in color)
        canvas.paste(light, (left, top), _pattern_mask(mask, thing.pattern, 0.5 * scale).reduce(SUPERSAMPLING))


def _pattern_mask(shape: Image.Image, pattern: Pattern, period: float) -> Image.Image:
    """Keep those pixels of a shape that the pattern leaves light."""
    width, height = shape.size
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    if pattern == "striped":
        light = (x + y) % period < period / 2
    elif pattern == "checkered":
        light = (x // (period / 2) + y // (period / 2)) % 2 == 0
    else:
        light = (x % period - period / 2) ** 2 + (y % period - period / 2) ** 2 < (0.3 * period) ** 2
    return Image.fromarray((np.asarray(shape) * light).astype(np.uint8))


def _outline(shape: str) -> list[Point]:
    """Return the corners of a shape within a circle of radius 1; y points down."""
    match shape:
        case "circle":
            return _polygon(90)
        case "square":
            return [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]
        case "triangle":
            return _polygon(3)
        case "hexagon":
            return _polygon(6)
        case "star":
            inner = [(0.42 * x, 0.42 * y) for x, y in _polygon(5, turn=math.pi / 5)]
            return [point for pair in zip(_polygon(5), inner, strict=True) for point in pair]
        case "heart":
            steps = [2 * math.pi * k / 90 for k in range(90)]
            return [(math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t)
                                         - math.cos(4 * t)) / 16) for t in steps]  # fmt: skip
        case "cross":
            return [(-0.3, -0.95), (0.3, -0.95), (0.3, -0.3), (0.95, -0.3), (0.95, 0.3), (0.3, 0.3), (0.3, 0.95),
                    (-0.3, 0.95), (-0.3, 0.3), (-0.95, 0.3), (-0.95, -0.3), (-0.3, -0.3)]  # fmt: skip
        case "crescent":
            outer = [(math.cos(t), math.sin(t)) for t in np.linspace(0.25 * math.pi, 1.75 * math.pi, 60)]
            tip = outer[-1][0]
            inner = [(tip + 0.72 * math.cos(t), 0.708 * math.sin(t)) for t in np.linspace(1.5, 0.5, 40) * math.pi]
            return outer + inner
    raise ValueError(f"no shape is called {shape!r}")


def _polygon(corners: int, turn: float = 0.0) -> list[Point]:
    """Return a regular polygon whose first corner points up."""
    steps = [2 * math.pi * k / corners + turn for k in range(corners)]
    return [(math.sin(t), -math.cos(t)) for t in steps]


def _rotated(points: list[Point], degrees: float) -> list[Point]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in points]
