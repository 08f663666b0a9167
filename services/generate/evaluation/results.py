"""Scores of the protocols of found-in-the-middle, kept as JSON so that several runs come together in one table."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from services.jobs.result_files import ResultFiles

Protocol = Literal["accuracy", "recall", "attention", "hypotheses", "estimates"]

# Beside an accuracy may stand how sure it is, under its name with this behind it.
ERROR = " ±"


@dataclass(frozen=True)
class Result:
    """One model by one protocol on one data set with `num_documents` documents a question.

    `scores` by row and column of the protocol's table; in accuracies columns are gold positions, counted from 0.
    `settings` says what was asked: the model's version, seed, number of questions, calibration profile, …
    """

    model: str
    protocol: Protocol
    data: str
    num_documents: int
    scores: dict[str, dict[str, float]]
    settings: dict[str, Any] = field(default_factory=dict)


def merge_results(results: Iterable[Result]) -> list[Result]:
    """One result for each model, protocol, data set and number of documents, in the order of their first appearance.

    Rows asked with equal settings come together; with other settings the later result takes the earlier one's place.
    """
    merged: dict[tuple[str, str, str, int], Result] = {}
    for result in results:
        key = result.model, result.protocol, result.data, result.num_documents
        earlier = merged.get(key)
        if earlier is not None and earlier.settings == result.settings:
            rows = {row: {**earlier.scores.get(row, {}), **columns} for row, columns in result.scores.items()}
            result = Result(
                result.model, result.protocol, result.data, result.num_documents, {**earlier.scores, **rows},
                result.settings,
            )  # fmt: skip
        merged[key] = result
    return list(merged.values())


RESULT_FILES = ResultFiles(Result, merge_results)


def positions_of(columns: Mapping[str, float]) -> list[int]:
    """The gold positions among a row's columns, in order; none for a method that no position makes a difference to."""
    return sorted(int(column) for column in columns if column.isdigit())


def average_of(columns: Mapping[str, float]) -> float:
    """The mean over gold positions, or what a method without them has under `Avg.`; NaN where there is neither."""
    positions = positions_of(columns)
    if not positions:
        return columns.get("Avg.", math.nan)
    return math.fsum(columns[str(position)] for position in positions) / len(positions)


def truncated(percent: float) -> str:
    """Two decimals, the rest cut off, as Table B.2 has them; 60.396 → 60.39.

    What lies within rounding of a hundredth is taken for it, so that 0.57 as 0.569999… stays 0.57.
    """
    return f"{math.floor(percent * 100 + 1e-6) / 100:.2f}"
