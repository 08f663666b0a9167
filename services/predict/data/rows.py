"""Rows of data sets, with human labels and teachers' outputs, and their splits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from services.core.text_files import BadFile
from services.predict.tasks import Task

LabelSource = Literal["human", "llm"]
# no_answer, several_answers: the words before the label are missing, or occur more than once.
# no_label, no_rationale: its place is empty. unknown_label: it is not one of the task's labels or the question's
# choices. no_value: the equation has no value.
Problem = Literal["no_answer", "several_answers", "no_label", "unknown_label", "no_value", "no_rationale"]

VALIDATION_SHARE = 0.1  # of the training rows, if a data set has no validation split of its own


@dataclass(frozen=True)
class TeacherOutput:
    """A teacher's text, the rationale and the label parsed from it, and the first problem with them, if any."""

    text: str
    rationale: str
    label: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Row:
    """A row of a data set: its input, its label, a teacher's output about it, if any, and its own choices."""

    input: str
    label: str
    output: TeacherOutput | None = None
    choices: tuple[str, ...] = ()

    @property
    def rationale(self) -> str | None:
        return None if self.output is None else self.output.rationale


@dataclass(frozen=True)
class TeachingData:
    """Rows of a task for training, for choosing the step, and for a single test of it.

    The confidence is fitted to `confided`, or without any to the rows for choosing.
    """

    task: Task
    train: list[Row]
    valid: list[Row]
    test: list[Row]
    confided: list[Row] = field(default_factory=list)


def join(rows: Sequence[Row], outputs: Sequence[TeacherOutput | None]) -> list[Row]:
    """Add a teacher's outputs to the rows, in order. Raises BadFile if their numbers differ."""
    if len(rows) != len(outputs):
        raise BadFile(f"{len(outputs)} outputs of a teacher do not match {len(rows)} rows")
    return [replace(row, output=output) for row, output in zip(rows, outputs, strict=True)]


def make_splits(
    task: Task,
    train: Sequence[Row],
    valid: Sequence[Row] | None,
    test: Sequence[Row],
    fraction: float = 1.0,
    seed: int = 0,
) -> TeachingData:
    """Make the splits of one run: a share of the training rows, chosen by `seed`, and all rows of the other splits.

    If `valid` is None, VALIDATION_SHARE of the training rows becomes the validation split, the same for every run. As
    published, the share is chosen first, so that a run on few rows also has few validation rows.
    """
    kept = [train[i] for i in subsample(len(train), fraction, seed)]
    if valid is not None:
        return TeachingData(task, kept, list(valid), list(test))
    taught, held_out = split_off(len(kept), VALIDATION_SHARE, 0)
    return TeachingData(task, [kept[i] for i in taught], [kept[i] for i in held_out], list(test))


def subsample(num_rows: int, fraction: float, seed: int) -> list[int]:
    """Choose the rows that a run learns from, in the order in which it reads them; a fraction of 1 keeps all in order.

    Raises ValueError for a fraction outside (0, 1] and for one that leaves no row.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction of the training rows is above 0 and at most 1, not {fraction}")
    if fraction == 1:
        return list(range(num_rows))
    kept, _ = split_off(num_rows, 1.0 - fraction, seed)
    if not kept:
        raise ValueError(f"a fraction of {fraction} leaves none of {num_rows} rows")
    return kept


def split_off(num_rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """The remaining rows and the share that is split off, rounded up, by the permutation of the published runs."""
    order = np.random.default_rng(seed).permutation(num_rows).tolist()
    num_split_off = math.ceil(share * num_rows)
    return order[num_split_off:], order[:num_split_off]


def taught_rows(rows: Sequence[Row], labels: LabelSource, *, drop_empty: bool) -> list[Row]:
    """Give rows the labels that a student learns: human ones or, with "llm", the teacher's.

    Rationales and labels that a rule could not read are kept as empty texts, unless `drop_empty` leaves out their rows.
    With "llm", rows without an output are left out.
    """
    if labels == "llm":
        rows = [replace(row, label=row.output.label) for row in rows if row.output is not None]
    empty = [not row.label.strip() or (row.rationale is not None and not row.rationale.strip()) for row in rows]
    return [row for row, is_empty in zip(rows, empty, strict=True) if not (drop_empty and is_empty)]
