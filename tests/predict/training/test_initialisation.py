"""T5s from scratch."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from services.predict.training.initialisation import SHAPES, add_matching_heads, create_t5


def test_shapes_are_t5s_own() -> None:
    assert (SHAPES["small"].d_model, SHAPES["small"].num_layers, SHAPES["small"].num_heads) == (512, 6, 8)
    assert (SHAPES["base"].d_model, SHAPES["base"].num_layers, SHAPES["base"].d_ff) == (768, 12, 3072)
    assert (SHAPES["base-v1.1"].d_ff, SHAPES["base-v1.1"].is_gated) == (2048, True)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_process_random_numbers_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    one, same, other = (create_t5("tiny", 300, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_head_of_a_first_t5_is_its_embeddings_and_that_of_v1_1_its_own(tmp_path: Path) -> None:
    first = create_t5("tiny", 300, 0)
    assert first.lm_head.weight is first.shared.weight
    assert first.config.scale_decoder_outputs
    first.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, local_files_only=True)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 0)
    assert config.vocab_size == 300


def test_an_untrained_student_is_close_to_certain_of_nothing() -> None:
    model = create_t5("mini", 300, 0).eval()
    inputs, labels = torch.arange(3, 43).view(2, 20), torch.arange(50, 70).view(2, 10)
    with torch.no_grad():
        loss = model(input_ids=inputs, labels=labels).loss
    assert loss == pytest.approx(torch.tensor(300.0).log(), rel=0.25)


def test_half_of_the_heads_of_a_micro_begin_by_matching_equal_tokens() -> None:
    model = create_t5("micro", 300, 0)
    for block in model.encoder.block:
        attention = block.layer[0].SelfAttention
        same = torch.nn.functional.cosine_similarity(attention.q.weight, attention.k.weight, dim=1)
        assert same[:64].min() > 0.999
        assert same[64:].abs().max() < 0.5
        logits = (
            (model.shared.weight[:50] / 8)
            @ attention.q.weight[:64].T
            @ attention.k.weight[:64]
            @ model.shared.weight[:50].T
        )
        assert (logits.argmax(dim=1) == torch.arange(50)).float().mean() > 0.95


def test_what_two_sentences_share_is_taken_away_by_the_first_block_of_a_micro() -> None:
    attention = create_t5("micro", 300, 0).encoder.block[0].layer[0].SelfAttention
    words = torch.tensor([[10, 11, 12, 13, 14, 20, 10, 11, 12, 13, 15, 20]])
    states = create_t5("micro", 300, 0).shared.weight.detach()[words]
    attention.n_heads, attention.inner_dim = 2, 64
    for name in ("q", "k", "v"):
        layer = getattr(attention, name)
        layer.weight = torch.nn.Parameter(layer.weight[:64])
    attention.o.weight = torch.nn.Parameter(attention.o.weight[:, :64])
    attention.relative_attention_bias.weight = torch.nn.Parameter(attention.relative_attention_bias.weight[:, :2])
    projection = attention.v.weight.T @ attention.v.weight
    with torch.no_grad():
        left = (states + attention(states)[0]) @ projection
    kept = left.norm(dim=2)[0] / (states @ projection).norm(dim=2)[0]
    shared = torch.tensor([0, 1, 2, 3, 5, 6, 7, 8, 9, 11])
    assert kept[shared].mean() < 0.3
    assert kept[torch.tensor([4, 10])].min() > 0.8


def test_the_other_heads_of_a_milli_begin_by_looking_before_a_token_near_it_or_after_it() -> None:
    model = create_t5("milli", 300, 0)
    assert (len(model.encoder.block), len(model.decoder.block)) == (4, 2)
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        shares = attention.compute_bias(21, 21)[0, 3:, 10].softmax(dim=-1)
    assert shares[0, :10].sum() > 0.9
    assert shares[1, 8:13].sum() > 0.9
    assert shares[2, 11:].sum() > 0.9


def test_heads_that_are_added_match_equal_tokens_and_change_no_answer() -> None:
    model = create_t5("mini", 300, 0).eval()
    grown = add_matching_heads(model, 2, 1).eval()
    inputs, labels = torch.arange(3, 43).view(2, 20), torch.arange(50, 70).view(2, 10)
    with torch.no_grad():
        before, after = (some(input_ids=inputs, labels=labels).logits for some in (model, grown))
        attention = grown.encoder.block[0].layer[0].SelfAttention
        queries, keys = (layer.weight[4 * 32 :] for layer in (attention.q, attention.k))
        words = model.shared.weight[:50]
        logits = words @ queries.T @ keys @ words.T
    assert torch.allclose(before, after, atol=1e-4)
    assert grown.config.num_heads == 6
    assert grown.lm_head.weight is grown.shared.weight
    assert (logits.argmax(dim=1) == torch.arange(50)).float().mean() > 0.95


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(KeyError):
        create_t5("gigantic", 300, 0)
