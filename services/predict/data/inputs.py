"""The inputs of a task: a split of a published data set, or the user's own file."""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.predict.data.published import Split, read_rows
from services.predict.data.rows import BadData
from services.predict.data.task_file import parse_json
from services.predict.model.task_description import nearest
from services.predict.tasks import TASKS, FieldError, FieldValue, Task

IDS = ("id", "uid", "ID")
_NOT_JSON = "neither JSON lines nor a JSON list"


@dataclass(frozen=True)
class Input:
    """An input: `row` counts from 0; `record` is its record in the file, at `place` (file and line)."""

    id: str
    row: int
    values: Mapping[str, FieldValue]
    record: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""


def published_inputs(task: Task, folder: Path, split: Split) -> list[Input]:
    """The rows of a published split, called `train-0` and so on. Raises BadData."""
    rows = read_rows(task, folder, split)
    return [Input(f"{split}-{number}", number, split_input(task, row.input)) for number, row in enumerate(rows)]


def read_inputs(task: Task, path: Path) -> list[Input]:
    """Read the records of a file: JSON lines or one JSON list, compressed if the file's name ends in .gz.

    A record has the task's fields or, for a published task, fields that begin with a capital, or `input`, the text
    that they become. Its id is one of IDS, or else its row, with a digest of its text for a user's own task. Other
    keys are ignored. Raises BadData, also for a repeated id.
    """
    inputs: list[Input] = []
    places: dict[str, str] = {}
    for row, (place, record) in enumerate(read_objects(path)):
        try:
            values = _values(task, record)
            text = task.input_text(values).encode()
        except UnicodeEncodeError as error:
            raise BadData(f"{place}: half of a surrogate pair, which is no character ({error.reason})") from None
        except FieldError as error:
            raise BadData(f"{place}: {error}{_hint(error, record)}") from None
        except BadData as error:
            raise BadData(f"{place}: {error}") from None
        one = Input(_id_of(task, record, row, text), row, values, record, place)
        if (other := places.setdefault(one.id, place)) != place:
            raise BadData(f"{other} and {place} have the same id {one.id!r}")
        inputs.append(one)
    return inputs


def split_input(task: Task, text: str) -> dict[str, FieldValue]:
    """Split a text into the values of its fields: the inverse of `Task.input_text`. Raises BadData."""
    first, separator, last = text.rpartition(f"{task.separator}Answer Choices:\n" if task.choices else task.separator)
    if not separator:
        raise BadData(f"not an input of {task.name}: {text[:80]!r}")
    if task.choices is None:
        return dict(zip(task.fields, (first, last), strict=True))
    return dict(zip(task.fields, (first, [line[len("(a) ") :] for line in last.split("\n")]), strict=True))


def read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read the JSON objects of a file, each with its place. Raises BadData."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except OSError as error:
        raise BadData(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError) as error:
        raise BadData(f"{path}: not text in UTF-8 ({error})") from None
    if text.lstrip().startswith("["):
        for number, value in enumerate(parse_json(text, path, complaint=_NOT_JSON), start=1):
            yield _object(value, f"{path}, record {number}")
        return
    # not splitlines, which also splits at characters that JSON does not escape
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _object(parse_json(line, path, number, _NOT_JSON), f"{path}:{number}")


def _object(value: Any, place: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(value, dict):
        raise BadData(f"{place}: not an object")
    return place, value


def _values(task: Task, record: Mapping[str, Any]) -> Mapping[str, FieldValue]:
    if task.name not in TASKS:
        return {name: record[name] for name in task.fields if name in record}
    if isinstance(record.get("input"), str) and not record.keys() & set(task.fields):
        return split_input(task, record["input"])
    names = {name: name if name in record else name.capitalize() for name in task.fields}
    return {name: record[given] for name, given in names.items() if given in record}


def _hint(error: FieldError, record: Mapping[str, Any]) -> str:
    """Name the key that was probably meant as a missing field."""
    return f"; {nearest(error.field, record)}" if record and error.field not in record else ""


def _id_of(task: Task, record: Mapping[str, Any], row: int, text: bytes) -> str:
    own = "" if task.name in TASKS else f"-{hashlib.sha256(text).hexdigest()[:8]}"
    return str(next((record[name] for name in IDS if name in record), f"{row}{own}"))
