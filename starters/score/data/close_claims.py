"""Pictures made for a fact that is hard to see, and claims about them that differ in that fact alone.

Of pictures and claims of any kind, few are about the number of equal things, about textures or about sizes, and fewer
ask for nothing else.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from starters.pictures.shapes import SHAPES
from starters.pictures.things import Picture
from starters.pictures.variety import Variety, draw_picture
from starters.score.data.claims import COLORS, FINISHES, MAX_THINGS, MIN_RATIO, OPPOSITES, Claim, Noun, nouns, some_of

Group = list[Claim]

NUM_WRONG = 3
# Textures with periods from three pixels of a small image to a whole thing.
COARSE, FINEST, MIXES = (0.3, 1.1), 0.05, (0.5, 1.0)
NUMBERED = Variety(counts=tuple(range(1, MAX_THINGS + 1)), alike=1.0, overlaps=0.05)
TEXTURED = Variety(
    counts=(1, 1, 2, 3, 4), radii=(0.12, 0.42), textured=0.9, outlines=0.05, overlaps=0.05, alike=0.15, periods=COARSE,
    finest=FINEST, mixes=MIXES,
)  # fmt: skip
TWO_TEXTURES = replace(TEXTURED, counts=(2,), textured=1.0, outlines=0.0, alike=0.1)
TWO_SIZES = Variety(counts=(2,), overlaps=0.05)
FEW = Variety(counts=(1, 2, 2, 3), textured=0.2)
# Attributes that a claim says.
OF_NUMBERS = (("shape",), ("shape",), ("shape",), ("color", "shape"), ("color",), ())
OF_TEXTURES = (("finish", "shape"), ("finish", "shape"), ("finish", "color", "shape"), ("finish", "color"))
OF_SIZES = (("size", "shape"), ("size", "color", "shape"), ("size", "color", "shape"), ("size", "color"))
OF_ABSENCES = (("color", "shape"), ("color", "shape"), ("shape",), ("color",))


def numbered(random: Random) -> tuple[Picture, Group]:
    """Draw things of which most are alike, and claims of different numbers."""
    picture = draw_picture(NUMBERED, random)
    known = nouns(picture)
    names = random.choice(OF_NUMBERS)
    first = some_of(random.choice(known), names)
    number = sum(some_of(other, names) == first for other in known)
    others = [some_of(other, names) for other in known if names and some_of(other, names) != first]
    claim = Claim(first, number=number)
    if others and random.random() < 0.3:
        second = others[0]
        claim = replace(claim, second=second, second_number=sum(some_of(other, names) == second for other in known))
    wrong = random.sample([other for other in range(1, MAX_THINGS + 1) if other != number], NUM_WRONG)
    return picture, [claim, *(replace(claim, number=other) for other in wrong)]


def textured(random: Random) -> tuple[Picture, Group]:
    """Draw things with textures, and claims of different textures of one of them."""
    picture = draw_picture(TEXTURED, random)
    one = some_of(random.choice(nouns(picture)), random.choice(OF_TEXTURES))
    wrong = random.sample([finish for finish in FINISHES if finish != one.finish], NUM_WRONG)
    return picture, [Claim(one), *(Claim(replace(one, finish=finish)) for finish in wrong)]


def two_textures(random: Random) -> tuple[Picture, Group]:
    """Draw two things with different textures, and claims in which these are exchanged or one is another."""
    while True:
        picture = draw_picture(TWO_TEXTURES, random)
        a, b = nouns(picture)
        if a.finish != b.finish and (a.shape != b.shape or a.color != b.color):
            return picture, _exchanges(a, b, "finish", FINISHES, OF_TEXTURES, random)


def two_sizes(random: Random) -> tuple[Picture, Group]:
    """Draw a small and a big thing, and claims in which the sizes are exchanged or one is the other."""
    while True:
        picture = draw_picture(TWO_SIZES, random)
        a, b = nouns(picture)
        radii = [thing.radius for thing in picture.things]
        if max(radii) >= 1.1 * MIN_RATIO * min(radii) and (a.shape != b.shape or a.color != b.color):
            break
    if random.random() < 0.75:
        return picture, _exchanges(a, b, "size", ("small", "big"), OF_SIZES, random)
    relation = "bigger" if radii[0] > radii[1] else "smaller"
    names = _distinct(a, b, (("shape",), ("color", "shape"), ("color",)), random)
    claim = Claim(some_of(a, names), some_of(b, names), relation)
    opposite = OPPOSITES[relation]
    turned = replace(claim, first=claim.second, second=claim.first)
    return picture, [claim, replace(claim, relation=opposite), turned, replace(turned, relation=opposite)]


def absent(random: Random) -> tuple[Picture, Group]:
    """Draw a few things, and denials of things that are there and that are not there, alone or beside a thing."""
    picture = draw_picture(FEW, random)
    known = nouns(picture)
    names = random.choice(OF_ABSENCES)
    there = list(dict.fromkeys(some_of(noun, names) for noun in known))
    random.shuffle(there)
    missing: list[Noun] = []
    while len(missing) < 2:
        near = random.choice(known)
        drawn = {"color": random.choice(COLORS), "shape": random.choice(SHAPES)}
        if random.random() < 0.6:  # a word of it is true of something
            kept = random.choice(("color", "shape"))
            drawn[kept] = getattr(near, kept)
        noun = Noun(**{name: drawn[name] for name in names})
        if noun not in there and noun not in missing:
            missing.append(noun)
    beside = None if random.random() < 0.6 else random.choice(there)

    def denied(noun: Noun) -> Claim:
        return Claim(noun, number=0) if beside is None else Claim(beside, noun, second_number=0)

    others = [noun for noun in there if noun != beside] or there
    contrary = Claim(missing[0]) if beside is None else Claim(beside, missing[0])
    another = others[-1] if len(others) > 1 else missing[1]
    return picture, [denied(missing[0]), denied(others[0]), denied(another), contrary]


Maker = Callable[[Random], tuple[Picture, Group]]
# Each as often as it stands here.
MAKERS: tuple[Maker, ...] = (
    numbered, numbered, textured, textured, two_textures, two_textures, two_sizes, two_sizes, two_sizes, absent, absent,
)  # fmt: skip


def close_group(random: Random, makers: tuple[Maker, ...] = MAKERS) -> tuple[Picture, Group]:
    """Draw a picture and a group of claims about it, the first of them true and most others false."""
    return random.choice(makers)(random)


def _exchanges(
    a: Noun, b: Noun, name: str, values: tuple[str, ...], choices: tuple[tuple[str, ...], ...], random: Random
) -> Group:
    """Claim two things whose values of an attribute are exchanged, in either order, and that one has another value."""
    names = _distinct(a, b, choices, random)
    if random.random() < 0.5:
        a, b = b, a
    claim = Claim(some_of(a, names), some_of(b, names))
    assert claim.first is not None
    assert claim.second is not None
    mine, yours = getattr(a, name), getattr(b, name)
    exchanged = replace(
        claim, first=replace(claim.first, **{name: yours}), second=replace(claim.second, **{name: mine})
    )
    turned = replace(exchanged, first=exchanged.second, second=exchanged.first)
    other = random.choice([value for value in values if value != mine])
    return [claim, exchanged, turned, replace(claim, first=replace(claim.first, **{name: other}))]


def _distinct(a: Noun, b: Noun, choices: tuple[tuple[str, ...], ...], random: Random) -> tuple[str, ...]:
    """Choose attributes of which a colour or a shape tells two things apart."""
    apart = [name for name in ("color", "shape") if getattr(a, name) != getattr(b, name)]
    return random.choice([names for names in choices if any(name in names for name in apart)])
