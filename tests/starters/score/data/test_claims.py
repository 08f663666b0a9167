"""The truth of claims follows from the facts of a picture, and other claims differ from one in a fact."""

from dataclasses import replace
from random import Random

import pytest

from starters.pictures.things import Background, Picture, Thing
from starters.pictures.variety import Variety, draw_picture
from starters.score.data.claims import Claim, Noun, alternatives, draw_claim, nouns, picture_facts, thing_sizes, truth

WHITE = Background("plain", "white", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


def thing(color: str, shape: str, x: float, y: float, radius: float = 0.1) -> Thing:
    return Thing(shape, color, "plain", x, y, radius, 0.0, (1.0, 0.0, 0.0), (0.0, 0.0, 0.0))


# A large red circle on the left, a small blue square to its right, and another blue square at the bottom.
PICTURE = Picture(
    (thing("red", "circle", 0.2, 0.3, 0.18), thing("blue", "square", 0.8, 0.3), thing("blue", "square", 0.5, 0.85)),
    WHITE,
)
RED_CIRCLE, BLUE_SQUARE = Noun(color="red", shape="circle"), Noun(color="blue", shape="square")
BLUE_CIRCLE, RED_SQUARE = Noun(color="blue", shape="circle"), Noun(color="red", shape="square")


@pytest.mark.parametrize(
    ("claim", "is_true"),
    [
        (Claim(RED_CIRCLE), True),
        (Claim(BLUE_CIRCLE), False),
        (Claim(RED_CIRCLE, BLUE_SQUARE), True),
        (Claim(BLUE_CIRCLE, RED_SQUARE), False),
        (Claim(RED_CIRCLE, BLUE_SQUARE, relation="left"), True),
        (Claim(BLUE_SQUARE, RED_CIRCLE, relation="right"), True),
        (Claim(RED_CIRCLE, BLUE_SQUARE, relation="right"), False),
        (Claim(BLUE_SQUARE, RED_CIRCLE, relation="below"), True),
        (Claim(RED_CIRCLE, BLUE_SQUARE, relation="bigger"), True),
        (Claim(Noun(size="big", shape="circle"), Noun(size="small", shape="square")), True),
        (Claim(Noun(size="small", shape="circle")), False),
        (Claim(BLUE_SQUARE, number=2), True),
        (Claim(BLUE_SQUARE, number=1), False),
        (Claim(BLUE_SQUARE, number=3), False),
        (Claim(Noun(), number=3), True),
        (Claim(BLUE_CIRCLE, number=0), True),
        (Claim(RED_CIRCLE, number=0), False),
        (Claim(RED_CIRCLE, BLUE_CIRCLE, second_number=0), True),
        (Claim(RED_CIRCLE, BLUE_SQUARE, second_number=0), False),
        (Claim(BLUE_SQUARE, BLUE_SQUARE), True),
        (Claim(RED_CIRCLE, RED_CIRCLE), False),
        (Claim(BLUE_SQUARE, background="white"), True),
        (Claim(BLUE_SQUARE, background="black"), False),
        (Claim(Noun(finish="striped")), False),
    ],
)
def test_the_truth_of_a_claim_follows_from_the_things(claim: Claim, is_true: bool) -> None:
    assert truth([claim], picture_facts([PICTURE])).tolist() == [[is_true]]


def test_the_truth_of_many_claims_is_that_of_each_alone() -> None:
    random = Random(3)
    pictures = [draw_picture(Variety(), random) for _ in range(20)]
    claims = [draw_claim(picture, random) for picture in pictures]
    together = truth(claims, picture_facts(pictures))
    for i, claim in enumerate(claims):
        for k in (0, 7, 19):
            assert truth([claim], picture_facts([pictures[k]]))[0, 0] == together[i, k]


def test_claims_are_true_of_their_pictures_and_most_others_are_false() -> None:
    random = Random(4)
    pictures = [draw_picture(Variety(), random) for _ in range(200)]
    right, wrong = 0, 0
    for picture in pictures:
        facts = picture_facts([picture])
        claim = draw_claim(picture, random)
        others = alternatives(claim, picture, 3, random)
        assert len(others) == 3
        right += int(truth([claim], facts)[0, 0])
        wrong += int((~truth(others, facts)).sum())
    assert right >= 198
    assert wrong >= 400


def test_sizes_are_relative_to_the_other_things_where_these_differ() -> None:
    assert thing_sizes([0.1, 0.2]) == ["small", "big"]
    assert thing_sizes([0.3]) == ["big"]
    assert thing_sizes([0.1]) == ["small"]
    assert thing_sizes([0.18, 0.2]) == [None, None]


def test_an_outline_is_a_finish() -> None:
    outlined = replace(PICTURE, things=(replace(PICTURE.things[0], stroke=0.2),))
    assert nouns(outlined)[0].finish == "outlined"
