"""T5s from scratch."""

from pathlib import Path

import pytest
import torch

from services.nn.loading import transformers
from services.predict.training.initialisation import SHAPES, create_t5


def test_shapes_are_t5s_own() -> None:
    assert (SHAPES["small"].d_model, SHAPES["small"].num_layers, SHAPES["small"].num_heads) == (512, 6, 8)
    assert (SHAPES["base"].d_model, SHAPES["base"].num_layers, SHAPES["base"].d_ff) == (768, 12, 3072)
    assert (SHAPES["base-v1.1"].d_ff, SHAPES["base-v1.1"].is_gated) == (2048, True)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_process_random_numbers_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    one, same, other = (create_t5(SHAPES["tiny"], 300, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_head_of_a_first_t5_is_its_embeddings_and_that_of_v1_1_its_own(tmp_path: Path) -> None:
    first = create_t5(SHAPES["tiny"], 300, 0)
    assert first.lm_head.weight is first.shared.weight
    assert first.config.scale_decoder_outputs
    first.save_pretrained(tmp_path)
    config = transformers().AutoConfig.from_pretrained(tmp_path, local_files_only=True)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 0)
    assert config.vocab_size == 300


def test_an_untrained_student_is_close_to_certain_of_nothing() -> None:
    model = create_t5(SHAPES["mini"], 300, 0).eval()
    inputs, labels = torch.arange(3, 43).view(2, 20), torch.arange(50, 70).view(2, 10)
    with torch.no_grad():
        loss = model(input_ids=inputs, labels=labels).loss
    assert loss == pytest.approx(torch.tensor(300.0).log(), rel=0.25)
