"""Rows of data sets: with people's labels and teachers' outputs, in splits, and as the examples that a student gets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

LabelSource = Literal["human", "llm"]
# no_answer, several_answers: the words before the label are missing, or occur more than once.
# no_label, no_rationale: there is none in its place. unknown_label: it is none of the task's labels.
Problem = Literal["no_answer", "several_answers", "no_label", "unknown_label", "no_rationale"]

VALIDATION_SHARE = 0.1  # of the training rows, where a data set has no validation split of its own


class BadData(ValueError):
    """A file that is missing or not of the form it was read as; says where and why."""


@dataclass(frozen=True)
class Example:
    """Texts that a student is taught or tested on. `rationale` is None where there is none to learn from."""

    input: str
    label: str
    rationale: str | None = None


@dataclass(frozen=True)
class TeacherOutput:
    """A teacher's text, the rationale and the label read out of it, and the first problem with them, if any."""

    text: str
    rationale: str
    label: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Row:
    """A row of a data set: its input, the label that people gave it, and what a teacher wrote about it, if it did."""

    input: str
    label: str
    output: TeacherOutput | None = None


@dataclass(frozen=True)
class Splits:
    """Rows to teach with, to choose a checkpoint by, and to test it on once."""

    train: list[Row]
    valid: list[Row]
    test: list[Row]


def join(rows: Sequence[Row], outputs: Sequence[TeacherOutput | None]) -> list[Row]:
    """The rows with a teacher's outputs, by their order. Raises BadData where there are not as many."""
    if len(rows) != len(outputs):
        raise BadData(f"{len(outputs)} outputs of a teacher do not match {len(rows)} rows")
    return [replace(row, output=output) for row, output in zip(rows, outputs, strict=True)]


def make_splits(
    train: Sequence[Row], valid: Sequence[Row] | None, test: Sequence[Row], fraction: float = 1.0, seed: int = 0
) -> Splits:
    """The splits of one run: a share of the training rows, chosen by `seed`, all others whole.

    `valid` None takes VALIDATION_SHARE of the training rows for it, the same for every run. As published, the share
    is chosen first, so that a run on few rows also has few to choose its checkpoint by.
    """
    kept = [train[i] for i in subsample(len(train), fraction, seed)]
    if valid is not None:
        return Splits(kept, list(valid), list(test))
    taught, held_out = split_off(len(kept), VALIDATION_SHARE, 0)
    return Splits([kept[i] for i in taught], [kept[i] for i in held_out], list(test))


def subsample(num_rows: int, fraction: float, seed: int) -> list[int]:
    """Choose the rows that a run learns from, in its reading order: for a fraction of 1 all, in their own order.

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
    """The rows that stay and the share, rounded up, that is split off: the permutation that the published runs drew."""
    order = np.random.default_rng(seed).permutation(num_rows).tolist()
    num_split_off = math.ceil(share * num_rows)
    return order[num_split_off:], order[:num_split_off]


def to_examples(rows: Sequence[Row], labels: LabelSource = "human", *, drop_empty: bool = False) -> list[Example]:
    """Rows as a student gets them: with the teacher's rationales, and with people's labels or the teacher's.

    Rationales and labels that a rule could not read stay, as the empty texts that they are, unless `drop_empty` leaves
    out the rows whose rationale, or whose label where it is the teacher's, is empty. Rows without an output have the
    rationale None. Raises BadData where a teacher's label is asked for and there is no output.

    Published runs take the teacher's labels for the training rows alone.
    """
    examples = []
    for number, row in enumerate(rows):
        if labels == "llm" and row.output is None:
            raise BadData(f"row {number} has no output of a teacher, so it has no label")
        label = row.output.label if labels == "llm" and row.output else row.label
        rationale = row.output.rationale if row.output else None
        is_empty = not label.strip() or (rationale is not None and not rationale.strip())
        if not (drop_empty and is_empty):
            examples.append(Example(row.input, label, rationale))
    return examples
