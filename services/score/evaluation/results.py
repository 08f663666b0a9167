"""Scores of judges by benchmark, kept as JSON so that rows of several runs come together in one table."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from services.jobs.result_files import ResultFiles


@dataclass(frozen=True)
class Result:
    """One judge on one benchmark: percent and number of records by task, and what was asked.

    `intervals` are of scores and of the benchmark's aggregates, by their names: [lower, upper] of 95 %.
    """

    judge: str
    benchmark: str
    scores: dict[str, float]
    sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)


def merge_results(results: Iterable[Result]) -> list[Result]:
    """One result for each judge and benchmark, in the order of their first appearance.

    Tasks asked with equal settings come together; with other settings the later result takes the earlier one's place.
    """
    merged: dict[tuple[str, str], Result] = {}
    for result in results:
        key = result.judge, result.benchmark
        earlier = merged.get(key)
        if earlier is not None and earlier.settings == result.settings and earlier.scores.keys() - result.scores.keys():
            scores = {**earlier.scores, **result.scores}
            intervals = {**earlier.intervals, **result.intervals}
            result = replace(
                result,
                scores=scores,
                sizes={**earlier.sizes, **result.sizes},
                # an aggregate's interval was of the tasks that there were
                intervals={name: intervals[name] for name in intervals if name in scores},
            )
        merged[key] = result
    return list(merged.values())


RESULT_FILES = ResultFiles(Result, merge_results)
