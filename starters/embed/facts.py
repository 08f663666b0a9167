"""Facts of a picture, in words: the source of every caption and answer.

Attributes of a thing are its color, shape, size, position and object texture; the background has its color and texture.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from services.jobs.colorshape import (
    BACKGROUNDS,
    COLORS,
    COLUMNS,
    RELATIONS,
    ROWS,
    SIZES,
    TEXTURES,
    Scenes,
    is_held_out,
)
from services.jobs.colorshape import SHAPES as COLORSHAPE_SHAPES
from starters.pictures.shapes import SHAPES
from starters.pictures.things import PAINTS, Picture, Thing

OBJECT_TEXTURES = ("plain", "striped", "dotted", "checkered", "wavy")
# Every word of an attribute: ColorShape's and those of the wider pictures.
WORDS: dict[str, tuple[str, ...]] = {
    "color": tuple(dict.fromkeys([*COLORS, *PAINTS])),
    "shape": SHAPES,
    "size": SIZES,
    "position": tuple(
        column if (row, column) == ("middle", "center") else f"{row} {column}" for row in ROWS for column in COLUMNS
    ),
    "background": tuple(dict.fromkeys([*BACKGROUNDS, *PAINTS])),
    "texture": (*TEXTURES, "wavy", "gradient", "cloudy"),
    "object texture": OBJECT_TEXTURES,
}
# Things between these radii, in shares of the shorter side, are neither small nor large.
SMALL_RADIUS, LARGE_RADIUS = 0.15, 0.2
# Sizes and positions are told in pictures that are at most this much longer than wide.
MAX_TOLD_ASPECT = 1.4
# A place has a name within this distance from the middle of a third, in shares of the side.
PLACE_REACH = 0.11

# Probability that a caption mentions an attribute: attributes that captions rarely mention are not separated in the
# text space, and then no condition can retrieve them.
MENTION_PROBABILITY = {
    "color": 0.8, "shape": 0.85, "size": 0.5, "background": 0.5, "texture": 0.5, "position": 0.5, "object texture": 0.7,
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Words by attribute of one or two things, of what surrounds them, and of the first one's place to the second.

    What has no word is left out.
    """

    things: tuple[Mapping[str, str], ...]
    surroundings: Mapping[str, str]
    relation: str = ""
    said: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "said", {**self.things[0], **self.surroundings})


def scene_facts(scenes: Scenes, index: int) -> Facts:
    """Tell the facts of a ColorShape scene; the words of a color without a name are left out."""
    things = tuple(
        {
            **({"color": list(COLORS)[color]} if (color := int(scenes.color[index, slot])) >= 0 else {}),
            "shape": COLORSHAPE_SHAPES[int(scenes.shape[index, slot])],
            "size": SIZES[int(scenes.size[index, slot])],
            "position": WORDS["position"][int(scenes.cell[index])],
            "object texture": "plain",
        }
        for slot in range(int(scenes.num_objects[index]))
    )
    surroundings = {
        "background": list(BACKGROUNDS)[int(scenes.background[index])],
        "texture": TEXTURES[int(scenes.texture[index])],
    }
    return Facts(things, surroundings, RELATIONS[int(scenes.relation[index])])


def picture_facts(picture: Picture) -> Facts:
    """Tell the facts of a picture; gradients and photograph-like backgrounds have no color."""
    background = picture.background
    texture = {"plain": "plain", "gradient": "gradient", "noise": "cloudy"}.get(background.kind, background.pattern)
    surroundings = {"texture": texture}
    if background.kind in ("plain", "pattern"):
        surroundings["background"] = background.color
    things = tuple(_thing_words(thing, picture.aspect) for thing in picture.things)
    return Facts(things, surroundings, _relation(picture))


def answer(facts: Facts, attributes: Sequence[str]) -> str | None:
    """Return the canonical answer about the first thing, for example "red" or "small object"; None if a word is
    missing."""
    if not all(attribute in facts.said for attribute in attributes):
        return None
    return phrase({attribute: facts.said[attribute] for attribute in attributes})


@functools.cache
def phrases(attributes: tuple[str, ...]) -> tuple[str, ...]:
    """List the answers that a combination of attributes can have, without held-out pairs of color and shape."""
    said = (
        dict(zip(attributes, words, strict=True))
        for words in itertools.product(*(WORDS[attribute] for attribute in attributes))
    )
    return tuple(phrase(words) for words in said if not is_kept_apart(words.get("color"), words.get("shape")))


