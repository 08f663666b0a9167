"""Claims are close to the pictures that they are true of, in a space that is learned without any pixel."""

from collections.abc import Sequence
from random import Random

import pytest
import torch

from starters.pictures.variety import Variety, draw_picture
from starters.score.data.claimed_pictures import ClaimedPictures, PictureBatch, Pictures, said
from starters.score.data.claims import Claim, Noun, picture_facts
from starters.score.training.claim_losses import FactChoice, K
from starters.score.training.fact_space import (
    DIRECTIONS,
    FactSpace,
    claim_vector,
    fact_vector,
    num_facts,
    num_weights,
)
from tests.score.tiny import tiny_clip

RED, BLUE = Noun(color="red", shape="circle"), Noun(color="blue", shape="square")


def batch(count: int, *, side: int = 4) -> PictureBatch:
    pictures = [draw_picture(Variety(counts=(2, 3)), Random(number)) for number in range(count)]
    return Pictures(0, count, side).rendered(pictures, picture_facts(pictures))


def weights(*claims: Claim) -> torch.Tensor:
    return claim_vector(torch.tensor([said(claim) for claim in claims]))


def test_facts_are_finite_numbers_that_do_not_depend_on_the_pixels() -> None:
    facts = fact_vector(batch(5))
    assert facts.shape == (5, num_facts())
    assert facts.isfinite().all()
    assert torch.equal(facts, fact_vector(batch(5, side=8)))


def test_exchanged_words_differ_in_which_belong_together() -> None:
    exchanged = (Noun(color="blue", shape="circle"), Noun(color="red", shape="square"))
    one, other = weights(Claim(RED, BLUE), Claim(*exchanged))
    assert one.shape == (num_weights(),)
    assert one.sum() == other.sum()
    assert (one != other).sum() == 4  # two pairs of values in each claim


def test_a_pair_without_a_relation_has_no_order() -> None:
    one, other = weights(Claim(RED, BLUE), Claim(BLUE, RED))
    assert torch.equal(one, other)


@pytest.mark.parametrize("relations", [("left", "right"), ("above", "below"), ("bigger", "smaller")])
def test_a_relation_and_its_opposite_of_exchanged_things_say_the_same_of_places(relations: Sequence[str]) -> None:
    forward, backward, opposite = weights(
        Claim(RED, BLUE, relations[0]), Claim(BLUE, RED, relations[1]), Claim(RED, BLUE, relations[1])
    )
    flags = 1 + len(DIRECTIONS)
    assert (forward != backward).sum() <= 2 < flags  # the names of the relations alone
    assert (forward != opposite).sum() > 2


def test_a_denied_thing_counts_against_its_picture() -> None:
    present, absent = weights(Claim(RED), Claim(RED, number=0))
    assert present.max() == 1
    assert absent.min() == -1


@pytest.mark.training
def test_claims_that_differ_in_a_fact_are_told_apart_after_a_minute() -> None:
    torch.manual_seed(0)
    space = FactSpace(64)
    choice = FactChoice(space)
    data = ClaimedPictures(tiny_clip().tokenizer, Pictures(1, 64, 4), 64)
    optimizer = torch.optim.AdamW(space.parameters(), lr=3e-3)
    for step in range(150):
        optimizer.zero_grad()
        choice(data(step)).backward()
        optimizer.step()
    space.fixed()
    asked = data(1_000)
    with torch.no_grad():
        scores = space.of_claims(asked.said) @ space.of_pictures(asked.pictures).T
    own = torch.arange(64)
    groups, is_true = (x.view(64, K, 64)[own, :, own] for x in (scores, asked.is_true))
    right, wrong = groups[:, :1], groups[:, 1:].masked_fill(is_true[:, 1:], -2)
    assert float((right > wrong)[is_true[:, 0]].float().mean()) > 0.8
    assert not any(parameter.requires_grad for parameter in space.parameters())
