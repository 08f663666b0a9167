"""Scores of judges by benchmark, stored as JSON so that several runs can be combined in one table."""

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from services.jobs.result_files import ResultFiles

# What settings also tell of the records: parts of a benchmark differ in it and belong together nevertheless.
NOTES = ("captions_cut", "left_out")


@dataclass(frozen=True)
class Result:
    """One judge on one benchmark: percent and number of records by task, and the settings.

    `intervals` are of scores and of the benchmark's aggregates, by their names: [lower, upper] of 95 %. `data` tells,
    by part of the suite, which data the scores are of.
    """

    judge: str
    benchmark: str
    scores: dict[str, float]
    sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)


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
        data={**earlier.data, **later.data},
    )


def _settings(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.settings.items() if name not in NOTES}


RESULT_FILES = ResultFiles(Result, attrgetter("judge", "benchmark"), _combine, _settings)
