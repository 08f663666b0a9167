"""From a picture's facts to its pixels."""

import functools
import io
import math
from typing import Any

import numpy as np
from PIL import Image

from starters.pictures.shapes import NUM_POINTS, POINTS_PER_RADIUS, REACH, Floats, distance_tables
from starters.pictures.things import Background, Picture, Rgb, Texture, Thing

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# Noise is cut out of a few fields that are made once: it is as good as new, and a hundred times as fast.
NUM_FIELDS = 24
FIELD_SIDE = 320


def render(picture: Picture, size: int) -> Pixels:
    """Render to (height, width, 3) uint8; `size` is the shorter side in pixels. Equal pictures have equal pixels."""
    height = size if picture.aspect >= 1 else round(size / picture.aspect)
    width = round(size * picture.aspect) if picture.aspect >= 1 else size
    random = np.random.default_rng(picture.seed)
    canvas = _background(picture.background, height, width, random)
    for thing in picture.things:
        _paint(canvas, thing, size)
    to_right, down = picture.light
    if to_right or down or picture.brightness != 1:
        across = picture.brightness + to_right * _centred(width)
        canvas *= (across + down * _centred(height)[:, None])[..., None]
    if picture.noise:
        canvas += picture.noise * _cut(_white_noise(), height, width, random)[..., None]
    pixels = (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)
    return pixels if picture.jpeg is None else _compressed(pixels, picture.jpeg)


def _centred(length: int) -> Floats:
    """Positions of the pixels of an axis, from −1/2 to 1/2."""
    middles: Floats = (np.arange(length, dtype=np.float32) + np.float32(0.5)) / np.float32(length)
    return middles - np.float32(0.5)


def _background(background: Background, height: int, width: int, random: np.random.Generator) -> Floats:
    first, second = np.array(background.rgb, np.float32), np.array(background.second_rgb, np.float32)
    canvas = np.empty((height, width, 3), np.float32)
    canvas[:] = first
    if background.kind == "plain":
        return canvas
    size = min(height, width)
    if background.kind == "noise":
        share = _cut(_clouds(), height, width, random)
    else:
        y, x = _centred(height)[:, None] * height / size, _centred(width) * width / size
        cos, sin = math.cos(background.angle), math.sin(background.angle)
        u, v = x * cos + y * sin, y * cos - x * sin
        if background.kind == "gradient":
            share = np.clip(0.5 + u, 0, 1)
        else:
            share = pattern(background.pattern, u / background.period, v / background.period, background.period * size)
    canvas += (background.contrast * share)[..., None] * (second - first)
    return canvas


def _paint(canvas: Floats, thing: Thing, size: int) -> None:
    """Blend a thing into the canvas, which is changed in place."""
    height, width = canvas.shape[:2]
    radius, reach = thing.radius * size, thing.radius * size * 1.3 + 1
    center_x, center_y = thing.x * width, thing.y * height
    left, right = max(0, int(center_x - reach)), min(width, int(center_x + reach) + 1)
    top, bottom = max(0, int(center_y - reach)), min(height, int(center_y + reach) + 1)
    if left >= right or top >= bottom:
        return
    x = (np.arange(left, right, dtype=np.float32) + np.float32(0.5 - center_x)) / np.float32(radius)
    y = ((np.arange(top, bottom, dtype=np.float32) + np.float32(0.5 - center_y)) / np.float32(radius))[:, None]
    u, v = turned(x, y, thing.angle)
    scale, middle, last = np.float32(POINTS_PER_RADIUS), np.float32(REACH * POINTS_PER_RADIUS + 0.5), NUM_POINTS - 1
    column = np.clip(u * scale + middle, 0, last).astype(np.intp)
    row = np.clip(v * scale + middle, 0, last).astype(np.intp)
    distance = distance_tables()[thing.shape][row, column]
    if thing.is_outline:
        distance = np.maximum(distance, -thing.stroke - distance)
    coverage = np.clip(0.5 - distance * np.float32(radius), 0, 1)[..., None]
    paint: Any = np.array(thing.rgb, np.float32)
    if thing.texture != "plain":
        u, v = turned(u, v, thing.slant)
        share = pattern(thing.texture, u / thing.period, v / thing.period, thing.period * radius)
        paint = paint + share[..., None] * (np.array(thing.second_rgb, np.float32) - paint)
    part = canvas[top:bottom, left:right]
    part += coverage * (paint - part)


def turned(x: Any, y: Any, angle: float) -> tuple[Any, Any]:
    """Give coordinates in a frame that is turned by an angle."""
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    return x * cos + y * sin, y * cos - x * sin


def pattern(texture: Texture, u: Any, v: Any, pixels: float) -> Any:
    """Compute the share (0..1) of the second colour at coordinates in periods; a period has this many `pixels`.

    Edges are a pixel wide, as those of shapes are.
    """
    sharpness = max(1.0, pixels / math.tau)
    turn = np.float32(math.tau)
    match texture:
        case "striped":
            wave = np.sin(u * turn)
        case "checkered":
            wave = np.sin(u * (turn / 2)) * np.sin(v * (turn / 2))
        case "dotted":
            wave = np.cos(u * turn) + np.cos(v * turn) - 0.3
        case "wavy":
            wave = np.sin((u + 0.35 * np.sin(v * (turn / 2))) * turn)
        case _:
            return np.zeros(np.broadcast_shapes(np.shape(u), np.shape(v)), np.float32)
    return np.clip(0.5 + wave * np.float32(sharpness), 0, 1)


@functools.cache
def _white_noise() -> Floats:
    return np.random.default_rng(1).standard_normal((NUM_FIELDS, FIELD_SIDE, FIELD_SIDE), dtype=np.float32)


@functools.cache
def _clouds() -> Floats:
    """Fields in 0..1 with the spectrum of photographs: noise of amplitude 1/f, some of them with sharper edges."""
    frequency = np.hypot(np.fft.fftfreq(FIELD_SIDE)[:, None], np.fft.rfftfreq(FIELD_SIDE))
    spectrum = np.fft.rfft2(_white_noise()) / np.maximum(frequency, 2 / FIELD_SIDE) ** 1.2
    fields = np.fft.irfft2(spectrum, s=(FIELD_SIDE, FIELD_SIDE)).astype(np.float32)
    fields /= fields.std(axis=(1, 2), keepdims=True)
    fields[::3] = np.tanh(4 * fields[::3])
    shares: Floats = np.clip(0.5 + 0.3 * fields, 0, 1).astype(np.float32)
    return shares


def _cut(fields: Floats, height: int, width: int, random: np.random.Generator) -> Floats:
    """Cut a random part out of a random field, repeated where a picture is larger than a field."""
    field = fields[random.integers(len(fields))]
    top, left = random.integers(0, FIELD_SIDE, 2)
    rows, columns = (top + np.arange(height)) % FIELD_SIDE, (left + np.arange(width)) % FIELD_SIDE
    part: Floats = field[rows[:, None], columns]
    return part if random.random() < 0.5 else part[:, ::-1]


def _compressed(pixels: Pixels, quality: int) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file).convert("RGB"))


def luminance(rgb: Rgb) -> float:
    """Compute the perceived brightness (0..1) of a colour."""
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]
