"""Scores of the protocols of found-in-the-middle, stored as JSON so that several runs can be combined in one table."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from services.jobs.result_files import ResultFiles

Protocol = Literal["accuracy", "recall", "attention", "hypotheses", "estimates"]

# Suffix of the column of an accuracy's standard error, if there is one.
ERROR = " ±"


@dataclass(frozen=True)
class Result:
    """One model by one protocol on one data set with `num_documents` documents per question.

    `scores` by row and column of the protocol's table; columns of accuracies are gold positions, counted from 0.
    `settings` are the model's version, seed, number of questions, calibration profile, …
    """

    model: str
    protocol: Protocol
    data: str
    num_documents: int
    scores: dict[str, dict[str, float]]
    settings: dict[str, Any] = field(default_factory=dict)


def _combine(earlier: Result, later: Result) -> Result:
    """Merge the columns of equal rows."""
    rows = {row: {**earlier.scores.get(row, {}), **columns} for row, columns in later.scores.items()}
    return replace(later, scores={**earlier.scores, **rows})


RESULT_FILES = ResultFiles(Result, attrgetter("model", "protocol", "data", "num_documents"), _combine)


def positions_of(columns: Mapping[str, float]) -> list[int]:
    """The gold positions among a row's columns, in order; none for a method that does not depend on the position."""
    return sorted(int(column) for column in columns if column.isdigit())


def average_of(columns: Mapping[str, float]) -> float:
    """The mean over gold positions, or the value of `Avg.` for a method without them; NaN without either."""
    positions = positions_of(columns)
    if not positions:
        return columns.get("Avg.", math.nan)
    return math.fsum(columns[str(position)] for position in positions) / len(positions)


def truncated(percent: float) -> str:
    """Truncate to two decimals, as in Table B.2; 60.396 → 60.39.

    A value within rounding of a hundredth counts as that hundredth, so that 0.57 as 0.569999… stays 0.57.
    """
    return f"{math.floor(percent * 100 + 1e-6) / 100:.2f}"
