"""Scores of embedders by benchmark, stored as JSON so that rows of several runs can be combined in one table."""

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from services.jobs.result_files import ResultFiles

# Suffix of a task's name for the standard deviation of its score over seeds, if there is one.
DEVIATION = " ±"


@dataclass(frozen=True)
class Result:
    """One embedder on one benchmark: points by task, and the settings (split, number of images, …)."""

    embedder: str
    benchmark: str
    scores: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)


RESULT_FILES = ResultFiles(
    Result,
    attrgetter("embedder", "benchmark"),
    lambda earlier, later: replace(later, scores={**earlier.scores, **later.scores}),
)
