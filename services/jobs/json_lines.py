"""Records as JSON lines, of which each is checked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from services.core.refusals import first_complaint

RecordT = TypeVar("RecordT", bound=BaseModel)


def read_json_lines(path: Path, kind: type[RecordT], bad: Callable[[str], Exception]) -> Iterator[tuple[int, RecordT]]:
    """Yield the number and the record of each line that is not blank.

    Only a line feed ends a line: JSON may hold the other signs that Python takes for ends of lines. Raises what `bad`
    makes of a sentence that names the file, the line and the field, and OSError.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                record = kind.model_validate_json(line)
            except ValidationError as invalid:
                raise bad(f"{path}:{number}: {first_complaint(invalid, 'the line')}") from None
            yield number, record
