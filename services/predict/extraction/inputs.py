"""The inputs that a teacher is asked about: a split of a published data set, or a file of one's own."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.predict.data.published import Split, read_rows
from services.predict.data.rows import BadData
from services.predict.tasks import FieldError, FieldValue, Task


@dataclass(frozen=True)
class Input:
    """One of them: `row` is its place among all, from 0."""

    id: str
    row: int
    values: Mapping[str, FieldValue]


def published_inputs(task: Task, folder: Path, split: Split) -> list[Input]:
    """The rows of a published split, called `train-0` and so on. Raises BadData."""
    rows = read_rows(task, folder, split)
    return [Input(f"{split}-{number}", number, split_input(task, row.input)) for number, row in enumerate(rows)]


def read_inputs(task: Task, path: Path) -> list[Input]:
    """The records of a file: JSON, one a line or all in one list, compressed where its name ends in .gz.

    A record has the task's fields, whose first letter may be a capital, or `input`, the text that they become; its id
    is `id`, `uid`, `ID` or else its place, and what else it has is passed over. Raises BadData, also for an id that
    comes twice.
    """
    inputs: list[Input] = []
    places: dict[str, int] = {}
    for row, record in enumerate(_records(path)):
        try:
            one = Input(_id_of(record, row), row, _values(task, record))
            task.input_text(one.values)
        except (FieldError, BadData) as error:
            raise BadData(f"{path}, record {row}: {error}") from None
        if (other := places.setdefault(one.id, row)) != row:
            raise BadData(f"{path}: records {other} and {row} have the same id {one.id!r}")
        inputs.append(one)
    return inputs


def split_input(task: Task, text: str) -> dict[str, FieldValue]:
    """The values of the fields that became a text: the inverse of `Task.input_text`. Raises BadData."""
    first, separator, last = text.rpartition(f"{task.separator}Answer Choices:\n" if task.choices else task.separator)
    if not separator:
        raise BadData(f"not an input of {task.name}: {text[:80]!r}")
    if task.choices is None:
        return dict(zip(task.fields, (first, last), strict=True))
    return dict(zip(task.fields, (first, [line[len("(a) ") :] for line in last.split("\n")]), strict=True))


def _values(task: Task, record: Mapping[str, Any]) -> Mapping[str, FieldValue]:
    if isinstance(record.get("input"), str) and not record.keys() & set(task.fields):
        return split_input(task, record["input"])
    names = {name: name if name in record else name.capitalize() for name in task.fields}
    return {name: record[given] for name, given in names.items() if given in record}


def _id_of(record: Mapping[str, Any], row: int) -> str:
    return str(next((record[name] for name in ("id", "uid", "ID") if name in record), row))


def _records(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        is_list = text.lstrip().startswith("[")
        # not splitlines, which also ends lines at characters that JSON leaves as they are
        records = json.loads(text) if is_list else [json.loads(line) for line in text.split("\n") if line.strip()]
    except OSError as error:
        raise BadData(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise BadData(f"{path}: neither JSON lines nor a JSON list ({error})") from None
    if not all(isinstance(record, dict) for record in records):
        raise BadData(f"{path}: not all records are objects")
    return list(records)
