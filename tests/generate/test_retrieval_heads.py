"""Heads are scored as the papers' equations say, summed slowly; a mean over all heads of layers is that of layers."""

import math

import pytest
import torch
from torch import Tensor

from services.generate.calibration import relevance
from services.generate.retrieval_heads import best_heads, contrastive_scores, mean_over_heads, query_focused_scores

NUM_QUESTIONS, NUM_LAYERS, NUM_HEADS, NUM_DOCUMENTS = 7, 3, 4, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCORES = drawn(NUM_QUESTIONS, NUM_LAYERS, NUM_HEADS, NUM_DOCUMENTS)
GOLD = torch.tensor([0, 4, 2, 2, 1, 3, 0])


def test_the_query_focused_score_is_the_mean_of_what_gold_is_paid() -> None:
    found = query_focused_scores(SCORES, GOLD)
    for layer in range(NUM_LAYERS):
        for head in range(NUM_HEADS):
            paid = [float(SCORES[q, layer, head, GOLD[q]]) for q in range(NUM_QUESTIONS)]
            assert float(found[layer, head]) == pytest.approx(math.fsum(paid) / NUM_QUESTIONS, rel=1e-12)


@pytest.mark.parametrize("temperature", [2e-3, 0.2, 50.0])
def test_the_contrastive_score_is_the_mean_share_of_gold(temperature: float) -> None:
    found = contrastive_scores(SCORES, GOLD, temperature)
    for layer in range(NUM_LAYERS):
        for head in range(NUM_HEADS):
            shares = []
            for q in range(NUM_QUESTIONS):
                gold = float(SCORES[q, layer, head, GOLD[q]])
                others = [math.exp((float(one) - gold) / temperature) for one in SCORES[q, layer, head]]
                shares.append(1 / math.fsum(others))
            assert float(found[layer, head]) == pytest.approx(math.fsum(shares) / NUM_QUESTIONS, rel=1e-9)


def test_what_a_head_pays_to_every_document_counts_only_without_contrast() -> None:
    scores = SCORES.clone()
    scores[:, 1, 2] += 10
    assert best_heads(query_focused_scores(scores, GOLD), 1) == ((1, 2),)
    torch.testing.assert_close(contrastive_scores(scores, GOLD, 0.2), contrastive_scores(SCORES, GOLD, 0.2))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_above_0_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        contrastive_scores(SCORES, GOLD, temperature)


def test_the_best_heads_are_in_order_and_of_equal_ones_the_earlier() -> None:
    scores = torch.tensor([[0.1, 0.5], [0.9, 0.5]])
    assert best_heads(scores, 1) == ((1, 0),)
    assert best_heads(scores, 2) == ((0, 1), (1, 0))
    assert best_heads(scores, 9) == ((0, 0), (0, 1), (1, 0), (1, 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_heads_of_layers_are_these_layers_to_the_bit(dtype: torch.dtype) -> None:
    attention, bias = (drawn(2, NUM_LAYERS, NUM_HEADS, NUM_DOCUMENTS, seed=seed).to(dtype) for seed in (1, 2))
    for layers in ((1,), (0, 2), (0, 1, 2)):
        heads = [(layer, head) for layer in layers for head in range(NUM_HEADS)]
        assert torch.equal(mean_over_heads(attention, heads=heads), mean_over_heads(attention, layers=layers))
        assert torch.equal(
            relevance(attention, bias, layers=layers, heads=heads), relevance(attention, bias, layers=layers)
        )


def test_relevance_of_heads_is_their_mean_alone() -> None:
    attention, bias = (drawn(NUM_LAYERS, NUM_HEADS, NUM_DOCUMENTS, seed=seed) for seed in (1, 2))
    found = relevance(attention, bias, layers=(0, 2), heads=((0, 3), (2, 1)))
    expected = [
        (attention[0, 3, k] - bias[0, 3, k] + attention[2, 1, k] - bias[2, 1, k]) / 2 for k in range(NUM_DOCUMENTS)
    ]
    torch.testing.assert_close(found, torch.stack(expected))
    with pytest.raises(IndexError):
        mean_over_heads(attention, heads=((0, NUM_HEADS),))
