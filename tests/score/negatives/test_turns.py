"""Spatial relations are reversed: to the opposite, or by swapping the two things."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings

from services.score.negatives.agreement import agreeing_articles
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.relations import OPPOSITES, Reading
from services.score.negatives.swaps import turn
from tests.score.captions import captions

TEXTBLOB = TextBlobAnnotator()


def turned(caption: str) -> set[str]:
    """Return all turns of a caption by 30 seeds."""
    read = TEXTBLOB.annotate(caption)
    edits = [turn(Reading(read), Random(seed)) for seed in range(30)]
    return {read.replaced(agreeing_articles(read, one)) for one in edits if one}


@pytest.mark.parametrize(
    ("caption", "texts"),
    [
        (
            "a small red circle left of two blue squares",
            {"a small red circle right of two blue squares", "two blue squares left of a small red circle"},
        ),
        (
            "a dog to the left of a cat.",
            {"a dog to the right of a cat.", "a cat to the left of a dog."},
        ),
        ("A dog above a cat", {"A dog below a cat", "A cat above a dog"}),
        (
            "The small blue van is parked in front of a fence.",
            {"The small blue van is parked behind a fence.", "A fence is parked in front of the small blue van."},
        ),
        ("A cat inside an old box", {"A cat outside an old box", "An old box inside a cat"}),
        ("A dog next to a cat", {"A dog far from a cat"}),
        ("A bus is on the road", {"A bus is under the road", "The road is on a bus"}),
        ("A DOG UNDER A TREE", {"A DOG ABOVE A TREE", "A DOG ON TOP OF A TREE", "A TREE UNDER A DOG"}),
        ("Red Ball In Front Of Blue Cube", {"Red Ball Behind Blue Cube", "Blue Cube In Front Of Red Ball"}),
        ("Red Ball Left Of Blue Cube", {"Red Ball Right Of Blue Cube", "Blue Cube Left Of Red Ball"}),
        ("a tree in the background", {"a tree in the foreground"}),
        ("a star in the top left", {"a star in the bottom left", "a star in the top right"}),
        ("a star, middle right", {"a star, middle left"}),
        ("A child petting a yak", {"A yak petting a child"}),
        ("It rained. A dog above a cat", {"It rained. A dog below a cat", "It rained. A cat above a dog"}),
        ("Paris is above a dog", {"Paris is below a dog", "A dog is above Paris"}),
    ],
)
def test_a_relation_becomes_its_opposite_or_its_things_change_places(caption: str, texts: set[str]) -> None:
    assert turned(caption) == texts


@pytest.mark.parametrize(
    ("caption", "text"),
    [
        ("Two dogs are left of a cat", "A cat is left of two dogs"),
        ("There is a dog left of two cats", "There are two cats left of a dog"),
        ("A dog that has been above cats", "Cats that have been above a dog"),
        ("A dog stands above two cats", "Two cats stand above a dog"),
        ("Two cups of tea are above a dog", "A dog is above two cups of tea"),
        ("A couple of dogs are above a cat", "A cat is above a couple of dogs"),
    ],
)
def test_the_verb_agrees_with_the_thing_that_is_now_before_it(caption: str, text: str) -> None:
    assert text in turned(caption)


@pytest.mark.parametrize(
    ("caption", "text"),
    [
        ("a picture of a dog above a cat", "a picture of a cat above a dog"),
        ("a group of dogs above a cat", "a cat above a group of dogs"),
        ("A bird with red eyes perched on top of a tree", "A tree with red eyes perched on top of a bird"),
    ],
)
def test_a_thing_is_all_that_hangs_on_it_by_of_and_not_what_it_is_with(caption: str, text: str) -> None:
    assert text in turned(caption)


@pytest.mark.parametrize(
    "caption", ["", "a dog", "a dog and a cat", "a dog with a cat", "a walk on a sunny day", "above"]
)
def test_nothing_is_turned_where_nothing_is_in_relation(caption: str) -> None:
    assert not turned(caption)


def test_equal_things_do_not_change_places() -> None:
    assert turned("cats above cats") == {"cats below cats"}


def test_the_clearest_relation_is_turned() -> None:
    assert all(
        found.endswith(" on a gray background")
        for found in turned("a red circle left of two blue squares on a gray background")
    )


def test_opposites_are_opposed() -> None:
    for phrase, others in OPPOSITES.items():
        assert others and phrase not in others
        assert len(set(others)) == len(others)


@settings(deadline=None)
@given(captions)
def test_whatever_is_turned_differs_and_only_there(caption: str) -> None:
    read = TEXTBLOB.annotate(caption)
    edits = turn(Reading(read), Random(0))
    if edits is not None:
        assert all(text != read.text(span) for span, text in edits.items())
        assert all(text for text in edits.values())
        spans = sorted(agreeing_articles(read, edits))
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
