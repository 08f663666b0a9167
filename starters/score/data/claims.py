"""Claims about pictures: their truth by rule, and others that differ in one fact.

Shapes: A claims, B pictures, T = 5 places for the things of a picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from starters.pictures.shapes import SHAPES
from starters.pictures.things import PAINTS, Picture, Thing

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Codes = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

MAX_THINGS = 5
SIZES = ("small", "big")
COLORS = tuple(PAINTS)
FINISHES = ("plain", "striped", "dotted", "checkered", "wavy", "outlined")
ATTRIBUTES = ("size", "color", "finish", "shape")
VALUES: dict[str, tuple[str, ...]] = {"size": SIZES, "color": COLORS, "finish": FINISHES, "shape": SHAPES}
RELATIONS = ("left", "right", "above", "below", "bigger", "smaller")
OPPOSITES = {"left": "right", "right": "left", "above": "below", "below": "above", "bigger": "smaller",
             "smaller": "bigger"}  # fmt: skip
# A thing is left of another if its centre is at least this far to the left, as a fraction of the side, and not much
# further up or down.
MIN_OFFSET, MIN_SLOPE = 0.1, 0.7
# Things are big or small beside others from this ratio of their radii on, and by themselves beyond these radii.
MIN_RATIO = 1.4
LONE_RADII = (0.12, 0.24)
NOTHING = -2  # the code of an empty place, which no noun matches


@dataclass(frozen=True)
class Noun:
    """Things with these attributes; None for those that are not said."""

    size: str | None = None
    color: str | None = None
    finish: str | None = None
    shape: str | None = None


@dataclass(frozen=True)
class Claim:
    """A claim that there are things like `first` and, if it is said, things like `second`.

    Without a number one or more are claimed, with a number exactly as many, and none with 0. `relation` is that of one
    of the first to one of the second. `background` is the colour behind them.
    """

    first: Noun | None = None
    second: Noun | None = None
    relation: str | None = None
    number: int | None = None
    second_number: int | None = None
    background: str | None = None


@dataclass(frozen=True)
class PictureFacts:
    """Facts of pictures as arrays: codes of ATTRIBUTES (B, T, 4), NOTHING in empty places and −1 for a size that is
    neither small nor big; of each two things (B, 6, T, T) whether a relation holds; backgrounds (B,)."""

    attributes: Codes
    relations: Bools
    background: Codes


def finish(thing: Thing) -> str:
    """Name the finish of a thing: its texture, or that it is an outline."""
    return "outlined" if thing.is_outline else thing.texture


def thing_sizes(radii: Sequence[float]) -> list[str | None]:
    """Tell which of a picture's things are small, big or, by None, neither."""
    low, high = LONE_RADII
    if max(radii) >= MIN_RATIO * min(radii):
        low, high = 1.2 * min(radii), max(radii) / 1.2
    return ["small" if radius <= low else "big" if radius >= high else None for radius in radii]


def nouns(picture: Picture) -> list[Noun]:
    """Describe each thing of a picture completely."""
    sizes = thing_sizes([thing.radius for thing in picture.things])
    return [Noun(size, t.color, finish(t), t.shape) for size, t in zip(sizes, picture.things, strict=True)]


def picture_facts(pictures: Sequence[Picture]) -> PictureFacts:
    """Collect the facts of square pictures of at most MAX_THINGS things."""
    attributes = np.full((len(pictures), MAX_THINGS, len(ATTRIBUTES)), NOTHING, np.int64)
    place = np.full((len(pictures), MAX_THINGS, 3), np.nan, np.float32)
    for i, picture in enumerate(pictures):
        for k, noun in enumerate(nouns(picture)):
            attributes[i, k] = noun_codes(noun)
            thing = picture.things[k]
            place[i, k] = thing.x, thing.y, thing.radius
    x, y = (place[:, :, None, i] - place[:, None, :, i] for i in range(2))  # (B, T, T), of first and second
    with np.errstate(invalid="ignore"):
        is_across, is_along = abs(x) >= MIN_SLOPE * abs(y), abs(y) >= MIN_SLOPE * abs(x)
        ratio = place[:, :, None, 2] / place[:, None, :, 2]
        holds = [
            (x <= -MIN_OFFSET) & is_across,
            (x >= MIN_OFFSET) & is_across,
            (y <= -MIN_OFFSET) & is_along,
            (y >= MIN_OFFSET) & is_along,
            ratio >= MIN_RATIO,
            ratio <= 1 / MIN_RATIO,
        ]
    background = np.array([COLORS.index(picture.background.color) for picture in pictures], np.int64)
    return PictureFacts(attributes, np.stack(holds, axis=1), background)