@functools.cache
def is_kept_apart(color: str | None, shape: str | None) -> bool:
    """Whether training never draws a thing of this color and shape."""
    if color not in COLORS or shape not in COLORSHAPE_SHAPES:
        return False
    places = list(COLORS).index(color), COLORSHAPE_SHAPES.index(shape)
    return bool(is_held_out(*(torch.tensor(place) for place in places)))


def phrase(words: Mapping[str, str]) -> str:
    """Return the shortest text for these attributes, for example "red circle" or "red object at the top left"."""
    if len(words) == 1 and (alone := words.get("color") or words.get("shape") or words.get("position")):
        return alone
    parts = []
    if {"size", "color", "shape", "object texture"} & set(words):
        subject = (words.get("size"), words.get("object texture"), words.get("color"), words.get("shape", "object"))
        parts.append(" ".join(word for word in subject if word))
    if "position" in words:
        parts.append(f"at the {words['position']}")
    behind = " ".join(word for word in (words.get("texture"), words.get("background")) if word)
    if behind:
        parts.append(f"on a {behind} background" if parts else f"{behind} background")
    return " ".join(parts)


def describe(facts: Facts, dice: Sequence[float]) -> str:
    """Write a caption of one or two things with some of their attributes left out.

    `dice` are nine uniform numbers in 0..1 that determine content and wording.
    """
    if len(facts.things) == 2:
        return _describe_pair(facts, dice)
    said = {
        name: facts.said.get(name, "") if dice[i] < share else ""
        for i, (name, share) in enumerate(MENTION_PROBABILITY.items())
    }
    texture = said["object texture"] if said["object texture"] != "plain" else ""
    subject = " ".join(word for word in (said["size"], texture, said["color"], said["shape"] or "object") if word)
    behind = " ".join(word for word in (said["texture"], said["background"]) if word)
    return sentence(subject, said["position"], f"{behind} background" if behind else "", dice[8])


def sentence(subject: str, where: str, behind: str, draw: float) -> str:
    """Write a subject, its place and what is behind it as one of four kinds of captions; `draw` is in 0..1."""
    if draw < 0.25:
        parts = [f"a {subject}", f"at the {where}" if where else "", f"on a {behind}" if behind else ""]
        return " ".join(part for part in parts if part)
    if draw < 0.5:
        parts = [f"a picture of a {subject}", f"in the {where}" if where else "", f"with a {behind}" if behind else ""]
        return " ".join(part for part in parts if part)
    if draw < 0.75:
        return ", ".join(part for part in (subject, where, behind) if part)
    parts = [f"{behind} with" if behind else "there is", f"a {subject}", f"in the {where}" if where else ""]
    return " ".join(part for part in parts if part)


def _thing_words(thing: Thing, aspect: float) -> dict[str, str]:
    words = {"color": thing.color, "shape": thing.shape, "object texture": thing.texture}
    if max(aspect, 1 / aspect) > MAX_TOLD_ASPECT:
        return words
    if not SMALL_RADIUS < thing.radius < LARGE_RADIUS:
        words["size"] = SIZES[int(thing.radius >= LARGE_RADIUS)]
    column, row = (min(2, int(3 * place)) for place in (thing.x, thing.y))
    if max(abs(thing.x - (column + 0.5) / 3), abs(thing.y - (row + 0.5) / 3)) < PLACE_REACH:
        words["position"] = WORDS["position"][3 * row + column]
    return words


def _relation(picture: Picture) -> str:
    """Name the first thing's place to the second, along the direction in which they are further apart."""
    if len(picture.things) < 2:
        return ""
    first, second = picture.things[:2]
    across, down = (first.x - second.x) * picture.aspect, first.y - second.y
    if abs(across) > abs(down):
        return RELATIONS[0] if across < 0 else RELATIONS[1]
    return RELATIONS[2] if down < 0 else RELATIONS[3]


def _describe_pair(facts: Facts, dice: Sequence[float]) -> str:
    objects = []
    for slot, thing in enumerate(facts.things):
        color = f"{thing['color']} " if dice[slot] < 0.85 else ""
        objects.append(f"a {color}{thing['shape'] if dice[2 + slot] < 0.85 else 'object'}")
    relation = facts.relation if dice[4] < 0.65 else "and"
    behind = facts.surroundings.get("background", "") if dice[5] < 0.25 else ""
    return f"{objects[0]} {relation} {objects[1]}" + (f" on a {behind} background" if behind else "")
