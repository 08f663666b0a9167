"""The probability that an answer is right, from the probability that a student gives it (Platt 1999, Guo et al. 2017).

    confidence = σ( logit(p) / T + b )

p is the probability of a label among the labels, or of exactly a text; T > 0 is a temperature and b an offset, fitted
by the log loss on rows that the student has not learnt from, with Platt's targets: of n right rows each counts as
(n + 1) / (n + 2) right, of m wrong ones as 1 / (m + 2). A p of 0 or 1 counts as EPSILON from it.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

EPSILON = 1e-6
# Strength of the pull towards T = 1 and b = 0, in rows: it decides where all rows are right, or all wrong.
PRIOR_ROWS = 1.0
# Bounds of 1 / T: a greater probability never means a smaller confidence.
MIN_SCALE, MAX_SCALE = 0.02, 20.0
# With fewer rows T >= 1 and b <= 0: no probability above a half becomes a greater confidence.
ENOUGH_ROWS = 100
# Of the bounds of an error.
CERTAINTY = 0.95


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Calibration:
    """A temperature above 0 and an offset."""

    temperature: Annotated[float, Field(gt=0)]
    offset: float

    def confidence(self, probability: float) -> float:
        """Compute the confidence of an answer with a probability from 0 to 1."""
        return _sigmoid(_logit(probability) / self.temperature + self.offset)


def fit_calibration(probabilities: Sequence[float], is_right: Sequence[bool]) -> Calibration:
    """Fit temperature and offset. Raises ValueError for no rows."""
    if not probabilities:
        raise ValueError("there are no rows to fit a confidence to")
    # services do without scipy
    from scipy.optimize import minimize
    from scipy.special import expit

    logits, num_rows, num_right = np.array([_logit(one) for one in probabilities]), len(is_right), sum(is_right)
    right = np.where(is_right, (num_right + 1) / (num_right + 2), 1 / (num_rows - num_right + 2))

    def loss_and_gradient(at: Any) -> tuple[float, Any]:
        value = at[0] * logits + at[1]
        missed, pulled = expit(value) - right, at - (1.0, 0.0)
        loss = (np.logaddexp(0, value) - right * value).sum() + PRIOR_ROWS * (pulled @ pulled) / 2
        return loss, np.array([missed @ logits, missed.sum()]) + PRIOR_ROWS * pulled

    bounds = ((MIN_SCALE, MAX_SCALE), (None, None)) if num_rows >= ENOUGH_ROWS else ((MIN_SCALE, 1.0), (None, 0.0))
    scale, offset = minimize(loss_and_gradient, (1.0, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Calibration(1 / float(scale), float(offset))


def calibration_error(probabilities: Sequence[float], outcomes: Sequence[bool], num_bins: int = 10) -> float:
    """Compute the expected calibration error Σ_b n_b / n · |share_b − mean probability_b| over bins of equal width.

    0 without probabilities.
    """
    bins: dict[int, list[tuple[float, bool]]] = {}
    for probability, outcome in zip(probabilities, outcomes, strict=True):
        bins.setdefault(min(int(probability * num_bins), num_bins - 1), []).append((probability, outcome))
    gaps = (abs(sum(outcome - probability for probability, outcome in those)) for those in bins.values())
    return sum(gaps) / max(1, len(probabilities))


def hand_over_below(confidences: Sequence[float], is_right: Sequence[bool], max_error: float) -> float | None:
    """Choose the lowest confidence from which on at most a share of the answers is wrong, as far as the rows show.

    It is the lowest whose one-sided 95% bound of the error (Clopper and Pearson 1934) is at most `max_error`. None if
    no confidence is high enough, so that all is to be handed over.
    """
    from scipy.stats import beta

    order = np.argsort(-np.array(confidences), kind="stable")
    sorted_, num_answers = np.array(confidences)[order], np.arange(1, len(order) + 1)
    num_wrong = np.cumsum(~np.array(is_right, dtype=bool)[order])
    bound = np.where(num_wrong < num_answers, beta.ppf(CERTAINTY, num_wrong + 1, num_answers - num_wrong), 1.0)
    is_last = np.append(sorted_[1:] < sorted_[:-1], True)  # answers of one confidence are handed over together
    good = np.flatnonzero(is_last & (bound <= max_error))
    return float(sorted_[good[-1]]) if len(good) else None


def error_interval(num_wrong: int, num_answers: int) -> list[float]:
    """Compute the two-sided 95% interval of a share of errors (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    found = binomtest(num_wrong, num_answers).proportion_ci(CERTAINTY)
    return [float(found.low), float(found.high)]


def _logit(probability: float) -> float:
    inside = min(max(probability, EPSILON), 1 - EPSILON)
    return math.log(inside / (1 - inside))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
