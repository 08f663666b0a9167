"""Pairs of captions of a drawn scene, of which one is right: the kinds that a visitor tries first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from starters.visitor.backgrounds import Background
from starters.visitor.pictures import USUAL_COLORS, USUAL_SHAPES, Pattern, Picture, Thing, encode_picture
from starters.visitor.questions import Question

NUMBERS = ("one", "two", "three", "four", "five")
# Columns and rows of a grid that keeps up to five things apart.
_PLACES = [(x, y) for y in (0.27, 0.73) for x in (0.18, 0.5, 0.82)]
_LIGHT: tuple[Background, ...] = ("white", "pale")
_DARK: tuple[Background, ...] = ("black", "dark")


@dataclass(frozen=True)
class Pair:
    """A scene and two captions."""

    things: tuple[Thing, ...]
    right: str
    wrong: str


@dataclass(frozen=True)
class Kind:
    """A kind of captions, and the accuracy that is aimed at."""

    name: str
    make: Callable[[Random], Pair]
    aim: float = 85.0


def caption_questions(kind: Kind, random: Random, count: int, *, is_dark: bool) -> list[Question]:
    """Draw scenes of a kind and ask which of two captions is right; each place is right equally often."""
    rights = [number % 2 for number in range(count)]
    random.shuffle(rights)
    return [_question(kind.make(random), right, random, _DARK if is_dark else _LIGHT) for right in rights]


def _question(pair: Pair, right: int, random: Random, backgrounds: Sequence[Background]) -> Question:
    picture = Picture(pair.things, random.choice(backgrounds), quality=random.choice((80, 90, 95)))
    captions = [pair.wrong, pair.wrong]
    captions[right] = pair.right
    return Question("caption", {"image": encode_picture(picture, random), "captions": captions}, right, (0, 1))


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _said(thing: Thing) -> str:
    return with_article(f"{thing.color} {thing.shape}")


def _two(random: Random, *, is_vertical: bool = False) -> tuple[Thing, Thing]:
    """Draw two things of different color and shape: left and right, or above and below."""
    colors, shapes = random.sample(USUAL_COLORS, 2), random.sample(USUAL_SHAPES, 2)
    first, second = (
        Thing(color, shape, near + random.uniform(-0.03, 0.03), 0.5 + random.uniform(-0.06, 0.06),
              random.uniform(0.18, 0.22))
        for color, shape, near in zip(colors, shapes, (0.26, 0.74), strict=True)
    )  # fmt: skip
    if is_vertical:
        return replace(first, x=first.y, y=first.x), replace(second, x=second.y, y=second.x)
    return first, second


def _exchanged(template: str, *, of: str = "colors", is_vertical: bool = False) -> Callable[[Random], Pair]:
    """Make pairs in which two things exchange their colors or their shapes; the first is left or above.

    Without a relation between them, either may be named first.
    """

    def make(random: Random) -> Pair:
        a, b = _two(random, is_vertical=is_vertical)
        if not is_vertical and random.random() < 0.5:
            a, b = b, a
        if of == "colors":
            c, d = replace(a, color=b.color), replace(b, color=a.color)
        else:
            c, d = replace(a, shape=b.shape), replace(b, shape=a.shape)
        return Pair((a, b), _filled(template, a, b), _filled(template, c, d))

    return make


def _filled(template: str, a: Thing, b: Thing) -> str:
    return template.format(
        a=_said(a), b=_said(b), a_color=a.color, a_shape=a.shape, b_color=b.color, b_shape=b.shape
    )  # fmt: skip


def _opposed(forward: str, backward: str, *, is_vertical: bool = False) -> Callable[[Random], Pair]:
    """Make pairs that differ in a relation and its opposite: `forward` is true of the left or upper thing."""

    def make(random: Random) -> Pair:
        a, b = things = _two(random, is_vertical=is_vertical)
        right, wrong = forward, backward
        if random.random() < 0.5:
            (a, b), (right, wrong) = (b, a), (backward, forward)
        return Pair(things, f"{_said(a)} {right} {_said(b)}", f"{_said(a)} {wrong} {_said(b)}")

    return make


def _other_way_round(relation: str, *, is_vertical: bool = False) -> Callable[[Random], Pair]:
    """Make pairs in which the two things of a relation change places."""

    def make(random: Random) -> Pair:
        a, b = _two(random, is_vertical=is_vertical)
        return Pair((a, b), f"{_said(a)} {relation} {_said(b)}", f"{_said(b)} {relation} {_said(a)}")

    return make


def _one(random: Random) -> Thing:
    return Thing(
        random.choice(USUAL_COLORS), random.choice(USUAL_SHAPES),
        0.5 + random.uniform(-0.12, 0.12), 0.5 + random.uniform(-0.12, 0.12), random.uniform(0.22, 0.34),
    )  # fmt: skip


def _changed(thing: Thing, random: Random) -> Thing:
    """Another thing: of another color, another shape, or both."""
    color = random.choice([one for one in USUAL_COLORS if one != thing.color])
    shape = random.choice([one for one in USUAL_SHAPES if one != thing.shape])
    return random.choice((replace(thing, color=color), replace(thing, shape=shape),
                          replace(thing, color=color, shape=shape)))  # fmt: skip


def _of_another_color(random: Random) -> Pair:
    thing = _one(random)
    color = random.choice([one for one in USUAL_COLORS if one != thing.color])
    return Pair((thing,), _said(thing), _said(replace(thing, color=color)))


def _of_another_shape(random: Random) -> Pair:
    thing = _one(random)
    shape = random.choice([one for one in USUAL_SHAPES if one != thing.shape])
    return Pair((thing,), _said(thing), _said(replace(thing, shape=shape)))


def _present_or_absent(random: Random) -> Pair:
    """Say of a thing that it is there or not; it is, in half of the scenes."""
    there = _one(random)
    named = there if random.random() < 0.5 else _changed(there, random)
    said = f"{named.color} {named.shape}"
    present, absent = f"there is {with_article(said)}", f"there is no {said}"
    return Pair((there,), present, absent) if named is there else Pair((there,), absent, present)


def _absent(random: Random) -> Pair:
    """Deny a thing that is absent, or the one that is there."""
    there = _one(random)
    other = _changed(there, random)
    return Pair((there,), f"there is no {other.color} {other.shape}", f"there is no {there.color} {there.shape}")


def _without(random: Random) -> Pair:
    """Say that one thing is there without or with another; both are, in half of the scenes."""
    a, b = _two(random)
    without, both = f"{_said(a)} without {_said(b)}", f"{_said(a)} with {_said(b)}"
    return Pair((a, b), both, without) if random.random() < 0.5 else Pair((a,), without, both)


def _counted(
    template: str, *, in_words: bool = True, among: Sequence[int] = (1, 2, 3, 4, 5)
) -> Callable[[Random], Pair]:
    """Make pairs of a right number and a neighbouring one, of equal things."""

    def make(random: Random) -> Pair:
        first = random.randrange(len(among) - 1)
        number, other = random.sample((among[first], among[first + 1]), 2)
        color, shape = random.choice(USUAL_COLORS), random.choice(USUAL_SHAPES)
        radius = random.uniform(0.1, 0.13)
        things = tuple(
            Thing(color, shape, x + random.uniform(-0.03, 0.03), y + random.uniform(-0.06, 0.06), radius)
            for x, y in random.sample(_PLACES, number)
        )
        right, wrong = (_number_of(count, color, shape, in_words=in_words) for count in (number, other))
        return Pair(things, template.format(right), template.format(wrong))

    return make


def _number_of(count: int, color: str, shape: str, *, in_words: bool) -> str:
    plural = shape if count == 1 else f"{shape}s"
    return f"{NUMBERS[count - 1] if in_words else count} {color} {plural}"


_PATTERNS: tuple[Pattern, ...] = ("striped", "dotted", "checkered", "plain")


def _of_another_pattern(random: Random) -> Pair:
    thing = _one(random)
    right, wrong = random.sample(_PATTERNS, 2)
    scene = replace(thing, pattern=right, radius=max(thing.radius, 0.28))
    return Pair((scene,), f"a {right} {thing.shape}", f"a {wrong} {thing.shape}")


def _exchanged_patterns(random: Random) -> Pair:
    first, second = random.sample(_PATTERNS, 2)
    a, b = _two(random)
    a, b = replace(a, pattern=first), replace(b, pattern=second)
    right, wrong = (f"a {p} {a.shape} and a {q} {b.shape}" for p, q in ((first, second), (second, first)))
    return Pair((a, b), right, wrong)


def _exchanged_sizes(random: Random) -> Pair:
    a, b = _two(random)
    a, b = replace(a, radius=random.uniform(0.2, 0.23)), replace(b, radius=random.uniform(0.08, 0.11))
    if random.random() < 0.5:
        a, b = replace(a, x=b.x), replace(b, x=a.x)
    big, small = random.choice((("big", "small"), ("large", "tiny"), ("large", "small")))
    right, wrong = (f"a {p} {a.shape} and a {q} {b.shape}" for p, q in ((big, small), (small, big)))
    return Pair((a, b), right, wrong)


KINDS: tuple[Kind, ...] = (
    Kind("one thing of another color", _of_another_color),
    Kind("one thing of another shape", _of_another_shape),
    Kind('"a … and a …", colors exchanged', _exchanged("{a} and {b}")),
    Kind('"a … and a …", shapes exchanged', _exchanged("{a} and {b}", of="shapes")),
    Kind('"a photo of a … and a …"', _exchanged("a photo of {a} and {b}")),
    Kind('"a … next to a …"', _exchanged("{a} next to {b}")),
    Kind('"a … beside a …"', _exchanged("{a} beside {b}")),
    Kind('"a … on top of a …"', _exchanged("{a} on top of {b}", is_vertical=True)),
    Kind('"The … is … and the … is …."', _exchanged("The {a_shape} is {a_color} and the {b_shape} is {b_color}.")),
    Kind('"left of" / "right of"', _opposed("left of", "right of")),
    Kind('"to the left of" / "to the right of"', _opposed("to the left of", "to the right of")),
    Kind('"on the left side of" / "on the right side of"', _opposed("on the left side of", "on the right side of")),
    Kind('"above" / "below"', _opposed("above", "below", is_vertical=True)),
    Kind('"over" / "under"', _opposed("over", "under", is_vertical=True)),
    Kind('"higher than" / "lower than"', _opposed("higher than", "lower than", is_vertical=True)),
    Kind('"left of", things exchanged', _other_way_round("left of")),
    Kind('"above", things exchanged', _other_way_round("above", is_vertical=True)),
    Kind("textures exchanged", _exchanged_patterns),
    Kind("one thing of another texture", _of_another_pattern),
    Kind("sizes exchanged", _exchanged_sizes),
    Kind('"there is no …" / "there is a …"', _present_or_absent, 75.0),
    Kind('"there is no …", absent or present', _absent, 75.0),
    Kind('"a … without a …" / "a … with a …"', _without, 75.0),
    Kind("three against two", _counted("{}", among=(2, 3)), 75.0),
    Kind("one to five, in words", _counted("a picture of {}"), 75.0),
    Kind("one to five, in numerals", _counted("{}", in_words=False), 75.0),
)
