"""Predicates in the plural, in the past and denied."""

import random

import pytest

from starters.predict.sentence_pairs.handwritten.doings import doings, opposites
from starters.predict.sentence_pairs.handwritten.predicates import conjugated, denied, past, plural


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("is asleep", "are asleep"),
        ("was at home", "were at home"),
        ("has two cars", "have two cars"),
        ("carries a box", "carry a box"),
        ("watches the game", "watch the game"),
        ("still lives here", "still live here"),
        ("doesn't smoke", "don't smoke"),
        ("bought a car", "bought a car"),
        ("can swim", "can swim"),
    ],
)
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many


@pytest.mark.parametrize(
    ("told", "denials"),
    [
        ("is asleep", {"is not asleep", "isn't asleep"}),
        ("has a dog", {"does not have a dog", "doesn't have a dog"}),
        ("has lost some coins", {"has not lost any coins", "hasn't lost any coins"}),
        ("sold the boat", {"did not sell the boat", "didn't sell the boat"}),
        ("cut the bread", {"did not cut the bread", "didn't cut the bread"}),
        ("tries to sleep", {"does not try to sleep", "doesn't try to sleep"}),
        ("is still here", {"is not here", "isn't here"}),
        ("never smokes", {None}),
        ("has no money", {None}),
    ],
)
def test_denials(told: str, denials: set[str | None]) -> None:
    generator = random.Random(0)
    assert {denied(told, generator) for _ in range(50)} == denials


def test_only_what_somebody_is_has_a_past() -> None:
    assert past("is asleep") == "was asleep"
    assert past("sells bread") == "sells bread"


def test_every_action_can_be_conjugated() -> None:
    for phrase in {*doings(), *(one for pair in opposites() for one in pair)}:
        for form in ("third", "past", "participle", "progressive"):
            assert conjugated(phrase, form)


def test_forms_of_verbs() -> None:
    assert conjugated("lie in bed", "progressive") == "lying in bed"
    assert conjugated("stop the car", "past") == "stopped the car"
    assert conjugated("carry a bag", "past") == "carried a bag"
    assert conjugated("ride a bike", "participle") == "ridden a bike"
    assert conjugated("make soup", "progressive") == "making soup"
