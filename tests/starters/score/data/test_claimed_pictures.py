"""Batches of pictures with claims depend on the seed and the step only, and say what is shown."""

import torch

from services.nn.clip_tokenizer import Tokenizer
from starters.score.data.claimed_pictures import ClaimedPictures, Pictures, centered_things
from starters.score.data.claims import VALUES
from tests.score.tiny import tiny_clip


def tokenizer() -> Tokenizer:
    return tiny_clip().tokenizer


def test_a_step_is_always_the_same_batch() -> None:
    data = ClaimedPictures(tokenizer(), Pictures(3, 6, 32), 4)
    first, second = data(5), data(5)
    assert torch.equal(first.pictures.pixels, second.pictures.pixels)
    assert torch.equal(first.input_ids, second.input_ids)
    assert torch.equal(first.is_true, second.is_true)
    assert not torch.equal(first.input_ids, data(6).input_ids)


def test_a_batch_has_four_claims_about_each_of_the_first_pictures() -> None:
    batch = ClaimedPictures(tokenizer(), Pictures(3, 12, 32), 8)(0)
    assert batch.pictures.pixels.shape == (12, 32, 32, 3)
    assert batch.is_true.shape == (32, 12)
    assert batch.said.shape == (32, 12)
    own = batch.is_true.view(8, 4, 12)[torch.arange(8), :, torch.arange(8)]
    assert own[:, 0].float().mean() > 0.9
    assert own[:, 1:].float().mean() < 0.5


def test_the_easy_steps_begin_with_many_upright_things() -> None:
    def first_count(step: int) -> float:
        batch = Pictures(1, 30, 16, num_easy=100)(step)
        return float((batch.attributes[..., 0] != -2).sum(dim=1).float().mean())

    assert first_count(0) > 4
    assert first_count(99) < 4


def test_a_thing_is_found_in_the_patch_of_its_centre() -> None:
    places = torch.full((1, 5, 3), float("nan"))
    places[0, 0] = torch.tensor([0.1, 0.9, 0.1])
    places[0, 1] = torch.tensor([0.6, 0.3, 0.2])
    found = centered_things(places, 4)
    assert found[0, 12] == 0
    assert found[0, 6] == 1
    assert (found >= 0).sum() == 2


def test_false_claims_are_false_of_their_picture() -> None:
    captioned = ClaimedPictures(tokenizer(), Pictures(3, 12, 32), 10).captioned(2)
    assert len(captioned.pictures.pixels) == len(captioned.groups) == 10
    for right, wrong in captioned.groups:
        assert right not in wrong
    assert sum(len(wrong) for _, wrong in captioned.groups) > 15


def test_captions_are_true_of_their_own_pictures_and_of_some_others() -> None:
    data = ClaimedPictures(tokenizer(), Pictures(3, 30, 16), 30, close=0.5)
    is_true = data.captioned(1).is_true
    assert is_true.shape == (30, 30)
    assert is_true.diagonal().float().mean() > 0.9
    drawn = data(1)
    assert torch.equal(is_true.T, drawn.is_true.view(30, 4, 30)[:, 0])
    denials = [i for i, group in enumerate(data.claims(1)) if group[0].number == 0]
    assert denials
    assert is_true[:, denials].float().mean() > 0.5  # most pictures lack what one lacks


def test_close_claims_take_their_share_and_leave_the_others_as_they_are() -> None:
    wide, half = (ClaimedPictures(tokenizer(), Pictures(3, 8, 16), 8, close=close)(1) for close in (0.0, 0.5))
    is_same = (wide.pictures.pixels == half.pictures.pixels).flatten(1).all(dim=1)
    assert is_same.tolist() == [False] * 4 + [True] * 4


def test_codes_are_places_in_the_lists_of_values() -> None:
    attributes = Pictures(8, 20, 16)(0).attributes
    for i, name in enumerate(("size", "color", "finish", "shape")):
        assert attributes[..., i].max() < len(VALUES[name])
