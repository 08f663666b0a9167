"""Fit of what a profile says of a trained refusal, to its calibration.

`python -m starters fit-refusal` adds it to a checkpoint that `python -m starters calibrate` has calibrated: the
probability that the documents answer if the answer is calibrated, and the temperature at which the documents share that
probability in rankings.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from services.core.refusals import Refused
from services.generate.calibrate.bench import Bench
from services.generate.calibration import log_alpha, relevance
from services.generate.data.questions import Example, Unanswerable, at_positions
from services.generate.generation.bias import DummyOptions
from services.generate.generation.prompt_calibration import by_document, layers_of_relevance, refusal_log_odds
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import PROFILE_FILE, CalibrationProfile, LogisticFit, read_profile, write_profile
from services.jobs.checkpoints import Device
from services.jobs.options import command_line
from services.jobs.progress import standard_bars
from services.nn.devices import DeviceOptions
from starters.generate.questions import OPEN

# of the profile's tables too
NUM_SHARED = 100
NUM_FITTED = 400
# of the questions, as in the reader's training
SHARE_UNANSWERABLE = 0.3
# questions of the training have other seeds, those of the search the first of their part
SEED = 7_000


app = command_line()


@app.command("fit-refusal")
def fit_refusal(
    checkpoint: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The checkpoint's folder.")],
    documents: Annotated[int, typer.Option(min=2, help="Documents per question.")] = 10,
    device: Device = "auto",
) -> None:
    """Fit what the checkpoint's profile says about its trained refusal to its calibration, on generated questions."""
    profile = read_profile(checkpoint)
    if profile is None or profile.answerability is None:
        raise Refused(f"{checkpoint} has no {PROFILE_FILE} with a trained refusal")
    bench = Bench(LanguageModel.load(checkpoint, DeviceOptions(device=device)), OPEN)
    some = OPEN.examples("calibration", documents, NUM_SHARED)
    with standard_bars().bar("shares of relevance", total=NUM_SHARED) as bar:
        watched = replace(bench, on_progress=bar.advance)
        temperature = fitted_share_temperature(watched, at_positions(some, range(documents)), profile)
        bar.begin("probability that the documents answer", NUM_FITTED)
        fit = fitted_with_calibration(watched, profile, profile.answerability.token_id, documents)
    refusal = profile.answerability.model_copy(update={"share_temperature": temperature, "calibrated": fit})
    write_profile(profile.model_copy(update={"answerability": refusal}), checkpoint)


def fitted_with_calibration(
    bench: Bench, profile: CalibrationProfile, token_id: int, num_documents: int
) -> LogisticFit | None:
    """Fit t and o of σ((o − logit p) / t) by likelihood, p the probability of the refusal's first token (Platt, 1999).

    Half of the questions have `num_documents` documents, half a third as many, for the fit is to hold for both. None
    for a profile that is off.
    """
    if not profile.enabled:
        return None
    odds, is_answerable = [], []
    for number, count in enumerate((num_documents, -(-num_documents // 3))):
        num_refused = round(SHARE_UNANSWERABLE * NUM_FITTED / 2)
        some = bench.questions.examples("calibration", count, NUM_FITTED // 2 - num_refused, SEED + number)
        asked: list[Example | Unanswerable] = [
            *at_positions(some, range(count)),
            *bench.questions.unanswerable("calibration", count, num_refused, SEED + number),
        ]
        for one, logits in zip(asked, bench.first_logits(asked, profile), strict=True):
            odds.append(refusal_log_odds(logits, token_id))
            is_answerable.append(one.gold is not None)
    temperature, offset = fit_logistic(-torch.stack(odds), torch.tensor(is_answerable))
    return LogisticFit(temperature=temperature, offset=offset)


def fit_logistic(scores: Tensor, is_right: Tensor, num_steps: int = 200) -> tuple[float, float]:
    """Fit t and o of σ((score + o) / t) to outcomes (B,) by maximum likelihood; t stays positive."""
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


NUM_STEPS = 60


def fitted_share_temperature(bench: Bench, examples: Sequence[Example], profile: CalibrationProfile) -> float:
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
