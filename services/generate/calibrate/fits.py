"""Logistic fits of probabilities to what a checkpoint measures: that a document answers, that any does."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from services.generate.calibrate.bench import AnyBench
from services.generate.calibration import relevance
from services.generate.data.questions import Example
from services.generate.generation.bias import DummyOptions, estimated
from services.generate.generation.prompt_calibration import by_document, layers_of_relevance
from services.generate.model.profile import CalibrationProfile, LogisticFit


def fitted_relevance(bench: AnyBench, examples: Sequence[Example], profile: CalibrationProfile) -> LogisticFit:
    """Fit the probability that a document answers to its rel, over all documents of the examples.

    rel is the lesser of the profile's in both orders of the documents, as in rankings.
    """
    reverse = [replace(one, documents=one.documents[::-1], gold=len(one.documents) - 1 - one.gold) for one in examples]
    rels: list[float] = []
    is_gold: list[bool] = []
    pairs = zip(*(_rels(bench, order, profile) for order in (examples, reverse)), strict=True)
    for example, (forward, backward) in zip(examples, pairs, strict=True):
        rels += map(min, forward, reversed(backward))
        is_gold += [place == example.gold for place in range(len(forward))]
    scores = torch.tensor(rels, dtype=torch.float64)
    # a unit in which the fit is well conditioned: rel of a long prompt is far below 1
    unit = float(scores.std().clamp_min(1e-12))
    temperature, offset = fit_logistic(scores / unit, torch.tensor(is_gold))
    return LogisticFit(temperature=temperature * unit, offset=offset * unit)


def _rels(bench: AnyBench, examples: Sequence[Example], profile: CalibrationProfile) -> Iterator[tuple[float, ...]]:
    for one in bench.measure(examples, profile.span_rule, estimated(profile.bias), DummyOptions.of(profile)):
        layers = layers_of_relevance(profile, len(one.attention))
        own = one.attention[: len(one.bias)]
        yield by_document(relevance(own, one.bias, layers=layers, heads=profile.rel_heads, scope=profile.rel_scope))


def fit_logistic(scores: Tensor, is_right: Tensor, num_steps: int = 200) -> tuple[float, float]:
    """Fit t and o of σ((score + o) / t) to outcomes (B,) by maximum likelihood (Platt, 1999); t stays positive."""
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t, offset], max_iter=num_steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = binary_cross_entropy_with_logits((scores.double() + offset) / log_t.exp(), is_right.double())
        (value + 1e-3 * log_t**2).backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return float(log_t.detach().exp()), float(offset.detach())
