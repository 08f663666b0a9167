"""Files of benchmarks: what is missing or has another form is named, with the file."""

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.jobs.published_data import MissingData, Source
from services.score.evaluation.records import Record, file_of

# CREPE's fields hold several captions.
MAX_FIELD_CHARACTERS = 1_000_000


@contextmanager
def described(path: Path, name: str, what: str) -> Iterator[None]:
    """Raises MissingData, with the file's name, for a file of another form."""
    try:
        yield
    except (AttributeError, EOFError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
        told = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise MissingData(f"{path} holds no {what} of {name}: {told}") from error


def read_json(path: Path, source: Source) -> Any:
    """Read a JSON file. Raises MissingData if it is missing or not JSON."""
    with described(source.existing(path), source.name, "records"):
        return json.loads(path.read_text(encoding="utf-8-sig"))


def nonblank(caption: Any) -> str:
    """Return a caption. Raises ValueError for none."""
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError(f"a caption is {caption!r}")
    return caption


def read_rows(path: Path, source: Source, delimiter: str = ",") -> Iterator[dict[str, str]]:
    """Yield the rows of a table by the names in its first line. Raises MissingData."""
    with described(source.existing(path), source.name, "rows"), path.open(newline="", encoding="utf-8-sig") as file:
        csv.field_size_limit(MAX_FIELD_CHARACTERS)
        yield from csv.DictReader(file, delimiter=delimiter)


def with_images(records: Iterable[Record], source: Source, limit: int | None = None) -> tuple[tuple[Record, ...], int]:
    """Keep records whose images are all here, at most `limit`, and count those left out before them.

    For benchmarks that publish only addresses of images, of which some are gone. Raises MissingData if no record has
    its images, naming the first file.
    """
    kept: list[Record] = []
    missing: list[Path] = []
    num_left_out = 0
    for record in records:
        if len(kept) == limit:
            break
        absent = [file_of(image) for image in record.images if not file_of(image).exists()]
        if absent:
            num_left_out += 1
            missing = missing or absent
        else:
            kept.append(record)
    if not kept and missing:
        source.existing(missing[0])
    return tuple(kept), num_left_out
