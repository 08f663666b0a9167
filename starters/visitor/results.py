"""Scores of the suite by run, stored as JSON so that several runs can be compared in one table."""

import statistics
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, TypeVar

from services.jobs.result_files import ResultFiles
from starters.visitor.questions import Service

ALL_CASES = "cases made by hand"
CASES_SEED = "0"

Bins = list[list[float] | None]
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """One service in one run, for instance `before` a training; of the generated rows, or of cases made by hand.

    `scores` are percentages by row and seed, `chances` what a guess reaches by row. `rejected` counts the questions
    that the service rejected, by seed. `reliability` has, by row and seed, the bins of rows that measure probabilities:
    [number, mean probability, share that was right] or None. Cases have one row, ALL_CASES, and one seed.
    """

    run: str
    suite: Literal["rows", "cases"]
    service: Service
    scores: dict[str, dict[str, float]]
    chances: dict[str, float]
    rejected: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    reliability: dict[str, dict[str, Bins]] = field(default_factory=dict)

    def mean(self, row: str) -> float | None:
        """Return a row's mean over seeds, or None if it was not measured."""
        return statistics.fmean(self.scores[row].values()) if self.scores.get(row) else None

    def deviation(self, row: str) -> float | None:
        """Return a row's sample standard deviation over seeds, or None for fewer than two."""
        scores = self.scores.get(row, {})
        return statistics.stdev(scores.values()) if len(scores) > 1 else None


def _combine(earlier: Result, later: Result) -> Result:
    """Add the seeds of equal rows."""
    return replace(
        later,
        scores=_with_seeds(earlier.scores, later.scores),
        reliability=_with_seeds(earlier.reliability, later.reliability),
        chances={**earlier.chances, **later.chances},
        rejected={**earlier.rejected, **later.rejected},
    )


def _with_seeds(earlier: dict[str, dict[str, T]], later: dict[str, dict[str, T]]) -> dict[str, dict[str, T]]:
    return {**earlier, **{row: {**earlier.get(row, {}), **seeds} for row, seeds in later.items()}}


RESULT_FILES = ResultFiles(Result, attrgetter("run", "suite", "service"), _combine)