def noun_codes(noun: Noun | None) -> tuple[int, ...]:
    """Return the positions of a noun's words in VALUES, −1 for those that are not said."""
    words = (None if noun is None else getattr(noun, name) for name in ATTRIBUTES)
    return tuple(-1 if word is None else VALUES[name].index(word) for name, word in zip(ATTRIBUTES, words, strict=True))


def truth(claims: Sequence[Claim], facts: PictureFacts) -> Bools:
    """Tell which claims are true of which pictures, (A, B)."""
    first, second = (
        _matches(np.array([noun_codes(getattr(claim, name)) for claim in claims]), facts.attributes)
        for name in ("first", "second")
    )
    is_true = _as_many(first, [claim.number for claim in claims], [claim.first is None for claim in claims])
    is_true &= _as_many(second, [claim.second_number for claim in claims], [claim.second is None for claim in claims])
    is_twice = [c.first is not None and c.first == c.second and c.number == c.second_number is None for c in claims]
    is_true &= (first.sum(axis=2) >= 2) | ~np.array(is_twice)[:, None]
    for number, name in enumerate(RELATIONS):
        some = np.array([claim.relation == name for claim in claims])
        if some.any():
            holds = (first[some][:, :, :, None] & second[some][:, :, None]) & facts.relations[None, :, number]
            is_true[some] &= holds.any(axis=(2, 3))
    behind = np.array([-1 if claim.background is None else COLORS.index(claim.background) for claim in claims])
    is_true &= (behind[:, None] < 0) | (behind[:, None] == facts.background)
    return is_true


def _matches(codes: Codes, attributes: Codes) -> Bools:
    """Tell which things nouns (A, 4) match, (A, B, T)."""
    said = codes[:, None, None]
    is_match: Bools = ((said < 0) | (said == attributes)).all(axis=-1) & (attributes[..., 0] != NOTHING)
    return is_match


def _as_many(matches: Bools, numbers: list[int | None], is_unsaid: list[bool]) -> Bools:
    found = matches.sum(axis=2)
    wanted = np.array([-1 if number is None else number for number in numbers])[:, None]
    is_true: Bools = np.where(wanted < 0, found > 0, found == wanted) | np.array(is_unsaid)[:, None]
    return is_true


def draw_claim(picture: Picture, random: Random) -> Claim:
    """Draw a claim that is nearly always true of a picture."""
    known = nouns(picture)
    random.shuffle(known)
    kind = random.random()
    one = known[0]
    if kind < 0.18 or len(known) == 1:
        claim = Claim(some_of(one, _attributes(random)))
    elif kind < 0.36:
        return _counted(known, one, random)
    else:
        names = _attributes(random)
        if some_of(one, names) == some_of(known[1], names):
            names = ("color", "shape")
        pair = Claim(some_of(one, names), some_of(known[1], names))
        claim = replace(pair, relation=_relation(picture, one, known[1], random)) if kind < 0.66 else pair
    if random.random() < 0.2:
        claim = _denying(claim, known, random)
    if random.random() < 0.08 and claim.relation is None:
        claim = replace(claim, background=picture.background.color)
    return claim


def _attributes(random: Random) -> tuple[str, ...]:
    choices = (("color", "shape"),) * 9 + (("shape",), ("color",)) * 2 + (
        ("finish", "shape"), ("finish", "shape"), ("finish", "color", "shape"), ("finish",), ("size", "shape"),
        ("size", "shape"), ("size", "color", "shape"), ("size", "color"), ("size",),
    )  # fmt: skip
    return random.choice(choices)


def some_of(noun: Noun, names: Sequence[str]) -> Noun:
    """Keep these attributes of a noun."""
    return Noun(**{name: getattr(noun, name) for name in names})


def _relation(picture: Picture, first: Noun, second: Noun, random: Random) -> str | None:
    """Draw a relation that holds between two of the described things, None if there is none."""
    described = nouns(picture)
    a, b = (picture.things[described.index(noun)] for noun in (first, second))
    found = []
    x, y = a.x - b.x, a.y - b.y
    if abs(x) >= MIN_OFFSET and abs(x) >= MIN_SLOPE * abs(y):
        found += ["left" if x < 0 else "right"] * 3
    if abs(y) >= MIN_OFFSET and abs(y) >= MIN_SLOPE * abs(x):
        found += ["above" if y < 0 else "below"] * 3
    if max(a.radius, b.radius) >= MIN_RATIO * min(a.radius, b.radius):
        found.append("bigger" if a.radius > b.radius else "smaller")
    return random.choice(found) if found else None


