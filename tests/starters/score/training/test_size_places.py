"""Captions about the sizes of two things are moved by what they say, to where a picture tells which thing is bigger."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from services.score.model.checkpoint import FscClipCheckpoint
from starters.score.data.claimed_pictures import ClaimedPictures, Pictures, said
from starters.score.data.claims import Claim, Noun
from starters.score.data.close_claims import two_sizes
from starters.score.training.claim_losses import K
from starters.score.training.size_places import (
    NUM_FACTS,
    SeenClaims,
    fit_places,
    moved,
    own_choice,
    see_claims,
    size_facts,
)
from tests.score.tiny import tiny_clip

BIG, SMALL = Noun("big", "red", None, "circle"), Noun("small", "blue", None, "square")


def facts(*claims: Claim) -> list[set[int]]:
    """The facts of each claim."""
    found = size_facts(torch.tensor([said(claim) for claim in claims]))
    assert found.max() < NUM_FACTS
    return [set(row.tolist()) - {-1} for row in found]


@pytest.fixture(scope="module")
def checkpoint() -> FscClipCheckpoint:
    return FscClipCheckpoint(tiny_clip(), local_weight=0.3, temperature=0.02)


@pytest.fixture(scope="module")
def seen(checkpoint: FscClipCheckpoint) -> SeenClaims:
    side = checkpoint.clip.transform.size[0]
    data = ClaimedPictures(checkpoint.clip.tokenizer, Pictures(1, 6, side), 6, 1.0, (two_sizes,))
    return see_claims(checkpoint, map(data, range(2)))


def test_facts_do_not_depend_on_the_order_of_the_things() -> None:
    one, turned = facts(Claim(BIG, SMALL), Claim(SMALL, BIG))
    assert one == turned
    assert len(one) == 6  # of each thing, the size with the shape, with the color and alone


def test_exchanged_sizes_say_other_facts() -> None:
    exchanged = Claim(replace(BIG, size="small"), replace(SMALL, size="big"))
    one, other = facts(Claim(BIG, SMALL), exchanged)
    assert len(one & other) == 2  # something is big, and something is small


def test_a_relation_says_the_same_as_its_opposite_of_exchanged_things() -> None:
    red, blue = replace(BIG, size=None), replace(SMALL, size=None)
    bigger, smaller, false = facts(Claim(red, blue, "bigger"), Claim(blue, red, "smaller"), Claim(red, blue, "smaller"))
    assert bigger == smaller
    assert bigger != false
    assert not bigger & facts(Claim(BIG, SMALL))[0]  # which are said by words


@pytest.mark.parametrize(
    "claim", [Claim(BIG), Claim(replace(BIG, size=None), replace(SMALL, size=None), "left"), Claim(SMALL, number=0)]
)
def test_claims_without_sizes_of_two_things_have_no_facts(claim: Claim) -> None:
    assert facts(claim) == [set()]


def test_an_absent_thing_has_no_size() -> None:
    assert facts(Claim(BIG, SMALL, second_number=0)) == facts(Claim(BIG, replace(SMALL, size=None)))


def test_captions_without_facts_stay_and_others_move_by_the_sum_of_their_vectors() -> None:
    captions = F.normalize(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    vectors = torch.arange(12.0).view(3, 4)
    found = moved(captions, torch.tensor([[-1, -1], [0, 2]]), vectors)
    assert torch.allclose(found[0], captions[0])
    assert torch.allclose(found[1], F.normalize(captions[1] + vectors[0] + vectors[2], dim=-1))


def test_claims_are_seen_group_by_group(seen: SeenClaims) -> None:
    assert seen.images.shape[0] * K == len(seen.captions) == len(seen.local) == len(seen.is_true)
    assert seen.is_true.view(-1, K)[:, 0].all()  # the first claim of a close group is true
    part = seen.groups(torch.tensor([7]))
    assert torch.equal(part.images[0], seen.images[7])
    assert torch.equal(part.input_ids, seen.input_ids[7 * K : 8 * K])


def test_fitted_places_choose_better_than_the_captions_own(checkpoint: FscClipCheckpoint, seen: SeenClaims) -> None:
    vectors = fit_places(seen, checkpoint, seed=0)
    placed = moved(seen.captions, size_facts(seen.said), vectors)
    assert own_choice(placed, seen, checkpoint) < own_choice(seen.captions, seen, checkpoint) - 0.1
    assert torch.equal(vectors, fit_places(seen, checkpoint, seed=0))
