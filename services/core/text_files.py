"""Text files that people give: UTF-8, with or without a byte order mark, plain or compressed by gzip.

Every error is a BadFile, whose message names the file, the line and the field, and what to do about it.
"""

import codecs
import csv
import gzip
import io
import json
import math
import re
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from services.core.refusals import Refused, complaint_about, shown_names

RecordT = TypeVar("RecordT", bound=BaseModel)

GZIP = b"\x1f\x8b"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class BadFile(Refused):
    """A file that can't be used; the message can be shown to users."""


@dataclass(frozen=True)
class Place:
    """Place of a record in a file: the number of its line or, in a list, its own, from 1."""

    path: Path
    number: int
    between: str = ":"

    def __str__(self) -> str:
        return f"{self.path}{self.between}{self.number}"


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines with their ends.

    Only a line feed ends a line: JSON may hold the other signs that Python takes for ends of lines.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(file, str(path))
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}") from None


def _lines(file: io.BufferedReader, source: str) -> Iterator[str]:
    lines = gzip.GzipFile(fileobj=file) if file.peek(len(GZIP)).startswith(GZIP) else file
    try:
        for number, line in enumerate(lines, 1):
            yield _decoded(line, source, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadFile(f"{source}: the gzip file is cut off or damaged ({error}); copy or compress it again") from None


def read_text(path: Path) -> str:
    """Read a whole file. An empty one is refused."""
    text = "".join(text_lines(path))
    if not text.strip():
        raise BadFile(f"{path} is empty")
    return text


def read_json(path: Path, *, may_have_nan: bool = False) -> Any:
    """Read a file that is one JSON value, with NaN and infinities as Python writes them where it may have these."""
    return _parsed(read_text(path), str(path), number=float if may_have_nan else None)


def json_of(content: bytes, source: str) -> Any:
    """Parse a file's content that is one JSON value; `source` is the file's name for messages."""
    return _parsed("".join(_lines(io.BufferedReader(io.BytesIO(content)), source)), source)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, which may be empty."""
    try:
        return tomllib.loads("".join(text_lines(path)).replace("\r\n", "\n"), parse_float=_finite)
    except ValueError as error:
        raise error if isinstance(error, BadFile) else BadFile(f"{path}: {error}") from None
    except RecursionError:
        raise BadFile(f"{path}: nested too deeply") from None


def json_objects(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, or of one JSON list, each with its place in the file."""
    for place, value in _json_values(path):
        if not isinstance(value, dict):
            raise BadFile(f"{place}: a JSON object is needed, not {_told(value)}")
        yield place, value


def read_records(path: Path, kind: type[RecordT]) -> Iterator[tuple[Place, RecordT]]:
    """Yield the objects of a file as `json_objects` does, each checked."""
    for place, value in _json_values(path):
        yield place, checked(place, value, kind)


def checked(place: Place, value: Any, kind: type[RecordT]) -> RecordT:
    """Return a value of a file as a record. Raises BadFile, naming the place and the field."""
    try:
        return kind.model_validate(value)
    except ValidationError as invalid:
        raise BadFile(f"{place}: {complaint_about(invalid, value, 'the line')}") from None


def read_rows(path: Path, delimiter: str = ",", *, is_quoted: bool = True) -> Iterator[tuple[Place, list[str]]]:
    """Yield the rows of a table that are not blank, each with its place. A field may have any length."""
    csv.field_size_limit(sys.maxsize)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    rows = csv.reader(text_lines(path), delimiter=delimiter, quoting=quoting)
    try:
        for row in rows:
            if row:
                yield Place(path, rows.line_num), row
    except csv.Error as error:
        raise BadFile(f"{path}:{rows.line_num}: {error}") from None


def read_table(path: Path, delimiter: str = ",", columns: Iterable[str] = ()) -> Iterator[tuple[Place, dict[str, str]]]:
    """Yield the rows of a table by the names in its first line, among which `columns` must be."""
    rows = read_rows(path, delimiter)
    _, names = next(rows, (None, []))
    if missing := [name for name in columns if name not in names]:
        raise BadFile(f"{path}: the first line lacks the columns {shown_names(list(map(repr, missing)))}")
    if repeated := _repeated(names):
        raise BadFile(f"{path}:1: the column {repeated!r} occurs twice")
    for place, row in rows:
        if len(row) != len(names):
            raise BadFile(f"{place}: {len(row)} fields where the first line names {len(names)}")
        yield place, dict(zip(names, row, strict=True))


def id_of(record: Mapping[str, Any], name: str, place: Place | str) -> str:
    """Return the id that a field holds, a text or a whole number, as a text."""
    value = record.get(name)
    return str(value) if type(value) is int else text_of(record, name, place)


def text_of(record: Mapping[str, Any], name: str, place: Place | str, *, is_blank_refused: bool = False) -> str:
    """Return the text of a field. Null is no text."""
    if name not in record:
        raise BadFile(f"{place}: {name} is missing; there is {shown_names(list(record)) or 'nothing'}")
    if not isinstance(value := record[name], str):
        raise BadFile(f"{place}: {name}: a text is needed, not {_told(value)}")
    if is_blank_refused and not value.strip():
        raise BadFile(f"{place}: {name} is blank")
    return value


def _decoded(line: bytes, source: str, number: int) -> str:
    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    if b"\0" in line or (number == 1 and line.startswith(UTF_16)):
        raise BadFile(
            f"{source}:{number}: not text in UTF-8 but in UTF-16, or no text at all; save it as UTF-8, which for UTF-16"
            " `iconv -f UTF-16 -t UTF-8` does"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadFile(
            f"{source}:{number}: not text in UTF-8: byte {line[error.start]:#x} at column {error.start + 1}; save it as"
            " UTF-8, which for texts of Windows `iconv -f CP1252 -t UTF-8` does"
        ) from None


def _json_values(path: Path) -> Iterator[tuple[Place, Any]]:
    """Yield the value of each line, those of one list, or one object that takes several lines."""
    lines = enumerate(text_lines(path), 1)
    start, first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if first.lstrip().startswith("[") or (first and _goes_on(first)):
        whole = _parsed("\n" * (start - 1) + first + "".join(line for _, line in lines), str(path))
        many = whole if isinstance(whole, list) else [whole]
        yield from ((Place(path, number, ", record "), value) for number, value in enumerate(many, 1))
        return
    for number, line in chain([(start, first)], lines):
        if line.strip():
            yield Place(path, number), _parsed(line.rstrip("\r\n"), str(path), number)


def _goes_on(line: str) -> bool:
    """Whether a line is the beginning of a value that the next lines end."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(line.rstrip())
    except (RecursionError, ValueError):
        return False
    return False


def _parsed(text: str, source: str, line: int | None = None, number: Callable[[str], float] | None = None) -> Any:
    """Parse a whole file, or one line of it."""
    place = f"{source}:{line}" if line else source
    try:
        number = number or _finite
        value = json.loads(text.rstrip(), object_pairs_hook=_unique, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        said = f"not JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        told = f"{said}; it seems to be cut off" if is_cut else said
        raise BadFile(f"{source}:{line or error.lineno}: {told}") from None
    except RecursionError:
        raise BadFile(f"{place}: nested too deeply") from None
    except ValueError as error:
        told = "a number has too many digits" if "integer string conversion" in str(error) else str(error)
        raise BadFile(f"{place}: {told}") from None
    if _SURROGATE.search(text) and (half := next(_halves(value, ""), None)) is not None:
        raise BadFile(f"{place}: {half or 'the text'}: half of a surrogate pair is no character; write both halves")
    return value


def _halves(value: Any, field: str) -> Iterator[str]:
    """Yield the fields with a text that can't be written as UTF-8."""
    match value:
        case str():
            if any("\ud800" <= sign <= "\udfff" for sign in value):
                yield field
        case dict() | list():
            named = value.items() if isinstance(value, dict) else enumerate(value)
            for name, one in named:
                below = f"{field}.{ascii(name)[1:-1] if isinstance(name, str) else name}".lstrip(".")
                yield from chain(_halves(name, below), _halves(one, below))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if repeated := _repeated([name for name, _ in pairs]):
        raise ValueError(f"the key {repeated!r} occurs twice")
    return dict(pairs)


def _repeated(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number; leave the field out")
    return number


def _told(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, ensure_ascii=False)[:40]
