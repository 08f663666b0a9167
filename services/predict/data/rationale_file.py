"""Teachers' outputs in a file that stays valid when an extraction is killed, so that the next one can continue it.

    rationales.jsonl                  one output per line, in order of arrival
    rationales.jsonl.arguments.json   the extraction's arguments; only one with the same arguments may continue the file

A line counts once it is on disk. An incomplete line that a crash leaves at the end of the file is cut off.
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
from services.jobs.resumption import differences, option_names
from services.predict.data.rows import TeacherOutput
from services.predict.data.teacher_outputs import parse_output

ARGUMENTS_SUFFIX = ".arguments.json"


class OutputError(Exception):
    """A file that can't be written or continued; the message can be shown to users."""


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
    """Records in a file that only this process writes to; created by `opened`."""

    def __init__(self, descriptor: int, records: Sequence[Record], unwritten: tuple[Path, bytes] | None) -> None:
        """`unwritten` is the file of arguments to be written before the first record."""
        self._descriptor = descriptor
        self.found = records
        self._waiting: list[bytes] = []
        self._num_given = 0
        self._num_written = 0
        self._failure: OSError | None = None
        self._unwritten = unwritten

    @classmethod
    @contextmanager
    def opened(cls, path: Path, arguments: Mapping[str, Any]) -> Iterator[Self]:
        """Open a file with its records, or create it if there is none.

        Its arguments are written with its first record, so that an extraction without any output binds nobody. Raises
        OutputError if it was begun with other arguments, another process writes to it, or it holds anything
        other than records.
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
            content = path.read_bytes()
            if begun is not None and _parsed(path, content, None)[0]:
                _agree(path, begun, json.loads(json.dumps(arguments)))
            records, num_bytes = _parsed(path, content, digest_of(arguments))
            if begun is None and num_bytes < len(content):
                raise OutputError(f"{path} exists but is not the output of an extraction")
            os.ftruncate(descriptor, num_bytes)
            os.fsync(descriptor)
            told = json.dumps(arguments, indent=1, ensure_ascii=False).encode() + b"\n"
            yield cls(descriptor, records, None if records and begun is not None else (_beside(path), told))
        finally:
            os.close(descriptor)

    async def append(self, record: Record) -> None:
        """Write a record; it is on disk when this returns. Raises OutputError.

        Records that arrive at the same time are written together, with one wait for the disk.
        """
        if self._failure is None:
            self._waiting.append(record.model_dump_json().encode() + b"\n")
            self._num_given += 1
            number = self._num_given
            await asyncio.sleep(0)  # other records may join this write
            if number > self._num_written:
                self._write()
        if self._failure is not None:
            raise OutputError(f"the output can't be written: {self._failure.strerror}")

    def _write(self) -> None:
        """Write all waiting lines. Blocking costs little beside the teacher's latency, and it keeps each line whole."""
        content = b"".join(self._waiting)
        self._waiting.clear()
        self._num_written = self._num_given
        try:
            if self._unwritten is not None:
                beside, arguments = self._unwritten
                write_durably(beside, [arguments])
                self._unwritten = None
            while content:
                content = content[os.write(self._descriptor, content) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # part of a line may have been written, and nothing may follow it
            self._failure = error


def read_records(path: Path) -> list[Record]:
    """Read the records of a file in order, except one left incomplete by a crash. Raises OutputError."""
    try:
        return _parsed(path, path.read_bytes(), None)[0]
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None


def read_teacher_outputs(path: Path, task: str, num_rows: int) -> list[TeacherOutput | None]:
    """Read the output for each row of a data set; None if nothing was extracted. Raises OutputError.

    The outputs are parsed again, so that the current rules apply.
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
    """The arguments that a file was begun with; None if there are none. Raises OutputError."""
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
    """Raises OutputError, with the differences, if a file was begun with other arguments."""
    changed = differences(begun, now, option_names(*now.keys() - {"task"}))
    if changed:
        raise OutputError(
            f"{path} belongs to an extraction with other arguments: {changed}. Use another --output, or"
            f" remove it and {_beside(path)} to begin again"
        )


def _parsed(path: Path, content: bytes, arguments: str | None) -> tuple[list[Record], int]:
    """Parse a file's content into its records, and count the bytes that hold them.

    An incomplete record at the end is left out. Raises OutputError for anything else that is not a record, for a
    repeated id, and for records with arguments other than these.
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
