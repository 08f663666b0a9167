"""Many questions to one endpoint: some at a time, with their tokens and cost, and an end that loses no answer.

Records of answers are in a file that stays valid when a job is killed, so that the next one can continue it. A line
counts once it is on disk. An incomplete line that a crash leaves at the end of the file is cut off.
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ValidationError
from rich.console import Console

from services.core.durable_files import make_folder_durably
from services.core.openai_client import EndpointClient, EndpointError
from services.core.printable import json_line
from services.core.refusals import Refused, first_complaint
from services.core.text_files import text_lines
from services.jobs.interruption import SIGNALS, Interrupted

# After this many consecutive inputs without an answer, the fault is probably not in the inputs.
MAX_FAILURES_IN_A_ROW = 8

T = TypeVar("T")


class OutputError(Refused):
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
            self._waiting.append(json_line(record.model_dump_json()))
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
            while content:
                content = content[os.write(self._descriptor, content) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # part of a line may have been written, and nothing may follow it
            self._failure = error


def read_records(path: Path, kind: type[RecordT], what: str) -> list[RecordT]:
    """Read the records of a file in order, except one left incomplete by a crash. Raises OutputError and BadFile."""
    return _parsed(path, "".join(text_lines(path)).encode(), kind, what)[0]


def _parsed(path: Path, content: bytes, kind: type[RecordT], what: str) -> tuple[list[RecordT], int]:
    """Parse a file's content into its records, and count the bytes that hold them.

    What a crash leaves at the end is left out: an incomplete line, and zeros where the size reached the disk before the
    content. Raises OutputError for anything else that is not a record, and for a repeated id.
    """
    records: list[RecordT] = []
    seen: set[str] = set()
    whole, _, zeros = content.partition(b"\0")
    num_bytes = (content if zeros.strip(b"\0\n") else whole).rfind(b"\n") + 1
    for number, line in enumerate(content[:num_bytes].splitlines(), start=1):
        try:
            record = kind.model_validate_json(line)
        except ValidationError as invalid:
            told = first_complaint(invalid, "the line")
            raise OutputError(f"{path}: line {number} is not an output of {_article(what)} {what}: {told}") from None
        if record.id in seen:
            raise OutputError(f"{path}: {record.id} occurs twice")
        seen.add(record.id)
        records.append(record)
    return records, num_bytes


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


@dataclass
class Tokens:
    """Totals of the tokens of answers; prices are for a million tokens, in any currency."""

    input_price: float | None = None
    output_price: float | None = None
    num_uncounted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, prompt_tokens: int | None, completion_tokens: int | None) -> None:
        """Count an answer's tokens, None where the endpoint counts none."""
        self.num_uncounted += prompt_tokens is None or completion_tokens is None
        self.prompt_tokens += prompt_tokens or 0
        self.completion_tokens += completion_tokens or 0

    @property
    def has_any(self) -> bool:
        """Whether any answer was counted."""
        return bool(self.prompt_tokens or self.completion_tokens or self.num_uncounted)

    @property
    def cost(self) -> float | None:
        """The price of all tokens; None without prices."""
        if self.input_price is None and self.output_price is None:
            return None
        return (self.prompt_tokens * (self.input_price or 0) + self.completion_tokens * (self.output_price or 0)) / 1e6

    def told(self) -> str:
        """Text with the numbers of tokens, and their cost."""
        parts = [f"{_short(self.prompt_tokens)} tokens in, {_short(self.completion_tokens)} out"]
        if self.num_uncounted:
            parts.append(f"{self.num_uncounted} not counted")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.4f}")
        return " · ".join(parts)


class Inquiry(Generic[T]):
    """Asks about inputs, a limited number at a time.

    The next input is asked about only when `ask` has returned for the last one, so a crash loses at most what is on its
    way. An inquiry that is ended waits for the answers on their way.
    """

    def __init__(
        self,
        client: EndpointClient,
        ask: Callable[[T], Awaitable[None]],
        on_failure: Callable[[T, EndpointError], None],
        ends: tuple[type[Exception], ...] = (OutputError,),
    ) -> None:
        """`ask` raises EndpointError for an input without an answer; it and `on_failure` raise any of `ends` to end."""
        self.client = client
        self._ask = ask
        self._on_failure = on_failure
        self._ends = ends
        self._ended_by: Exception | None = None
        self._num_failures_in_a_row = 0

    def end(self, reason: Exception) -> None:
        """Send nothing more; `run` raises the first reason once all pending answers have arrived."""
        if self._ended_by is None:
            self._ended_by = reason
            self.client.stop()

    async def run(self, inputs: Iterable[T], concurrency: int) -> None:
        """Ask about every input. Raises EndpointError, Interrupted and what `ends` holds."""
        waiting = iter(inputs)
        self._max_failures_in_a_row = max(MAX_FAILURES_IN_A_ROW, concurrency)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._ask_about(waiting))
        if self._ended_by is not None:
            raise self._ended_by

    async def _ask_about(self, inputs: Iterator[T]) -> None:
        for one in inputs:
            if self._ended_by is not None:
                return
            try:
                await self._ask_or_fail(one)
            except self._ends as error:
                self.end(error)

    async def _ask_or_fail(self, one: T) -> None:
        try:
            await self._ask(one)
        except EndpointError as error:
            self._fail(one, error)
        else:
            self._num_failures_in_a_row = 0

    def _fail(self, one: T, error: EndpointError) -> None:
        if error.is_about_all:
            self.end(error)
            return
        self._on_failure(one, error)
        self._num_failures_in_a_row += 1
        if self._num_failures_in_a_row >= self._max_failures_in_a_row:
            self.end(
                EndpointError(f"{self._num_failures_in_a_row} consecutive inputs have no answer; last error: {error}")
            )


@contextmanager
def attended(inquiry: Inquiry[T], console: Console) -> Iterator[None]:
    """Tell on the console when no answer comes, and end the inquiry on signals.

    The first signal ends it once the pending answers have arrived, the second at once.
    """
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None
    signals = iter((True,))

    def end() -> None:
        if next(signals, False):
            console.print("Stopping after the answers in flight have arrived; press again to stop at once.")
            inquiry.end(Interrupted())
        else:
            running.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, end)
    watching = loop.create_task(
        inquiry.client.watch(lambda silence: console.print(silence, markup=False, soft_wrap=True))
    )
    try:
        yield
    finally:
        watching.cancel()
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _short(number: int) -> str:
    """Write a number in thousands or millions, with at least three digits."""
    for unit, suffix in ((1_000_000, "M"), (1000, "k")):
        if number >= unit:
            return f"{number / unit:.2f}{suffix}"
    return str(number)
