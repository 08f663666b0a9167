"""The probability that an answer is right, from the probability that a student gives it (Platt 1999, Guo et al. 2017).

    confidence = σ( logit(p) / T + b )

p is the probability of a label among the labels, or of exactly a text; T > 0 is a temperature and b an offset, fitted
by the log loss on rows that the student has not learnt from. A p of 0 or 1 counts as EPSILON from it.
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

    logits, right = np.array([_logit(one) for one in probabilities]), np.array(is_right)

    def loss_and_gradient(at: Any) -> tuple[float, Any]:
        value = at[0] * logits + at[1]
        missed, pulled = expit(value) - right, at - (1.0, 0.0)
        loss = (np.logaddexp(0, value) - right * value).sum() + PRIOR_ROWS * (pulled @ pulled) / 2
        return loss, np.array([missed @ logits, missed.sum()]) + PRIOR_ROWS * pulled

    bounds = ((MIN_SCALE, MAX_SCALE), (None, None))
    scale, offset = minimize(loss_and_gradient, (1.0, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Calibration(1 / float(scale), float(offset))


def _logit(probability: float) -> float:
    inside = min(max(probability, EPSILON), 1 - EPSILON)
    return math.log(inside / (1 - inside))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
