"""Teachers' outputs in a file that a killed extraction leaves whole, and the next one continues.

    rationales.jsonl                  an output a line, in the order in which they came
    rationales.jsonl.arguments.json   what asked for them: a file that was begun goes on only with the same

A line counts once it is on disk. What a crash leaves at the end of the file that is no whole line is cut off.
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from services.core.durable_files import make_folder_durably, write_durably
from services.predict.data.rows import TeacherOutput
from services.predict.data.teacher_outputs import parse_output

ARGUMENTS_SUFFIX = ".arguments.json"


class OutputError(Exception):
    """A file that can't be written or continued; the message is fit to be shown."""


class Record(BaseModel):
    """An output and what it was asked with.

    `row` is the input's place in its data set, `prompt` and `arguments` are digests, `model` is what the endpoint calls
    itself. `rationale` and `label` are what the rules read in `output`, also where there is a `problem`; tokens are
    None where the endpoint counts none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    row: int
    prompt: str
    arguments: str
    model: str | None
    output: str
    finish_reason: str | None
    rationale: str
    label: str
    problem: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class RationaleFile:
    """Records in a file that only this process writes to; made by `opened`."""

    def __init__(self, descriptor: int, records: Sequence[Record]) -> None:
        self._descriptor = descriptor
        self.found = records
        self._waiting: list[bytes] = []
        self._num_given = 0
        self._num_written = 0
        self._failure: OSError | None = None

    @classmethod
    @contextmanager
    def opened(cls, path: Path, arguments: Mapping[str, Any]) -> Iterator[Self]:
        """The file with the records that it holds, for one whose arguments are these; made where there is none.

        Raises OutputError where other arguments began it, another process writes to it, or it holds something else.
        """
        try:
            make_folder_durably(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OutputError(f"{path}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(f"another extraction is writing to {path}") from None
            begun = _begun_with(path)
            if begun is not None:
                _agree(path, begun, json.loads(json.dumps(arguments)))
            content = path.read_bytes()
            records, num_bytes = _parsed(path, content, digest_of(arguments))
            if begun is None:
                if num_bytes < len(content):
                    raise OutputError(f"{path} exists but is not the output of an extraction")
                write_durably(_beside(path), [json.dumps(arguments, indent=1, ensure_ascii=False).encode() + b"\n"])
            os.ftruncate(descriptor, num_bytes)
            os.fsync(descriptor)
            yield cls(descriptor, records)
        finally:
            os.close(descriptor)

    async def append(self, record: Record) -> None:
        """Write a record; it is on disk when this returns. Raises OutputError.

        Those that come at the same time are written together, with one wait for the disk.
        """
        if self._failure is None:
            self._waiting.append(record.model_dump_json().encode() + b"\n")
            self._num_given += 1
            number = self._num_given
            await asyncio.sleep(0)  # others may join
            if number > self._num_written:
                self._write()
        if self._failure is not None:
            raise OutputError(f"the output can't be written: {self._failure.strerror}")

    def _write(self) -> None:
        """Write all lines that wait. Asking teachers leaves the time; nothing may come between a line and its rest."""
        content = b"".join(self._waiting)
        self._waiting.clear()
        self._num_written = self._num_given
        try:
            while content:
                content = content[os.write(self._descriptor, content) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # a part of a line may be there, and nothing must follow it
            self._failure = error


def read_records(path: Path) -> list[Record]:
    """Read the records of a file, in its order, except one that a crash has torn. Raises OutputError."""
    try:
        return _parsed(path, path.read_bytes(), None)[0]
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None


def read_teacher_outputs(path: Path, task: str, num_rows: int) -> list[TeacherOutput | None]:
    """Read the output for each row of a data set; None where nothing was extracted. Raises OutputError.

    The outputs are parsed anew, so that they say what the rules of today say.
    """
    outputs: list[TeacherOutput | None] = [None] * num_rows
    for record in read_records(path):
        if record.row >= num_rows:
            raise OutputError(f"{path}: there is no row {record.row} of {num_rows}")
        outputs[record.row] = parse_output(task, record.output, "gpt")
    return outputs


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ARGUMENTS_SUFFIX)


def _begun_with(path: Path) -> dict[str, Any] | None:
    """The arguments beside a file; None where there are none. Raises OutputError."""
    try:
        begun = json.loads(_beside(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OutputError(f"{_beside(path)}: not JSON ({error})") from None
    if not isinstance(begun, dict):
        raise OutputError(f"{_beside(path)}: not the arguments of an extraction")
    return begun


def _agree(path: Path, begun: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises OutputError, with the differences, where other arguments began a file."""
    differences = [
        f"{name} was {json.dumps(begun.get(name))}, and is {json.dumps(now.get(name))}"
        for name in sorted(begun.keys() | now)
        if begun.get(name) != now.get(name)
    ]
    if differences:
        raise OutputError(f"{path} belongs to an extraction with other arguments: {'; '.join(differences)}")


def _parsed(path: Path, content: bytes, arguments: str | None) -> tuple[list[Record], int]:
    """Parse a file's content into its records, and count the bytes that hold them.

    A torn record behind the last one is left out. Raises OutputError where something else is between them,
    for an id that comes twice, and for records of other arguments than these.
    """
    records: list[Record] = []
    seen: set[str] = set()
    num_bytes, torn_at = 0, 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        record = _record(line)
        if record is None:
            torn_at = torn_at or number
            continue
        if torn_at:
            raise OutputError(f"{path}: line {torn_at} is not an output of an extraction")
        if arguments is not None and record.arguments != arguments:
            raise OutputError(f"{path}: line {number} was requested with other arguments")
        if record.id in seen:
            raise OutputError(f"{path}: {record.id} occurs twice")
        seen.add(record.id)
        records.append(record)
        num_bytes += len(line)
    return records, num_bytes


def _record(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
