"""Heads are chosen on one half of the prompts and judged on the other, so that luck is not taken for skill."""

import pytest
import torch

from services.generate.calibrate.search import Measured, rank_heads, rank_rel_settings, rel_setting, scores_of_heads
from services.generate.retrieval_heads import HeadScore

NUM_LAYERS, NUM_HEADS, NUM_DOCUMENTS = 3, 4, 6
FINDER = (1, 2)


def measured(seed: int, gold: int, found: float = 1e-3, noise: float = 1e-2) -> Measured:
    """Attention that is noise, except that one head finds gold; the others of its layer prefer other documents."""
    generator = torch.Generator().manual_seed(seed)
    bias = torch.rand(NUM_LAYERS, NUM_HEADS, NUM_DOCUMENTS, generator=generator) * 1e-2
    attention = bias + noise * torch.rand(bias.shape, generator=generator)
    attention[FINDER] = bias[FINDER]
    attention[(*FINDER, gold)] += found
    return Measured(attention, bias, gold)


PROMPTS = [measured(seed, seed % NUM_DOCUMENTS) for seed in range(40)]


def test_the_only_head_that_finds_gold_is_found_by_its_contrast() -> None:
    (found,) = rank_heads(PROMPTS, "newline", ("core",))
    assert found.heads == (FINDER,)
    assert found.layers == (FINDER[0],)
    assert found.recall == {1: 1.0, 3: 1.0}
    assert found.vanilla_recall[1] < 1
    assert found.spread == pytest.approx(rel_setting(PROMPTS, "newline", (1,), heads=(FINDER,)).spread)
    assert found.merit > rank_rel_settings(PROMPTS, "newline")[0].merit


def test_a_head_that_pays_more_than_others_to_everything_is_first_without_contrast() -> None:
    assert scores_of_heads(PROMPTS, "core").flatten().argmax() == FINDER[0] * NUM_HEADS + FINDER[1]
    assert scores_of_heads(PROMPTS, "qr").flatten().argmax() != FINDER[0] * NUM_HEADS + FINDER[1]


@pytest.mark.parametrize("score", ["core", "qr"])
def test_heads_that_found_gold_by_luck_are_judged_by_other_prompts(score: HeadScore) -> None:
    """The best heads of a few prompts find more than chance in pure noise there, and no more elsewhere."""
    noise = [measured(seed, seed % NUM_DOCUMENTS, found=0.0) for seed in range(200)]
    recalls = []
    for start in range(0, 200, 10):
        some = noise[start : start + 10]
        (found,) = rank_heads(some, "newline", (score,))
        recalls.append(found.recall[3] - rel_setting(some, "newline", found.layers, heads=found.heads).recall[3])
    assert sum(recalls) / len(recalls) < 0.02


def test_there_is_a_setting_for_each_score_best_first_and_none_of_one_prompt() -> None:
    ranked = rank_heads(PROMPTS, "text", ("qr", "core"))
    assert len(ranked) == 2
    assert ranked[0].merit >= ranked[1].merit
    assert {setting.span_rule for setting in ranked} == {"text"}
    assert all(len(setting.heads) <= NUM_LAYERS * NUM_HEADS // 2 for setting in ranked)
    assert rank_heads(PROMPTS[:1], "newline", ("core",)) == []
    assert rank_heads(PROMPTS, "newline", ()) == []
