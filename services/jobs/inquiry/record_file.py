"""Records in a file that stays valid when a job is killed, so that the next one can continue it.

A line counts once it is on disk. An incomplete line that a crash leaves at the end of the file is cut off.
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ValidationError

from services.core.durable_files import make_folder_durably


class OutputError(Exception):
    """A file that can't be written or continued; the message can be shown to users."""


class Identified(BaseModel):
    """A record with an id of its own in its file."""

    id: str


RecordT = TypeVar("RecordT", bound=Identified)


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@contextmanager
def locked_file(path: Path, what: str) -> Iterator[int]:
    """Open a file to append to, or create it, with its folder, and hold it against other processes.

    `what` is the job that writes it, for messages. Raises OutputError for a file that can't be opened or is held.
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
            raise OutputError(f"another {what} is writing to {path}") from None
        yield descriptor
    finally:
        os.close(descriptor)


def append_durably(descriptor: int, content: bytes) -> None:
    """Write all of the content; it is on disk when this returns. Raises OSError."""
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


class RecordFile(Generic[RecordT]):
    """Records in a file that only this process writes to; created by `opened`.

    `found` holds those that were there when it was opened.
    """

    def __init__(self, descriptor: int, found: Sequence[RecordT], before_first: Callable[[], None] | None) -> None:
        self._descriptor = descriptor
        self.found = found
        self._waiting: list[bytes] = []
        self._num_given = 0
        self._num_written = 0
        self._failure: OSError | None = None
        self._before_first = before_first

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: Path,
        kind: type[RecordT],
        what: str,
        check: Callable[[Sequence[RecordT], int], Callable[[], None] | None],
    ) -> Iterator[Self]:
        """Open a file with its records, or create it if there is none; `what` is the job that writes it, for messages.

        `check` gets the records and the number of bytes after them, which will be cut off. It may raise OutputError,
        and return what is to be done before the first record is written. Raises OutputError if another process writes
        to the file, or it holds anything other than records.
        """
        with locked_file(path, what) as descriptor:
            content = path.read_bytes()
            records, num_bytes = _parsed(path, content, kind, what)
            before_first = check(records, len(content) - num_bytes)
            os.ftruncate(descriptor, num_bytes)
            os.fsync(descriptor)
            yield cls(descriptor, records, before_first)

    async def append(self, record: RecordT) -> None:
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
            if self._before_first is not None:
                self._before_first()
                self._before_first = None
            append_durably(self._descriptor, content)
        except OSError as error:
            # part of a line may have been written, and nothing may follow it
            self._failure = error


def read_records(path: Path, kind: type[RecordT], what: str) -> list[RecordT]:
    """Read the records of a file in order, except one left incomplete by a crash. Raises OutputError."""
    try:
        return _parsed(path, path.read_bytes(), kind, what)[0]
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None


def _parsed(path: Path, content: bytes, kind: type[RecordT], what: str) -> tuple[list[RecordT], int]:
    """Parse a file's content into its records, and count the bytes that hold them.

    An incomplete record at the end is left out. Raises OutputError for anything else that is not a record, and for a
    repeated id.
    """
    records: list[RecordT] = []
    seen: set[str] = set()
    num_bytes, torn_at = 0, 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        record = _record(line, kind)
        if record is None:
            torn_at = torn_at or number
            continue
        if torn_at:
            raise OutputError(f"{path}: line {torn_at} is not an output of {_article(what)} {what}")
        if record.id in seen:
            raise OutputError(f"{path}: {record.id} occurs twice")
        seen.add(record.id)
        records.append(record)
        num_bytes += len(line)
    return records, num_bytes


def _record(line: bytes, kind: type[RecordT]) -> RecordT | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
