"""Labelled rows of a user's own task: a file, of which shares are held out, or a folder with a file for each split.

    rows.jsonl                               all rows
    train.jsonl [valid.jsonl] [test.jsonl]   each may be compressed (`.jsonl.gz`)

Rows with the same input are always in the same split.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.jobs.inquiry.record_file import OutputError
from services.predict.data.inputs import Input, read_inputs
from services.predict.data.published import Split
from services.predict.data.rationale_file import read_records
from services.predict.data.rows import VALIDATION_SHARE, BadData, Row, Splits, TeacherOutput, split_off, subsample
from services.predict.data.task_file import OwnTask
from services.predict.data.teacher_outputs import read_output
from services.predict.model.task_description import nearest
from services.predict.tasks import Task

HELD: tuple[Split, Split] = ("test", "valid")  # held out of the training rows, in this order, if they have no file


def split_file(data: Path, split: Split) -> Path | None:
    """The file of a split in a folder, None if it has none; if `data` is a file, it holds the training rows."""
    if not data.is_dir():
        return data if split == "train" else None
    names = (f"{split}.jsonl", f"{split}.jsonl.gz")
    return next((data / name for name in names if (data / name).is_file()), None)


def training_file(data: Path) -> Path:
    """The file of the training rows. Raises BadData for a folder without one."""
    path = split_file(data, "train")
    if path is None:
        raise BadData(f"{data / 'train.jsonl'} is missing")
    return path


def content_digest(paths: Sequence[Path]) -> str:
    """Digest files and folders of JSON lines, to distinguish runs on different content. Raises BadData."""
    digest = hashlib.sha256()
    for given in paths:
        for path in sorted(given.glob("*.jsonl*")) if given.is_dir() else [given]:
            try:
                digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
            except OSError as error:
                raise BadData(f"{path}: {error.strerror}") from None
    return digest.hexdigest()[:12]


def own_splits(
    own: OwnTask, data: Path, rationales: Path | None, *, fraction: float, seed: int, is_labelled: bool
) -> Splits:
    """The splits of one run; `seed` chooses the fraction of the training rows, `split_seed` the held-out rows.

    `rationales` is an output of `fovea distill extract` for the training rows, or a folder with one for each split;
    without it, the rows' own rationales are used. Unless `is_labelled`, training rows may lack a label. Raises BadData
    and OutputError.
    """
    train = _read(own, training_file(data), _outputs_file(rationales, "train"), is_labelled=is_labelled)
    test, valid = (_read_held(own, data, rationales, split) for split in HELD)
    if test is None:
        train, test = hold_out(train, own.test_share, own.split_seed)
    train = [train[row] for row in subsample(len(train), fraction, seed)]
    if valid is None:
        train, valid = hold_out(train, VALIDATION_SHARE, own.split_seed)
    for name, rows in (("training", train), ("validation", valid), ("test", test)):
        if not rows:
            raise BadData(f"{data}: no {name} rows; give more rows with labels, or files of their own in a folder")
    return Splits(train, valid, test)


def hold_out(rows: Sequence[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Split off the rows of a share of the labelled inputs: the remaining rows and these, without a common input."""
    inputs = list(dict.fromkeys(row.input for row in rows if row.label))
    _, chosen = split_off(len(inputs), share, seed)
    held = {inputs[place] for place in chosen}
    return [row for row in rows if row.input not in held], [row for row in rows if row.label and row.input in held]


def _outputs_file(rationales: Path | None, split: Split) -> Path | None:
    """The file of a teacher's outputs for a split; None if there is none, which is an error for the training rows."""
    if rationales is None or not rationales.is_dir():
        return rationales if split == "train" else None
    path = rationales / f"{split}.jsonl"
    return path if split == "train" or path.is_file() else None


def _read_held(own: OwnTask, data: Path, rationales: Path | None, split: Split) -> list[Row] | None:
    """Read the rows of a held-out split; None if it has no file of its own."""
    path = split_file(data, split)
    return None if path is None else _read(own, path, _outputs_file(rationales, split), is_labelled=True)


def _read(own: OwnTask, path: Path, rationales: Path | None, *, is_labelled: bool) -> list[Row]:
    inputs = read_inputs(own.task, path)
    outputs = {} if rationales is None else dict(_outputs(own.task, inputs, rationales))
    rows = []
    for one in inputs:
        label = _label(own, one, is_labelled=is_labelled)
        output = _own_reason(own, one, label) if rationales is None else outputs.get(one.row)
        rows.append(Row(own.task.input_text(one.values), label, output))
    return rows


def _outputs(task: Task, inputs: Sequence[Input], rationales: Path) -> Iterator[tuple[int, TeacherOutput]]:
    """Yield each output that could be parsed, with its row. Raises OutputError for one about another input."""
    found = {(one.row, one.id): one for one in inputs}
    for record in read_records(rationales):
        one = found.get((record.row, record.id))
        if one is None:
            raise OutputError(f"{rationales}: {record.id} is not row {record.row} of the data; it is about other rows")
        read = read_output(task, one.values, record.output)
        if read.problem is None:
            yield one.row, read


def _label(own: OwnTask, one: Input, *, is_labelled: bool) -> str:
    """The label of a row, "" if it needs none. Raises BadData."""
    label = one.record.get(own.label)
    if label is None and not is_labelled:
        return ""
    if own.label not in one.record:
        raise BadData(f"{one.place}: {own.label} is missing; {nearest(own.label, one.record)}")
    if not isinstance(label, str):
        raise BadData(f"{one.place}: {own.label} must be a string{', not null' if label is None else ''}")
    label = label.strip()
    candidates = own.task.candidates(one.values)
    if candidates is not None and label not in candidates:
        raise BadData(f"{one.place}: {own.label} is {label!r}, which is not a label; {nearest(label, candidates)}")
    if not label:
        raise BadData(f"{one.place}: {own.label} is empty")
    if own.task.metric == "equal_value" and own.task.value(label) is None:
        raise BadData(f"{one.place}: {own.label} is {label!r}, an equation without a value")
    return label


def _own_reason(own: OwnTask, one: Input, label: str) -> TeacherOutput | None:
    rationale = one.record.get(own.rationale)
    if rationale is None or rationale == "":
        return None
    if not isinstance(rationale, str):
        raise BadData(f"{one.place}: {own.rationale} must be a string")
    return TeacherOutput(rationale, rationale.strip(), label)
