"""Records in a form of our own, and pairs of `fovea curate`, for benchmarks that have no loader."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from services.core.text_files import BadFile, read_records
from services.jobs.published_data import Source
from services.jobs.sugarcrepe import load_pairs
from services.score.evaluation.aggregates import SPELLINGS
from services.score.evaluation.records import Record, Task

Name = Annotated[str, Field(min_length=1)]


class Line(BaseModel):
    """A record as a line of a file; its images are files below one folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: Name
    images: list[Name]
    captions: list[str]
    task: Name | None = None
    category: Name | None = None


def load_records(path: Path, images: Path, *, benchmark: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the tasks of a file, in the order of their first lines; `benchmark` is by default the file's name.

    `limit` takes the first records of each task. Names in SPELLINGS are replaced. Raises BadFile, and
    BadFile, naming line and field.
    """
    source = Source(path.name, "its author")
    lines: dict[str, list[tuple[Line, Record]]] = {}
    for place, line in read_records(source.existing(path), Line):
        try:
            record = Record(
                line.id, tuple(images / name for name in line.images), tuple(line.captions), line.category or ""
            )
        except ValueError as error:
            raise BadFile(f"{place}: {error}") from error
        task = line.task or path.stem
        lines.setdefault(SPELLINGS.get(task, task), []).append((line, record))
    if not lines:
        raise BadFile(f"{path} has no records")
    benchmark = benchmark or path.stem
    benchmark = SPELLINGS.get(benchmark, benchmark)
    return [_task(path, name, benchmark, some, source).first(limit) for name, some in lines.items()]


def _task(path: Path, name: str, benchmark: str, lines: list[tuple[Line, Record]], source: Source) -> Task:
    has_category = {line.category is not None for line, _ in lines}
    if len(has_category) > 1:
        raise BadFile(f"{path}: only some records of {name} have a category")
    try:
        return Task(name, benchmark, tuple(record for _, record in lines), source, by_category=has_category == {True})
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from error


def load_pairs_tasks(path: Path, images: Path, *, benchmark: str | None = None, limit: int | None = None) -> list[Task]:
    """Load pairs of `fovea curate`, JSON lines or a folder in SugarCrepe's form, as a task for each type.

    `benchmark` is by default the file's name, `limit` takes the first pairs of each type. Raises BadFile
    and BadFile.
    """
    source = Source(path.name, "its author")
    pairs = load_pairs(source.existing(path))
    by_kind: dict[str, list[Record]] = {}
    for pair in pairs:
        record = Record(pair.id, (images / pair.filename,), (pair.caption, pair.negative_caption))
        by_kind.setdefault(pair.kind, []).append(record)
    if not by_kind:
        raise BadFile(f"{path} holds no pairs")
    return [Task(kind, benchmark or path.stem, tuple(some[:limit]), source) for kind, some in by_kind.items()]
