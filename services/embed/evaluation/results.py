"""Scores of embedders by benchmark, kept as JSON so that rows of several runs come together in one table."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from services.jobs.result_files import ResultFiles

# Beside a task's score may stand its standard deviation over seeds, under the task's name with this behind it.
DEVIATION = " ±"


@dataclass(frozen=True)
class Result:
    """One embedder on one benchmark: points by task, and what was asked (split, number of images, …)."""

    embedder: str
    benchmark: str
    scores: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)


def merge_results(results: Iterable[Result]) -> list[Result]:
    """One result for each embedder and benchmark, in the order of their first appearance.

    Tasks asked with equal settings come together; with other settings the later result takes the earlier one's place.
    """
    merged: dict[tuple[str, str], Result] = {}
    for result in results:
        key = result.embedder, result.benchmark
        earlier = merged.get(key)
        scores = result.scores
        if earlier is not None and earlier.settings == result.settings:
            scores = {**earlier.scores, **result.scores}
        merged[key] = Result(*key, scores, result.settings)
    return list(merged.values())


RESULT_FILES = ResultFiles(Result, merge_results)
