"""Scores of the protocols of found-in-the-middle, kept as JSON so that several runs come together in one table."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

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


def load_results(paths: Sequence[Path]) -> list[Result]:
    """The results of files that `save_results` wrote, merged. Raises OSError, or ValueError for another content."""
    results = []
    for path in paths:
        try:
            results += [Result(**entry) for entry in json.loads(path.read_text())]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no results: {error}") from error
    return merge_results(results)


def save_results(results: Sequence[Result], path: Path) -> None:
    """Write results, beside those that the file holds already, into a folder that is made where it is missing."""
    earlier = load_results([path]) if path.is_file() else []
    entries = [asdict(result) for result in merge_results([*earlier, *results])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, indent=2) + "\n")


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
