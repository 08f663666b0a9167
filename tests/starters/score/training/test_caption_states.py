"""States of captions while the text tower learns to read."""

from pathlib import Path

import torch
import torch.nn.functional as F

from services.nn.text_transformer import encode_text
from starters.score.training.caption_states import read_captions, word_states
from starters.score.training.scene_clip import create_scene_clip

CAPTIONS = ["a red circle and a blue square", "a red circle", "there is no small green star", "a dot"]


def test_the_ends_are_the_features_that_the_text_tower_gives(tmp_path: Path) -> None:
    clip = create_scene_clip(tmp_path, width=32, layers=1)
    input_ids = clip.tokenizer(CAPTIONS)
    assert torch.allclose(read_captions(clip.model, input_ids).ends, encode_text(clip.model, input_ids), atol=1e-5)


def test_every_word_of_a_caption_has_a_state_before_the_last_block(tmp_path: Path) -> None:
    clip = create_scene_clip(tmp_path, width=32, layers=1)
    input_ids = clip.tokenizer(CAPTIONS)
    states = word_states(clip.model, input_ids)
    assert states.shape == (len(CAPTIONS), int(input_ids.argmax(dim=1).max()) + 1, 32)
    read = read_captions(clip.model, input_ids).words
    for own, all_at_once, row in zip(read, states, input_ids, strict=True):
        num_tokens = int(row.argmax()) + 1  # beyond the end there is only padding
        assert torch.allclose(own[:num_tokens], all_at_once[:num_tokens], atol=1e-5)


def test_a_mean_is_that_of_a_captions_own_words(tmp_path: Path) -> None:
    clip = create_scene_clip(tmp_path, width=32, layers=1)
    input_ids = clip.tokenizer(CAPTIONS)
    means = read_captions(clip.model, input_ids).means
    for row, mean in zip(input_ids, means, strict=True):
        words = word_states(clip.model, row[None])[0, 1:]  # without the start
        expected = F.normalize((clip.model.ln_final(words) @ clip.model.text_projection).mean(dim=0), dim=0)
        assert torch.allclose(mean, expected, atol=1e-5)
