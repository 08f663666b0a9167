"""The probability that the documents answer, fitted for answers under a profile's calibration."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from services.generate.calibrate.vllm_bench import AnyBench
from services.generate.data.question_sets import at_positions
from services.generate.data.questions import Example, Unanswerable
from services.generate.model.profile import CalibrationProfile, LogisticFit

NUM_FITTED = 400
# of the questions, as in the reader's training
SHARE_UNANSWERABLE = 0.3
# questions of the training have other seeds, those of the search the first of their part
SEED = 7_000


def fitted_with_calibration(
    bench: AnyBench, profile: CalibrationProfile, token_id: int, num_documents: int
) -> LogisticFit | None:
    """Fit t and o of σ((o − logit p) / t) by likelihood, p the probability of the refusal's first token (Platt, 1999).

    Half of the questions have `num_documents` documents, half a third as many, for the fit is to hold for both. None
    for a profile that is off and for data without unanswerable questions.
    """
    if not profile.enabled or not bench.questions.has_unanswerable:
        return None
    odds, is_answerable = [], []
    for number, count in enumerate((num_documents, -(-num_documents // 3))):
        num_refused = round(SHARE_UNANSWERABLE * NUM_FITTED / 2)
        some = bench.questions.examples("calibration", count, NUM_FITTED // 2 - num_refused, SEED + number)
        asked: list[Example | Unanswerable] = [
            *at_positions(some, range(count)),
            *bench.questions.unanswerable("calibration", count, num_refused, SEED + number),
        ]
        for one, log_odds in zip(asked, bench.refusal_odds(asked, profile, token_id), strict=True):
            odds.append(log_odds)
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
