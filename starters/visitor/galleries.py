"""Galleries of pictures of one thing, to be retrieved by its color or its shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from starters.visitor.backgrounds import Background
from starters.visitor.pictures import COLORS, SHAPES, USUAL_COLORS, USUAL_SHAPES, Picture, Thing, encode_picture
from starters.visitor.questions import Question
from starters.visitor.wordings import COLOR_WORDINGS, SHAPE_WORDINGS

# A rendering changes a plain drawing.
Rendering = Callable[[Picture, Random], Picture]


@dataclass(frozen=True)
class Words:
    """Colors and shapes of a gallery."""

    colors: tuple[str, ...] = USUAL_COLORS
    shapes: tuple[str, ...] = USUAL_SHAPES


def gallery_question(
    rendering: Rendering,
    random: Random,
    num_images: int,
    *,
    conditions: Mapping[str, str],
    words: Words = Words(),
) -> Question:
    """Draw a gallery and ask for its embeddings under conditions, each of them about the `color` or the `shape`.

    Colors and shapes are equally frequent, and independent of each other as far as the number of images allows.
    """
    num_colors, num_shapes = len(words.colors), len(words.shapes)
    drawn = [
        (words.colors[number % num_colors], words.shapes[(number + number // num_colors) % num_shapes])
        for number in range(num_images)
    ]
    random.shuffle(drawn)
    images = [encode_picture(rendering(_plain(*one, random), random), random) for one in drawn]
    colors, shapes = zip(*drawn, strict=True)
    right = tuple(colors if about == "color" else shapes for about in conditions.values())
    body = {"images": images, "condition": list(conditions), "encoding_format": "base64"}
    return Question("gallery", body, right)


def _plain(color: str, shape: str, random: Random) -> Picture:
    thing = Thing(color, shape, random.uniform(0.4, 0.6), random.uniform(0.4, 0.6), random.uniform(0.22, 0.34))
    return Picture((thing,))


def _of_thing(change: Callable[[Thing, Random], Thing]) -> Rendering:
    def rendering(picture: Picture, random: Random) -> Picture:
        return replace(picture, things=tuple(change(thing, random) for thing in picture.things))

    return rendering


def _on(background: Background) -> Rendering:
    return lambda picture, _random: replace(picture, background=background)


def _outlined(thing: Thing, random: Random) -> Thing:
    return replace(thing, pattern="outline", stroke=random.uniform(0.08, 0.14))


def _thick(thing: Thing, random: Random) -> Thing:
    return replace(thing, pattern="outline", stroke=random.uniform(0.25, 0.35))


def _rotated(thing: Thing, random: Random) -> Thing:
    return replace(thing, angle=random.uniform(0, 360))


def _tiny(thing: Thing, random: Random) -> Thing:
    x, y = random.uniform(0.15, 0.85), random.uniform(0.15, 0.85)
    return replace(thing, x=x, y=y, radius=random.uniform(0.06, 0.09))


def _anywhere(width: int, height: int) -> Rendering:
    """Make images of a size in which things lie anywhere along the longer side."""

    def rendering(picture: Picture, random: Random) -> Picture:
        (thing,) = picture.things
        place = random.uniform(0.2, 0.8)
        placed = replace(thing, x=place) if width > height else replace(thing, y=place)
        return replace(picture, size=(width, height), things=(placed,))

    return rendering


def _compressed(picture: Picture, random: Random) -> Picture:
    return replace(picture, quality=random.randint(6, 12))


def _of_any_shape(picture: Picture, random: Random) -> Picture:
    return replace(picture, size=random.choice(((96, 96), (240, 180), (180, 240), (320, 180), (150, 260))))


def _any(picture: Picture, random: Random) -> Picture:
    return random.choice(list(RENDERINGS.values()))(picture, random)


RENDERINGS: dict[str, Rendering] = {
    "plain": lambda picture, _random: picture,
    "colored background": _on("colored"),
    "black background": _on("black"),
    "gradient background": _on("gradient"),
    "textured background": _on("texture"),
    "photograph-like background": _on("noise"),
    "outlines": _of_thing(_outlined),
    "thick strokes": _of_thing(_thick),
    "rotated": _of_thing(_rotated),
    "tiny": _of_thing(_tiny),
    "wide images": _anywhere(384, 144),
    "tall images": _anywhere(128, 320),
    "several aspect ratios": _of_any_shape,
    "JPEG, strongly compressed": _compressed,
}
MIXED = "every rendering mixed"
ALL_RENDERINGS: dict[str, Rendering] = {**RENDERINGS, MIXED: _any}

WORDINGS: dict[str, str] = {
    **dict.fromkeys(COLOR_WORDINGS, "color"),
    **dict.fromkeys(SHAPE_WORDINGS, "shape"),
}
# The wordings that the project's own pages use.
USUAL = {COLOR_WORDINGS[0]: "color", SHAPE_WORDINGS[0]: "shape"}
MANY_WORDS = Words(tuple(COLORS), SHAPES)
