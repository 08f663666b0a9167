"""T5s whose heads begin by comparing tokens."""

import pytest
import torch

from services.predict.training.initialisation import SHAPES, create_t5
from starters.predict.matching_heads import add_matching_heads, create_matching_t5


def test_half_of_the_heads_of_a_micro_begin_by_matching_equal_tokens() -> None:
    model = create_matching_t5("micro", 300, 0)
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
    attention = create_matching_t5("micro", 300, 0).encoder.block[0].layer[0].SelfAttention
    words = torch.tensor([[10, 11, 12, 13, 14, 20, 10, 11, 12, 13, 15, 20]])
    states = create_matching_t5("micro", 300, 0).shared.weight.detach()[words]
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
    model = create_matching_t5("milli", 300, 0)
    assert (len(model.encoder.block), len(model.decoder.block)) == (4, 2)
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        shares = attention.compute_bias(21, 21)[0, 3:, 10].softmax(dim=-1)
    assert shares[0, :10].sum() > 0.9
    assert shares[1, 8:13].sum() > 0.9
    assert shares[2, 11:].sum() > 0.9


def test_heads_that_are_added_match_equal_tokens_and_change_no_answer() -> None:
    model = create_t5(SHAPES["mini"], 300, 0).eval()
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
        create_matching_t5("gigantic", 300, 0)
