"""Heads as sources of rel: chosen by each score on one half of the measured prompts, and judged on the other.

Shapes: L layers, H heads, K documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from services.generate.calibrate.search import Measured, RelSetting, rel_setting
from services.generate.model.profile import SpanRule
from services.generate.retrieval_heads import (
    Head,
    HeadScore,
    best_heads,
    contrastive_scores,
    query_focused_scores,
)


def rank_heads(measured: Sequence[Measured], span_rule: SpanRule, scores: Sequence[HeadScore]) -> list[RelSetting]:
    """Rank sets of heads as sources of rel, best first; none of fewer than two prompts. `measured` as for layers.

    For each score there is one setting, with the number of heads that finds most gold documents: a power of two, at
    most half of all heads. Its recall is of heads that were chosen on the other half of the prompts; the heads
    themselves, and their spread, are of all prompts.
    """
    if len(measured) < 2:
        return []
    found = [max(_settings(measured, span_rule, score), key=lambda setting: setting.merit) for score in scores]
    return sorted(found, key=lambda setting: -setting.merit)


def scores_of_heads(measured: Sequence[Measured], score: HeadScore) -> Tensor:
    """Score the heads by their rel of gold documents: (L, H).

    The temperature of `core` is rel's standard deviation over the documents, a mean over heads and prompts, because
    attention has another scale in every model.
    """
    rel = torch.stack([one.attention - one.bias for one in measured])
    gold = torch.tensor([one.gold for one in measured])
    if score == "qr":
        return query_focused_scores(rel, gold)
    spread = float(rel.std(dim=-1, correction=0).mean())
    return contrastive_scores(rel, gold, max(spread, torch.finfo(rel.dtype).tiny))


def _settings(measured: Sequence[Measured], span_rule: SpanRule, score: HeadScore) -> Iterator[RelSetting]:
    middle = len(measured) // 2
    halves = measured[:middle], measured[middle:]
    of_halves, of_all = [scores_of_heads(half, score) for half in halves], scores_of_heads(measured, score)
    number = 1
    while number <= max(1, of_all.numel() // 2):
        others = [
            _setting(other, span_rule, best_heads(own, number))
            for own, other in zip(of_halves, reversed(halves), strict=True)
        ]
        shares = [len(half) / len(measured) for half in reversed(halves)]
        yield replace(
            _setting(measured, span_rule, best_heads(of_all, number)),
            recall=_mean([one.recall for one in others], shares),
            vanilla_recall=_mean([one.vanilla_recall for one in others], shares),
        )
        number *= 2


def _setting(measured: Sequence[Measured], span_rule: SpanRule, heads: tuple[Head, ...]) -> RelSetting:
    layers = tuple(sorted({layer for layer, _ in heads}))
    return rel_setting(measured, span_rule, layers, heads=heads)


def _mean(recalls: Sequence[Mapping[int, float]], shares: Sequence[float]) -> dict[int, float]:
    return {depth: sum(share * one[depth] for share, one in zip(shares, recalls, strict=True)) for depth in recalls[0]}
