"""Tasks of one's own, and of any benchmark that has no loader here: one record a line, as JSON.

    {"id": "0", "images": ["a.jpg"], "captions": ["a dog on a mat", "a mat on a dog"]}
    {"id": "1", "images": ["a.jpg", "b.jpg"], "captions": ["a dog"], "task": "animals"}
    {"id": "2", "images": ["a.jpg", "b.jpg"], "captions": ["a dog", "a cat"], "task": "pairs", "category": "animals"}

What belongs together has the same place; the first of several captions, or images, is the true one. A line without a
`task` is of the one that is called like the file; with a `category` in each of its lines a task's score is the mean
over categories.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.jobs.published_data import MissingData, Source
from services.score.evaluation.records import Record, Task

Name = Annotated[str, Field(min_length=1)]


class Line(BaseModel):
    """A record as it stands in a file; its images are files below one folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: Name
    images: list[Name]
    captions: list[str]
    task: Name | None = None
    category: Name | None = None


def load_records(path: Path, images: Path, *, benchmark: str | None = None, limit: int | None = None) -> list[Task]:
    """The tasks of a file, in the order of their first lines; `benchmark` is called like the file unless it is told.

    `limit` takes the first records of each task. Raises MissingData, naming line and field.
    """
    source = Source(path.name, "whoever wrote it")
    lines: dict[str, list[tuple[Line, Record]]] = {}
    for number, content in enumerate(_read(source.existing(path)).split("\n"), start=1):
        if content.strip():
            try:
                line = Line.model_validate_json(content)
                record = Record(
                    line.id, tuple(images / name for name in line.images), tuple(line.captions), line.category or ""
                )
            except ValidationError as error:
                raise MissingData(f"{path}, line {number}: {_told(error)}") from error
            except ValueError as error:
                raise MissingData(f"{path}, line {number}: {error}") from error
            lines.setdefault(line.task or path.stem, []).append((line, record))
    if not lines:
        raise MissingData(f"{path} holds no record")
    return [_task(path, name, benchmark or path.stem, some, source).first(limit) for name, some in lines.items()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise MissingData(f"{path} can't be read: {error}") from error


def _task(path: Path, name: str, benchmark: str, lines: list[tuple[Line, Record]], source: Source) -> Task:
    has_category = {line.category is not None for line, _ in lines}
    if len(has_category) > 1:
        raise MissingData(f"{path}: some records of {name} have a category and some have none")
    try:
        return Task(name, benchmark, tuple(record for _, record in lines), source, by_category=has_category == {True})
    except ValueError as error:
        raise MissingData(f"{path}: {error}") from error


def _told(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]