def _counted(known: Sequence[Noun], one: Noun, random: Random) -> Claim:
    """Claim the number of the things that are like one of them, with other things or without."""
    names = random.choice((("shape",), ("shape",), ("color", "shape"), ("color",), ("finish", "shape"), ()))

    def number(noun: Noun) -> int:
        return sum(all(getattr(other, name) == getattr(noun, name) for name in names) for other in known)

    first = some_of(one, names)
    others = [other for other in known if names and some_of(other, names) != first]
    if others and random.random() < 0.35:
        second = some_of(random.choice(others), names)
        return Claim(first, second, number=number(first), second_number=number(second))
    return Claim(first, number=number(first))


def _denying(claim: Claim, known: Sequence[Noun], random: Random) -> Claim:
    """Claim that something is absent which is not there, often like what is there."""
    model = claim.second or claim.first
    assert model is not None
    absent = model
    for _ in range(4):
        absent = _changed(absent, known, random)
        if not any(_fits(absent, other) for other in known):
            break
    else:
        return claim
    if claim.second is not None or random.random() < 0.35:
        return Claim(claim.first, absent, second_number=0)
    return Claim(absent, number=0)


def _fits(noun: Noun, other: Noun) -> bool:
    return all(getattr(noun, name) in (None, getattr(other, name)) for name in ATTRIBUTES)


def _changed(noun: Noun, known: Sequence[Noun], random: Random) -> Noun:
    """Change one word of a noun, half of the time to one that is true of another thing."""
    said = [name for name in ATTRIBUTES if getattr(noun, name) is not None]
    if not said:
        return noun
    name = random.choice(said)
    near = [getattr(other, name) for other in known]
    pool = [word for word in near if word is not None] if random.random() < 0.5 else list(VALUES[name])
    others = [word for word in pool if word != getattr(noun, name)] or list(VALUES[name])
    return replace(noun, **{name: random.choice(others)})


def alternatives(claim: Claim, picture: Picture, count: int, random: Random) -> list[Claim]:
    """Draw claims that differ from one in a fact: most are false of the picture, `truth` tells which."""
    known = nouns(picture)
    made: list[Claim] = []
    makers = [lambda: _exchanged(claim, random)] * 3 if claim.second is not None else []
    makers += [lambda: _renumbered(claim, random)] * (3 if claim.number else 1)
    if claim.relation is not None:
        makers += [lambda: replace(claim, relation=OPPOSITES[str(claim.relation)])] * 3
        makers += [lambda: replace(claim, first=claim.second, second=claim.first)] * 2
    if claim.background is not None:
        makers += [lambda: replace(claim, background=random.choice(COLORS))] * 2
    makers += [lambda: _replaced(claim, known, random)] * 4
    for _ in range(4 * count):
        other = random.choice(makers)()
        if other != claim and other not in made:
            made.append(other)
        if len(made) == count:
            break
    while len(made) < count:
        made.append(_replaced(claim, known, random))
    return made


def _replaced(claim: Claim, known: Sequence[Noun], random: Random) -> Claim:
    if claim.first is None:
        return claim
    if claim.second is not None and random.random() < 0.5:
        return replace(claim, second=_changed(claim.second, known, random))
    return replace(claim, first=_changed(claim.first, known, random))


def _exchanged(claim: Claim, random: Random) -> Claim:
    """Exchange an attribute of both nouns, or their numbers."""
    first, second = claim.first, claim.second
    if first is None or second is None:
        return claim
    if claim.number and claim.second_number and random.random() < 0.5:
        return replace(claim, number=claim.second_number, second_number=claim.number)
    names = [
        name
        for name in ATTRIBUTES
        if None not in (getattr(first, name), getattr(second, name)) and getattr(first, name) != getattr(second, name)
    ]
    if not names:
        return claim
    name = random.choice(names)
    return replace(
        claim,
        first=replace(first, **{name: getattr(second, name)}),
        second=replace(second, **{name: getattr(first, name)}),
    )


def _renumbered(claim: Claim, random: Random) -> Claim:
    """Claim another number, or the contrary of an absence or a presence."""
    if claim.relation is not None or claim.background is not None:
        return claim
    if claim.number:
        near = [number for number in (claim.number - 1, claim.number + 1) if 1 <= number <= MAX_THINGS]
        return replace(claim, number=random.choice(near if random.random() < 0.6 else range(1, MAX_THINGS + 1)))
    if claim.second is not None:
        return replace(claim, second_number=None if claim.second_number == 0 else 0)
    return replace(claim, number=None if claim.number == 0 else 0)
