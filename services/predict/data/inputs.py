"""The inputs of a task, of a published split or the user's own file, and the labelled rows of a user's own task.

A user's rows are in a file, of which shares are held out, or in a folder with a file for each split:

    rows.jsonl                               all rows
    train.jsonl [valid.jsonl] [test.jsonl]   each may be compressed (`.jsonl.gz`)

Rows with the same input are always in the same split.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.core.text_files import BadFile, Place, id_of, json_objects
from services.jobs.inquiry import OutputError
from services.predict.data.published import Split, read_rows
from services.predict.data.rationale_file import begun_with, outputs_file, read_records
from services.predict.data.rows import VALIDATION_SHARE, Row, TeacherOutput, TeachingData, join, split_off, subsample
from services.predict.data.task_file import OwnTask
from services.predict.data.teacher_outputs import read_output
from services.predict.model.task_description import nearest
from services.predict.tasks import TASKS, FieldError, FieldValue, Task

IDS = ("id", "uid", "ID")


@dataclass(frozen=True)
class Input:
    """An input: `row` counts from 0; `record` is its record in the file, at `location` (file and line)."""

    id: str
    row: int
    values: Mapping[str, FieldValue]
    record: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""


def published_inputs(task: Task, folder: Path, split: Split) -> list[Input]:
    """The rows of a published split, called `train-0` and so on. Raises BadFile."""
    rows = read_rows(task, folder, split)
    return [Input(f"{split}-{number}", number, split_input(task, row.input)) for number, row in enumerate(rows)]


def read_inputs(task: Task, path: Path) -> list[Input]:
    """Read the records of a file: JSON lines or one JSON list, which may be compressed by gzip.

    A record has the task's fields or, for a published task, fields that begin with a capital, or `input`, the text
    that they become. Its id is one of IDS, or else its row, with a digest of its text for a user's own task. Other
    keys are ignored. Raises BadFile, also for a repeated id.
    """
    inputs: list[Input] = []
    seen: dict[str, Place] = {}
    for row, (location, record) in enumerate(json_objects(path)):
        try:
            values = _values(task, record)
            text = task.input_text(values).encode()
        except FieldError as error:
            hint = f"; {nearest(error.field, record)}" if record and error.field not in record else ""
            raise BadFile(f"{location}: {error}{hint}") from None
        except BadFile as error:
            raise BadFile(f"{location}: {error}") from None
        one = Input(_id_of(task, record, row, text, location), row, values, record, str(location))
        if (other := seen.setdefault(one.id, location)) != location:
            raise BadFile(f"{other} and {location} have the same id {one.id!r}")
        inputs.append(one)
    return inputs


def few_shot_rows(task: Task, folder: Path, outputs: Path) -> list[Row]:
    """Read the rows of a published test split with what a teacher wrote about them after demonstrations.

    `outputs` is an output of `fovea distill extract`, or a folder with `test.jsonl`. Rows that it was not asked about
    have no output. Raises BadFile and OutputError, also if there are no outputs or they had no demonstrations.
    """
    path = outputs_file(outputs, "test")
    found = dict(_outputs(task, published_inputs(task, folder, "test"), path))
    begun = begun_with(path) or {}
    if begun.get("zero_shot"):
        raise OutputError(f"{path}: its outputs are zero-shot; few-shot CoT needs demonstrations")
    if (asked := begun.get("task", task.name)) != task.name:
        raise OutputError(f"{path}: its outputs are of {asked}, not of {task.name}")
    if not found:
        raise OutputError(f"{path} contains no outputs")
    rows = read_rows(task, folder, "test")
    return join(rows, [found.get(number) for number in range(len(rows))])


def split_input(task: Task, text: str) -> dict[str, FieldValue]:
    """Split a text into the values of its fields: the inverse of `Task.input_text`. Raises BadFile."""
    first, separator, last = text.rpartition(f"{task.separator}Answer Choices:\n" if task.choices else task.separator)
    if not separator:
        raise BadFile(f"not an input of {task.name}: {text[:80]!r}")
    if task.choices is None:
        return dict(zip(task.fields, (first, last), strict=True))
    return dict(zip(task.fields, (first, [line[len("(a) ") :] for line in last.split("\n")]), strict=True))


def _values(task: Task, record: Mapping[str, Any]) -> Mapping[str, FieldValue]:
    if task.name not in TASKS:
        return {name: record[name] for name in task.fields if name in record}
    if isinstance(record.get("input"), str) and not record.keys() & set(task.fields):
        return split_input(task, record["input"])
    names = {name: name if name in record else name.capitalize() for name in task.fields}
    return {name: record[given] for name, given in names.items() if given in record}


def _id_of(task: Task, record: Mapping[str, Any], row: int, text: bytes, location: Place) -> str:
    own = "" if task.name in TASKS else f"-{hashlib.sha256(text).hexdigest()[:8]}"
    return next((id_of(record, name, location) for name in IDS if name in record), f"{row}{own}")


def split_file(data: Path, split: Split) -> Path | None:
    """The file of a split in a folder, None if it has none; if `data` is a file, it holds the training rows."""
    if not data.is_dir():
        return data if split == "train" else None
    names = (f"{split}.jsonl", f"{split}.jsonl.gz")
    return next((data / name for name in names if (data / name).is_file()), None)


def content_digest(paths: Sequence[Path]) -> str:
    """Digest files and folders of JSON lines, to distinguish runs on different content. Raises BadFile."""
    digest = hashlib.sha256()
    for given in paths:
        for path in sorted(given.glob("*.jsonl*")) if given.is_dir() else [given]:
            try:
                digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
            except OSError as error:
                raise BadFile(f"{path}: {error.strerror}") from None
    return digest.hexdigest()[:12]


def own_splits(
    own: OwnTask, data: Path, rationales: Path | None, *, fraction: float, seed: int, is_labelled: bool
) -> TeachingData:
    """The splits of one run; `seed` chooses the fraction of the training rows, `split_seed` the held-out rows.

    `rationales` is an output of `fovea distill extract` for the training rows, or a folder with one for each split;
    without it, the rows' own rationales are used. Unless `is_labelled`, training rows may lack a label. Raises BadFile
    and OutputError.
    """

    def read(split: Split, *, is_labelled: bool = True) -> list[Row] | None:
        path = split_file(data, split)
        outputs = None if rationales is None else split_file(rationales, split)
        return None if path is None else _read(own, path, outputs, is_labelled=is_labelled)

    for given in (data, data if rationales is None else rationales):
        if split_file(given, "train") is None:
            raise BadFile(f"{given / 'train.jsonl'} is missing")
    train = read("train", is_labelled=is_labelled) or []
    test, valid = read("test"), read("valid")
    if test is None:
        train, test = hold_out(train, own.test_share, own.split_seed)
    train = [train[row] for row in subsample(len(train), fraction, seed)]
    if valid is None:
        train, valid = hold_out(train, VALIDATION_SHARE, own.split_seed)
    for name, rows in (("training", train), ("validation", valid), ("test", test)):
        if not rows:
            raise BadFile(f"{data}: no {name} rows; give more rows with labels, or files of their own in a folder")
    return TeachingData(own.task, train, valid, test)


def hold_out(rows: Sequence[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Split off the rows of a share of the labelled inputs: the remaining rows and these, without a common input."""
    inputs = list(dict.fromkeys(row.input for row in rows if row.label))
    held = {inputs[number] for number in split_off(len(inputs), share, seed)[1]}
    return [row for row in rows if row.input not in held], [row for row in rows if row.label and row.input in held]


