"""Scores of embedders by benchmark, kept as JSON so that rows of several runs come together in one table."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    """Write results, beside those that the file holds already."""
    earlier = load_results([path]) if path.is_file() else []
    entries = [asdict(result) for result in merge_results([*earlier, *results])]
    path.write_text(json.dumps(entries, indent=2) + "\n")
