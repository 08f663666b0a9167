"""The probability that an answer is right, from the probability that a student gives it (Platt 1999, Guo et al. 2017).

    confidence = σ( logit(p) / T + b )

p is the probability of a label among the labels, or of exactly a text; T > 0 is a temperature and b an offset, fitted
by the log loss on rows that the student has not learnt from. A p of 0 or 1 counts as EPSILON from it.
"""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

EPSILON = 1e-6
# Strength of the pull towards T = 1 and b = 0, in rows: it decides where all rows are right, or all wrong.
PRIOR_ROWS = 1.0
# Bounds of 1 / T: a greater probability never means a smaller confidence.
MIN_SCALE, MAX_SCALE = 0.02, 20.0
_STEPS = 100


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Calibration:
    """A temperature above 0 and an offset."""

    temperature: Annotated[float, Field(gt=0)]
    offset: float

    def confidence(self, probability: float) -> float:
        """Compute the confidence of an answer with a probability from 0 to 1."""
        return _sigmoid(_logit(probability) / self.temperature + self.offset)


def fit_calibration(probabilities: Sequence[float], is_right: Sequence[bool]) -> Calibration:
    """Fit temperature and offset by Newton's method. Raises ValueError for no rows."""
    if not probabilities:
        raise ValueError("there are no rows to fit a confidence to")
    logits = [_logit(probability) for probability in probabilities]
    scale, offset = 1.0, 0.0
    for _ in range(_STEPS):
        gradient = [PRIOR_ROWS * (scale - 1), PRIOR_ROWS * offset]
        curvature = [PRIOR_ROWS, 0.0, PRIOR_ROWS]
        for logit, right in zip(logits, is_right, strict=True):
            share = _sigmoid(scale * logit + offset)
            weight = max(share * (1 - share), EPSILON)
            gradient[0] += (share - right) * logit
            gradient[1] += share - right
            curvature[0] += weight * logit * logit
            curvature[1] += weight * logit
            curvature[2] += weight
        determinant = curvature[0] * curvature[2] - curvature[1] ** 2
        steps = (
            (curvature[2] * gradient[0] - curvature[1] * gradient[1]) / determinant,
            (curvature[0] * gradient[1] - curvature[1] * gradient[0]) / determinant,
        )
        longest = max(1.0, *(abs(step) for step in steps))  # a step of at most 1 stays where the loss is convex
        scale = min(max(scale - steps[0] / longest, MIN_SCALE), MAX_SCALE)
        offset -= steps[1] / longest
    return Calibration(1 / scale, offset)


def _logit(probability: float) -> float:
    inside = min(max(probability, EPSILON), 1 - EPSILON)
    return math.log(inside / (1 - inside))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
