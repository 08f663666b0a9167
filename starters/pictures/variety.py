"""Varieties of pictures, and the drawing of one. Whatever a `Variety` leaves out is held out of a training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from starters.pictures.rendering import luminance
from starters.pictures.shapes import SHAPES
from starters.pictures.things import PAINTS, Background, BackgroundKind, Picture, Rgb, Texture, Thing

# Greatest radius, as a fraction of the shorter side, by the number of things.
MAX_RADIUS = (0.42, 0.42, 0.24, 0.2, 0.17, 0.155)
# A texture is not seen on smaller things.
MIN_TEXTURED_RADIUS = 0.1
# A circle with a wider outline would be a ring.
MAX_CIRCLE_STROKE = 0.22
# A paint differs at least this much from the background, as a distance in RGB.
MIN_CONTRAST = 0.38
# Greatest difference between two paints of a word by chance, of each channel.
JITTER = 0.04
NUM_TRIES = 30


@dataclass(frozen=True)
class Variety:
    """Renderings that are allowed. Of a tuple, one entry is drawn for each picture or thing, all equally often.

    `counts` are numbers of things; `alike` is the share of pictures in which all things share a shape or a colour or
    both, `outlines` that of things that are outlines, `textured` that of things with another texture than plain,
    `overlaps` that of pictures whose things may hide parts of each other, `turned` that of things at any angle
    (others are upright), `compressed` that of pictures with JPEG's artefacts. `radii` and `strokes` are ranges,
    `aspects` the greatest ratio of the sides. `dark` is the share of dark backgrounds among plain ones and gradients.
    `periods` is the range of a texture's period as a fraction of the radius, which is at least `finest`, a fraction of
    the shorter side; `mixes` that of how far its second paint is from the first, towards white or black.
    """

    shapes: tuple[str, ...] = SHAPES
    colors: tuple[str, ...] = tuple(PAINTS)
    textures: tuple[Texture, ...] = ("striped", "dotted", "checkered", "wavy")
    backgrounds: tuple[BackgroundKind, ...] = ("plain", "plain", "gradient", "pattern", "noise")
    counts: tuple[int, ...] = (1, 2, 2, 3, 4, 5)
    radii: tuple[float, float] = (0.07, 0.42)
    strokes: tuple[float, float] = (0.14, 0.5)
    alike: float = 0.3
    outlines: float = 0.2
    textured: float = 0.35
    overlaps: float = 0.15
    turned: float = 0.4
    compressed: float = 0.2
    dark: float = 0.45
    aspects: float = 1.0
    periods: tuple[float, float] = (0.35, 0.75)
    finest: float = 0.0
    mixes: tuple[float, float] = (0.45, 0.9)
    max_light: float = 0.25
    max_noise: float = 0.05


def draw_picture(variety: Variety, random: Random) -> Picture:
    """Draw a picture; the same state of `random` draws the same one."""
    background = draw_background(variety, random)
    count = random.choice(variety.counts)
    is_overlapping = random.random() < variety.overlaps
    aspect = math.exp(random.uniform(-1, 1) * math.log(variety.aspects)) if variety.aspects != 1 else 1.0
    kinds = _kinds(variety, count, random)
    radii = _radii(variety, count, random)
    centers, shrinking = _places(radii, aspect, random, is_overlapping=is_overlapping)
    things = tuple(
        _thing(variety, kind, (x, y), radius * shrinking, background, random)
        for kind, (x, y), radius in zip(kinds, centers, radii, strict=True)
    )
    return Picture(
        things,
        background,
        aspect,
        light=(random.uniform(-1, 1) * variety.max_light, random.uniform(-1, 1) * variety.max_light),
        brightness=random.uniform(0.88, 1.06) if variety.max_light else 1.0,
        noise=random.uniform(0, variety.max_noise) if random.random() < 0.5 else 0.0,
        jpeg=random.randint(25, 90) if random.random() < variety.compressed else None,
        seed=random.getrandbits(32),
    )


def draw_paint(color: str, random: Random) -> Rgb:
    """Mix two paints of a word."""
    first, second = random.choice(PAINTS[color]), random.choice(PAINTS[color])
    share = random.random()
    mixed = ((a + (b - a) * share) / 255 for a, b in zip(first, second, strict=True))
    red, green, blue = (min(1.0, max(0.0, value + random.uniform(-JITTER, JITTER))) for value in mixed)
    return red, green, blue


def draw_background(variety: Variety, random: Random) -> Background:
    """Draw a background: white, black and gray half of the time, light or dark as the variety says."""
    kind = random.choice(variety.backgrounds)
    is_dark = random.random() < variety.dark
    for _ in range(NUM_TRIES):
        color = random.choice(("black", "gray") if is_dark else ("white", "white", "gray"))
        if random.random() < 0.5:
            color = random.choice(tuple(PAINTS))
        rgb = draw_paint(color, random)
        if color not in ("black", "white"):  # pale or deep
            target, share = (0.0 if is_dark else 1.0), random.uniform(0, 0.7)
            rgb = _mixed(rgb, (target, target, target), share)
        if (luminance(rgb) < 0.45) == is_dark:
            break
    reach = {"gradient": 0.6, "pattern": 0.35, "noise": 0.55}.get(kind, 0.0)
    target = random.choice((0.0, 1.0))
    second = _mixed(draw_paint(random.choice(tuple(PAINTS)), random), (target,) * 3, random.uniform(0, 0.6))
    return Background(
        kind,
        color,
        rgb,
        second,
        pattern=random.choice(variety.textures) if variety.textures else "plain",
        period=random.uniform(0.06, 0.35),
        angle=random.uniform(0, math.tau),
        contrast=random.uniform(0.3, 1) * reach,
    )


def _mixed(first: Rgb, second: Rgb, share: float) -> Rgb:
    red, green, blue = (a + (b - a) * share for a, b in zip(first, second, strict=True))
    return red, green, blue


Kind = tuple[str, str, Texture, bool]


def _kinds(variety: Variety, count: int, random: Random) -> list[Kind]:
    """Draw shape, colour, texture and whether it is an outline of each thing."""

    def kind() -> Kind:
        shape, color = random.choice(variety.shapes), random.choice(variety.colors)
        is_outline = random.random() < variety.outlines
        is_textured = variety.textures and not is_outline and random.random() < variety.textured
        texture: Texture = random.choice(variety.textures) if is_textured else "plain"
        return shape, color, texture, is_outline

    kinds = [kind() for _ in range(count)]
    if random.random() < variety.alike:
        shape, color, texture, is_outline = kinds[0]
        keeps_shape, keeps_color, keeps_rest = (random.random() < share for share in (0.8, 0.65, 0.8))
        kinds = [
            (
                shape if keeps_shape else other[0],
                color if keeps_color else other[1],
                texture if keeps_rest else other[2],
                is_outline if keeps_rest else other[3],
            )
            for other in kinds
        ]
    return kinds


def _angle(variety: Variety, shape: str, random: Random) -> float:
    """Draw an angle; squares and diamonds are turned so far only that nobody takes one for the other."""
    if random.random() >= variety.turned:
        return random.uniform(-0.12, 0.12)
    return random.uniform(-0.35, 0.35) if shape in ("square", "diamond") else random.uniform(0, math.tau)


def _stroke(variety: Variety, shape: str, random: Random) -> float:
    """Draw the width of an outline; a ring has none, because it is one."""
    stroke = random.uniform(*variety.strokes)
    return {"ring": 0.0, "circle": min(stroke, MAX_CIRCLE_STROKE)}.get(shape, stroke)


def _radii(variety: Variety, count: int, random: Random) -> list[float]:
    """Draw radii: all similar half of the time, else small and large ones."""
    low, high = variety.radii[0], min(variety.radii[1], MAX_RADIUS[min(count, len(MAX_RADIUS) - 1)])
    low = min(low, high)
    if random.random() < 0.5:
        middle = random.uniform(max(low, 0.45 * high), high)
        return [min(high, max(low, middle * random.uniform(0.88, 1.12))) for _ in range(count)]
    if random.random() < 0.5:
        return [random.uniform(low, high) for _ in range(count)]
    sizes = [random.random() < 0.5 for _ in range(count)]
    return [random.uniform(low, max(low, 0.5 * high)) if small else random.uniform(0.8, 1) * high for small in sizes]


def _places(
    radii: Sequence[float], aspect: float, random: Random, *, is_overlapping: bool
) -> tuple[list[tuple[float, float]], float]:
    """Draw centres inside the picture, apart from each other, and a factor for all radii that makes them fit."""
    width, height = max(1.0, aspect), max(1.0, 1 / aspect)  # in shorter sides
    apart = 0.65 if is_overlapping else 1.12
    shrinking = 1.0
    while True:
        for _ in range(3):
            places: list[tuple[float, float]] = []
            for number, radius in enumerate(radii):
                margin = min(0.5, shrinking * radius * 1.05)
                for _ in range(NUM_TRIES):
                    x, y = random.uniform(margin, width - margin), random.uniform(margin, height - margin)
                    if all(
                        math.hypot(x - a, y - b) >= apart * shrinking * (radius + other)
                        for (a, b), other in zip(places, radii, strict=False)
                    ):
                        places.append((x, y))
                        break
                if len(places) <= number:
                    break
            if len(places) == len(radii):
                return [(x / width, y / height) for x, y in places], shrinking
        shrinking *= 0.88


def _thing(
    variety: Variety, kind: Kind, center: tuple[float, float], radius: float, background: Background, random: Random
) -> Thing:
    shape, color, texture, is_outline = kind
    behind = _mixed(background.rgb, background.second_rgb, 0.5 * background.contrast)
    for _ in range(NUM_TRIES):
        rgb = draw_paint(color, random)
        if min(math.dist(rgb, behind), math.dist(rgb, background.rgb)) >= MIN_CONTRAST:
            break
    else:  # no paint of this word is seen there
        rest = [other for other in variety.colors if other != color]
        if rest:
            visible = random.choice(rest)
            return _thing(
                replace(variety, colors=tuple(rest)), (shape, visible, texture, is_outline), center, radius, background,
                random,
            )  # fmt: skip
    target = 1.0 if luminance(rgb) < 0.5 else random.choice((0.0, 0.0, 1.0))
    second = _mixed(rgb, (target, target, target), random.uniform(*variety.mixes))
    return Thing(
        shape,
        color,
        texture if radius >= MIN_TEXTURED_RADIUS else "plain",
        *center,
        radius,
        _angle(variety, shape, random),
        rgb,
        second,
        stroke=_stroke(variety, shape, random) if is_outline else 0.0,
        period=max(random.uniform(*variety.periods), variety.finest / radius),
        slant=random.choice((0.0, math.pi / 2, math.pi / 4, random.uniform(0, math.pi))),
    )