def _read(own: OwnTask, path: Path, rationales: Path | None, *, is_labelled: bool) -> list[Row]:
    inputs = read_inputs(own.task, path)
    found = [] if rationales is None else _outputs(own.task, inputs, rationales)
    outputs = {row: output for row, output in found if output.problem is None}
    rows = []
    for one in inputs:
        label = _label(own, one, is_labelled=is_labelled)
        output = _own_reason(own, one, label) if rationales is None else outputs.get(one.row)
        choices = () if own.task.choices is None else tuple(one.values[own.task.choices])
        rows.append(Row(own.task.input_text(one.values), label, output, choices))
    return rows


def _outputs(task: Task, inputs: Sequence[Input], rationales: Path) -> Iterator[tuple[int, TeacherOutput]]:
    """Yield each output with its row. Raises OutputError for one about another input."""
    found = {(one.row, one.id): one for one in inputs}
    for record in read_records(rationales):
        one = found.get((record.row, record.id))
        if one is None:
            raise OutputError(f"{rationales}: {record.id} is not row {record.row} of the data; it is about other rows")
        yield one.row, read_output(task, one.values, record.output)


def _label(own: OwnTask, one: Input, *, is_labelled: bool) -> str:
    """The label of a row, "" if it needs none. Raises BadFile."""
    label = one.record.get(own.label)
    if label is None and not is_labelled:
        return ""
    if own.label not in one.record:
        raise BadFile(f"{one.location}: {own.label} is missing; {nearest(own.label, one.record)}")
    if not isinstance(label, str):
        raise BadFile(f"{one.location}: {own.label} must be a string{', not null' if label is None else ''}")
    label = label.strip()
    candidates = own.task.candidates(one.values)
    if candidates is not None and label not in candidates:
        raise BadFile(f"{one.location}: {own.label} is {label!r}, which is not a label; {nearest(label, candidates)}")
    if not label:
        raise BadFile(f"{one.location}: {own.label} is empty")
    if own.task.metric == "equal_value" and own.task.value(label) is None:
        raise BadFile(f"{one.location}: {own.label} is {label!r}, an equation without a value")
    return label


def _own_reason(own: OwnTask, one: Input, label: str) -> TeacherOutput | None:
    rationale = one.record.get(own.rationale)
    if rationale is None or rationale == "":
        return None
    if not isinstance(rationale, str):
        raise BadFile(f"{one.location}: {own.rationale} must be a string")
    return TeacherOutput(rationale, rationale.strip(), label)
