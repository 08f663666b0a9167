"""Batches of pictures with claims depend on the seed and the step only, and say what is shown."""

import torch

from services.nn.clip_tokenizer import Tokenizer
from services.score.data.claimed_pictures import ClaimedPictures, Pictures, centered_things
from services.score.data.claims import VALUES
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
    pixels, groups = ClaimedPictures(tokenizer(), Pictures(3, 10, 32), 10).false_claims(2)
    assert len(pixels) == len(groups) == 10
    for right, wrong in groups:
        assert right not in wrong
    assert sum(len(wrong) for _, wrong in groups) > 15


def test_codes_are_places_in_the_lists_of_values() -> None:
    attributes = Pictures(8, 20, 16)(0).attributes
    for i, name in enumerate(("size", "color", "finish", "shape")):
        assert attributes[..., i].max() < len(VALUES[name])
