"""Scores of judges by benchmark, stored as JSON so that several runs can be combined in one table."""

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from services.jobs.result_files import ResultFiles


@dataclass(frozen=True)
class Result:
    """One judge on one benchmark: percent and number of records by task, and the settings.

    `intervals` are of scores and of the benchmark's aggregates, by their names: [lower, upper] of 95 %.
    """

    judge: str
    benchmark: str
    scores: dict[str, float]
    sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)


def _combine(earlier: Result, later: Result) -> Result:
    if not earlier.scores.keys() - later.scores.keys():
        return later
    scores = {**earlier.scores, **later.scores}
    intervals = {**earlier.intervals, **later.intervals}
    return replace(
        later,
        scores=scores,
        sizes={**earlier.sizes, **later.sizes},
        # an aggregate's interval is only valid for the tasks it was computed from
        intervals={name: intervals[name] for name in intervals if name in scores},
    )


RESULT_FILES = ResultFiles(Result, attrgetter("judge", "benchmark"), _combine)
