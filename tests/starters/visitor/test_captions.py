"""The right one of a scene's two captions is true, and the other is false."""

import re
from random import Random

import pytest

from starters.visitor.captions import KINDS, NUMBERS, Pair
from starters.visitor.pictures import Thing

PAIR = re.compile(r"an? (\w+) (\w+) ([a-z ]+?) an? (\w+) (\w+)$")
# Which coordinate a relation compares, and whether the first thing has the smaller one.
RELATIONS = {
    **dict.fromkeys(("left of", "to the left of", "on the left side of"), ("x", True)),
    **dict.fromkeys(("right of", "to the right of", "on the right side of"), ("x", False)),
    **dict.fromkeys(("above", "over", "higher than", "on top of"), ("y", True)),
    **dict.fromkeys(("below", "under", "lower than"), ("y", False)),
    **dict.fromkeys(("and", "next to", "beside", "with"), ("", True)),
}
SCENES = 40


def holds(caption: str, things: tuple[Thing, ...]) -> bool:
    """Read a caption as a person would, and compare it with the scene."""
    caption = caption.removeprefix("a photo of ").removeprefix("a picture of ")
    if found := re.fullmatch(r"there is (no|an?) (\w+) (\w+)", caption):
        return (find(things, found[2], found[3]) is None) == (found[1] == "no")
    if found := re.fullmatch(r"The (\w+) is (\w+) and the (\w+) is (\w+)\.", caption):
        return None not in (find(things, found[2], found[1]), find(things, found[4], found[3]))
    if found := re.fullmatch(r"an? (\w+) (\w+) without an? (\w+) (\w+)", caption):
        return find(things, found[1], found[2]) is not None and find(things, found[3], found[4]) is None
    if found := re.fullmatch(r"an? (\w+) (\w+)", caption):
        return find(things, found[1], found[2]) is not None
    if found := re.fullmatch(r"(\w+) (\w+) (\w+?)s?", caption):
        number = int(found[1]) if found[1].isdigit() else NUMBERS.index(found[1]) + 1
        return sum((thing.color, thing.shape) == (found[2], found[3]) for thing in things) == number
    found = PAIR.fullmatch(caption)
    assert found, caption
    first, second = find(things, found[1], found[2]), find(things, found[4], found[5])
    if first is None or second is None:
        return False
    axis, is_less = RELATIONS[found[3]]
    return not axis or (getattr(first, axis) < getattr(second, axis)) == is_less


def find(things: tuple[Thing, ...], adjective: str, shape: str) -> Thing | None:
    """Find a thing by its shape and its color, texture or size."""
    sizes = sorted(thing.radius for thing in things)
    for thing in things:
        size = ("big", "large") if thing.radius == sizes[-1] else ("small", "tiny")
        if thing.shape == shape and adjective in (thing.color, thing.pattern, *size):
            return thing
    return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_right_caption_is_true_and_the_other_is_false(kind: object) -> None:
    (made,) = (one for one in KINDS if one is kind)
    random = Random(made.name)
    for _ in range(SCENES):
        pair: Pair = made.make(random)
        assert holds(pair.right, pair.things), pair
        assert not holds(pair.wrong, pair.things), pair


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "exchanged" in kind.name], ids=lambda kind: kind.name)
def test_exchanged_captions_have_the_same_words(kind: object) -> None:
    (made,) = (one for one in KINDS if one is kind)
    for seed in range(SCENES):
        pair = made.make(Random(seed))
        assert sorted(pair.right.split()) == sorted(pair.wrong.split())


def test_things_do_not_overlap_and_lie_within_the_picture() -> None:
    for kind in KINDS:
        for seed in range(SCENES):
            things = kind.make(Random(seed)).things
            for number, thing in enumerate(things):
                assert all(thing.radius * 0.85 <= place <= 1 - thing.radius * 0.85 for place in (thing.x, thing.y))
                for other in things[:number]:
                    distance = max(abs(thing.x - other.x), abs(thing.y - other.y))
                    assert distance > 0.99 * max(thing.radius, other.radius) + 0.8 * min(thing.radius, other.radius)
