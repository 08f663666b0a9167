"""Judges behind one interface, and the results of their scores.

Shapes: R records of a task, O orders, I images and C captions of a record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from services.jobs.progress import standard_bars
from services.score.evaluation.aggregates import IMAGE, TEXT, aggregates
from services.score.evaluation.records import (
    ImageFile,
    Outcomes,
    Scores,
    Task,
    category_index,
    outcomes,
    percent,
    read_image_file,
)
from services.score.evaluation.results import Result

Similarity = Literal["mix", "global", "local"]

CONFIDENCE = 0.95
OnScores = Callable[[int, Scores], None]


class CannotJudge(Exception):
    """A judge can't answer a task, or can't answer at all; the message says why."""


class Judge(Protocol):
    """Scores how well captions fit images.

    `name` is the heading of its row in a table. Images may be missing for a judge that does not read them.
    """

    name: str
    reads_images: bool

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Report the scores (O, I, C) of each record, with its place, in any order.

        O is 1, unless answers depend on the order of the captions and several orders were asked. Equal captions of one
        image have equal scores. Raises CannotJudge.
        """
        ...

    def notes(self) -> Mapping[str, Any]:
        """Return notes for a reader of the scores, on all tasks so far."""
        ...


def open_image(image: ImageFile) -> Image.Image:
    """Open a record's image, RGB. Raises CannotJudge, with its name, for a file that is not an image."""
    try:
        return read_image_file(image)
    except (OSError, ValueError) as error:
        raise CannotJudge(f"{image} can't be read as an image: {error}") from error


@dataclass(frozen=True)
class Resampling:
    """Number of bootstrap resamples of the records for intervals; 0 for no intervals."""

    num_resamples: int = 0
    seed: int = 0


def evaluate(
    judge: Judge,
    tasks: Sequence[Task],
    settings: Mapping[str, Any] | None = None,
    resampling: Resampling | None = None,
) -> list[Result]:
    """Judge the tasks, with one result for each benchmark and the judge's notes among its settings.

    Raises MissingData before the first image is read if any is missing, and CannotJudge.
    """
    if judge.reads_images:
        for task in tasks:
            task.check_images()
    right = [(task, outcomes(score(judge, task), task.num_true)) for task in tasks]
    left_out = {task.name: task.left_out for task in tasks if task.left_out}
    notes = {**(settings or {}), **judge.notes(), **({"left_out": left_out} if left_out else {})}
    resampling = resampling or Resampling()
    results = []
    for benchmark in dict.fromkeys(task.benchmark for task in tasks):
        own = [(task, found) for task, found in right if task.benchmark == benchmark]
        columns = [_columns(*pair) for pair in own]
        scores = {name: percent(*column) for of_task in columns for name, column in of_task.items()}
        sizes = {task.name: len(task.records) for task, _ in own}
        intervals = _intervals(benchmark, columns, sizes, resampling) if resampling.num_resamples else {}
        results.append(Result(judge.name, benchmark, scores, sizes, notes, intervals))
    return results


def score(judge: Judge, task: Task) -> list[Scores]:
    """Score each record, in the task's order, with a progress bar. Raises CannotJudge."""
    found: list[Scores | None] = [None] * len(task.records)
    with standard_bars().bar(f"{judge.name}, {task.name}", total=len(found)) as bar:

        def keep(place: int, scores: Scores) -> None:
            found[place] = scores
            bar.advance()

        judge.score(task, keep)
    scored = [scores for scores in found if scores is not None]
    assert len(scored) == len(found), f"{judge.name} skipped records of {task.name}"
    return scored


Columns = dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]


def _columns(task: Task, found: Outcomes) -> Columns:
    """Correctness of each record of a task, and its category, by name of a score."""
    category = category_index(task)
    columns = {task.name: (found.both, category)}
    if task.kind == "group":
        columns[task.name + TEXT] = found.text, category
        columns[task.name + IMAGE] = found.image, category
    return columns


def _intervals(
    benchmark: str, columns: Sequence[Columns], sizes: Mapping[str, int], resampling: Resampling
) -> dict[str, list[float]]:
    """Compute percentile intervals of scores and aggregates; each task's records are resampled separately."""
    rng = np.random.default_rng(resampling.seed)
    drawn: dict[str, list[float]] = {}
    for _ in range(resampling.num_resamples):
        scores = {}
        for of_task in columns:
            num_records = len(next(iter(of_task.values()))[0])
            rows = rng.integers(num_records, size=num_records)
            scores.update({name: percent(right[rows], category[rows]) for name, (right, category) in of_task.items()})
        for name, value in {**scores, **aggregates(benchmark, scores, sizes)}.items():
            drawn.setdefault(name, []).append(value)
    tail = 100 * (1 - CONFIDENCE) / 2
    return {name: np.percentile(values, [tail, 100 - tail]).tolist() for name, values in drawn.items()}
