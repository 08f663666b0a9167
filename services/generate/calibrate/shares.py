"""The temperature at which relevance becomes the documents' shares of a probability.

Shapes: K documents.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from services.generate.calibrate.vllm_bench import AnyBench
from services.generate.calibration import log_alpha, relevance
from services.generate.data.questions import Example
from services.generate.generation.bias import DummyOptions
from services.generate.generation.relevance import by_document, layers_of_relevance
from services.generate.model.profile import CalibrationProfile

NUM_STEPS = 60


def fitted_share_temperature(bench: AnyBench, examples: Sequence[Example], profile: CalibrationProfile) -> float:
    """Find t that minimises the mean of −log α of the gold documents, α = softmax(rel / t).

    rel is the profile's; a cached bias is estimated by `tree`, as it is for numbers of documents without a table.
    """
    kind = "tree" if profile.bias == "cached" else profile.bias
    rels: list[Tensor] = []
    golds: list[int] = []
    for one in bench.measure(examples, profile.span_rule, kind, DummyOptions.of(profile)):
        layers = layers_of_relevance(profile, len(one.attention))
        own = one.attention[: len(one.bias)]
        rel = relevance(own, one.bias, layers=layers, heads=profile.rel_heads, scope=profile.rel_scope)
        rels.append(torch.tensor(by_document(rel), dtype=torch.float64))
        golds.append(one.gold)
    return best_temperature(rels, golds)


def best_temperature(rels: Sequence[Tensor], golds: Sequence[int]) -> float:
    """Search t by golden sections of its logarithm, within the scale of the relevances (K,) of each question."""

    def cost(log_t: float) -> float:
        pairs = zip(rels, golds, strict=True)
        shares = [log_alpha(rel, math.exp(log_t), torch.ones_like(rel))[gold] for rel, gold in pairs]
        return -float(torch.stack(shares).mean())

    spread = max(float(torch.stack([rel.max() - rel.min() for rel in rels]).mean()), 1e-9)
    low, high = math.log(spread) - 8, math.log(spread) + 8
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(NUM_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if cost(left) < cost(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)
