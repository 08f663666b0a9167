"""Close claims are about a fact that their picture was drawn for, and differ in that fact alone."""

from collections.abc import Callable
from random import Random

import pytest

from starters.score.data.claims import Claim, nouns, picture_facts, truth
from starters.score.data.close_claims import (
    MAKERS,
    Maker,
    absent,
    close_group,
    numbered,
    textured,
    two_sizes,
    two_textures,
)
from starters.score.evaluation.claim_protocol import kind_of_change


@pytest.mark.parametrize("make", dict.fromkeys(MAKERS), ids=lambda make: make.__name__)
def test_the_first_claim_is_true_and_most_others_are_false(make: Maker) -> None:
    random = Random(3)
    num_false = 0
    for _ in range(60):
        picture, claims = make(random)
        is_true = truth(claims, picture_facts([picture]))[:, 0]
        assert len(claims) == 4
        assert is_true[0]
        num_false += int((~is_true).sum())
    assert num_false > 100


def changes(make: Maker) -> set[str | None]:
    random = Random(4)
    groups = [make(random)[1] for _ in range(40)]
    return {kind_of_change(claims[0], other) for claims in groups for other in claims[1:]}


def test_numbers_textures_and_sizes_are_all_that_differs() -> None:
    assert changes(numbered) == {"number"}
    assert changes(textured) == {"finish"}
    assert changes(two_textures) == {"exchanged", "finish"}
    assert changes(two_sizes) <= {"exchanged", "size", "relation", None}


def test_numbers_go_from_one_to_five() -> None:
    random = Random(5)
    assert {numbered(random)[1][0].number for _ in range(80)} == {1, 2, 3, 4, 5}


def test_a_denial_of_what_is_there_stands_against_one_of_what_is_not() -> None:
    random = Random(6)
    for _ in range(40):
        picture, claims = absent(random)
        denied = [claim.first if claim.number == 0 else claim.second for claim in claims[:2]]
        is_there = [any(_fits(noun, other) for other in nouns(picture)) for noun in denied]
        assert is_there == [False, True]


def _fits(noun: object, other: object) -> bool:
    return all(getattr(noun, name) in (None, getattr(other, name)) for name in ("size", "color", "finish", "shape"))


def test_every_kind_is_drawn_and_the_same_state_draws_the_same() -> None:
    assert close_group(Random(1)) == close_group(Random(1))
    claims: list[Claim] = [close_group(Random(seed))[1][0] for seed in range(60)]
    tests: tuple[Callable[[Claim], bool], ...] = (
        lambda claim: bool(claim.number),
        lambda claim: claim.first is not None and claim.first.finish is not None,
        lambda claim: claim.first is not None and claim.first.size is not None,
        lambda claim: 0 in (claim.number, claim.second_number),
    )
    assert all(any(test(claim) for claim in claims) for test in tests)
