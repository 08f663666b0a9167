"""Extraction of a teacher's outputs for many inputs: request bodies, concurrency, and totals."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.jobs.endpoint import Answer, Endpoint, EndpointClient, EndpointError
from services.predict.data.inputs import Input
from services.predict.data.rationale_file import OutputError, RationaleFile, Record, digest_of
from services.predict.extraction.prompts import Prompts
from services.predict.tasks import FieldValue

# After this many consecutive inputs without an answer, the fault is probably not in the inputs.
MAX_FAILURES_IN_A_ROW = 8
# Outputs needed to judge a teacher before all outputs have arrived.
MIN_JUDGED = 20
# Characters of an unparsed output that are shown.
MAX_SHOWN = 400


class Interrupted(Exception):
    """A signal has asked the extraction to end."""


class UnparsedOutputs(Exception):
    """Too large a share of the outputs can't be parsed; the message can be shown to users."""


@dataclass(frozen=True)
class Plan:
    """The common part of an extraction's requests; `extra` adds fields to their JSON, null removes a field."""

    prompts: Prompts
    endpoint: Endpoint
    model: str
    temperature: float = 0.0
    max_tokens: int = 256
    extra: Mapping[str, Any] = field(default_factory=dict)

    def prompt(self, values: Mapping[str, FieldValue]) -> str | list[dict[str, str]]:
        is_chat = self.endpoint.api == "chat"
        return self.prompts.messages(values) if is_chat else self.prompts.completion(values)

    def body(self, prompt: str | list[dict[str, str]]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages" if self.endpoint.api == "chat" else "prompt": prompt,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "stop": list(self.prompts.file.stop),
            **self.extra,
        }
        return {name: value for name, value in body.items() if value is not None}

    def arguments(self) -> dict[str, Any]:
        """Return the values that the outputs depend on, except the inputs; the model's address is not one of them."""
        return {
            "task": self.prompts.task.name,
            "prompts": self.prompts.file.digest(),
            "zero_shot": self.prompts.is_zero_shot,
            "api": self.endpoint.api,
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "extra": dict(self.extra),
        }


@dataclass
class Tally:
    """Totals of the records of a file; prices are for a million tokens, in any currency.

    `max_unparsed` is the largest share of unparsed outputs that is accepted.
    """

    input_price: float | None = None
    output_price: float | None = None
    max_unparsed: float = 1.0
    num_records: int = 0
    num_uncounted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    first_unparsed: Record | None = None

    def add(self, record: Record) -> None:
        self.num_records += 1
        self.num_uncounted += record.prompt_tokens is None or record.completion_tokens is None
        self.prompt_tokens += record.prompt_tokens or 0
        self.completion_tokens += record.completion_tokens or 0
        if record.problem is not None:
            self.problems[record.problem] += 1
            self.first_unparsed = self.first_unparsed or record

    def check(self, *, is_complete: bool) -> None:
        """Raises UnparsedOutputs for too many unparsed outputs; needs at least MIN_JUDGED unless `is_complete`."""
        first, num_unparsed = self.first_unparsed, self.problems.total()
        if first is None or num_unparsed <= self.max_unparsed * self.num_records:
            return
        if not is_complete and self.num_records < MIN_JUDGED:
            return
        shown = first.output[:MAX_SHOWN] + ("…" if len(first.output) > MAX_SHOWN else "")
        raise UnparsedOutputs(
            f"{num_unparsed} of {self.num_records} outputs could not be parsed, a larger share than --max-unparsed"
            f" {self.max_unparsed:g}. The first is about {first.id} ({first.problem}): {shown!r}"
        )

    def told(self) -> str:
        """Text with the numbers of unparsed outputs and tokens, and their cost."""
        parts = [
            f"{self.problems.total()} unparsed",
            f"{_short(self.prompt_tokens)} tokens in, {_short(self.completion_tokens)} out",
        ]
        if self.num_uncounted:
            parts.append(f"{self.num_uncounted} not counted")
        if self.input_price is not None or self.output_price is not None:
            cost = self.prompt_tokens * (self.input_price or 0) + self.completion_tokens * (self.output_price or 0)
            parts.append(f"cost {cost / 1e6:.4f}")
        return " · ".join(parts)


class Extraction:
    """One run over inputs, with a limited number of requests in flight.

    A new request is sent only when an answer is on disk, so a crash loses at most one answer per request in flight. A
    run that is stopped waits for the answers in flight.
    """

    def __init__(
        self, plan: Plan, teacher: EndpointClient, file: RationaleFile, *,
        on_record: Callable[[Record], None], on_failure: Callable[[Input, EndpointError], None],
    ) -> None:  # fmt: skip
        """`on_record` may raise UnparsedOutputs, which ends the run."""
        self._plan = plan
        self._arguments = digest_of(plan.arguments())
        self._teacher = teacher
        self._file = file
        self._on_record = on_record
        self._on_failure = on_failure
        self._ended_by: Exception | None = None
        self._num_failures_in_a_row = 0

    def end(self, reason: Exception) -> None:
        """Send nothing more; `run` raises the first reason once all pending answers have arrived."""
        if self._ended_by is None:
            self._ended_by = reason
            self._teacher.stop()

    async def run(self, inputs: Iterable[Input], concurrency: int) -> None:
        """Ask about every input. Raises EndpointError, OutputError, UnparsedOutputs and Interrupted."""
        waiting = iter(inputs)
        self._max_failures_in_a_row = max(MAX_FAILURES_IN_A_ROW, concurrency)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._ask_about(waiting))
        if self._ended_by is not None:
            raise self._ended_by

    async def _ask_about(self, inputs: Iterator[Input]) -> None:
        for one in inputs:
            if self._ended_by is not None:
                return
            prompt = self._plan.prompt(one.values)
            try:
                answer = await self._teacher.ask(self._plan.body(prompt))
                record = self._record(one, digest_of(prompt), answer)
                await self._file.append(record)
            except EndpointError as error:
                self._fail(one, error)
            except OutputError as error:
                self.end(error)
            else:
                self._num_failures_in_a_row = 0
                try:
                    self._on_record(record)
                except UnparsedOutputs as error:
                    self.end(error)

    def _record(self, one: Input, prompt_digest: str, answer: Answer) -> Record:
        read = self._plan.prompts.read(one.values, answer.text)
        return Record(
            id=one.id,
            row=one.row,
            prompt=prompt_digest,
            arguments=self._arguments,
            model=answer.model,
            output=answer.text,
            finish_reason=answer.finish_reason,
            rationale=read.rationale,
            label=read.label,
            problem=read.problem,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
        )

    def _fail(self, one: Input, error: EndpointError) -> None:
        if error.is_about_all:
            self.end(error)
            return
        self._on_failure(one, error)
        self._num_failures_in_a_row += 1
        if self._num_failures_in_a_row >= self._max_failures_in_a_row:
            self.end(
                EndpointError(f"{self._num_failures_in_a_row} consecutive inputs have no answer; last error: {error}")
            )


def unanswered(plan: Plan, inputs: Sequence[Input], records: Sequence[Record]) -> list[Input]:
    """The inputs without a record. Raises OutputError for an input whose record has another text or row."""
    found = {record.id: record for record in records}
    for one in inputs:
        record = found.get(one.id)
        if record is not None and (record.row, record.prompt) != (one.row, digest_of(plan.prompt(one.values))):
            raise OutputError(f"the output belongs to other inputs: {one.id} was different when it was sent")
    return [one for one in inputs if one.id not in found]


def _short(number: int) -> str:
    """Write a number in thousands or millions, with at least three digits."""
    for unit, suffix in ((1_000_000, "M"), (1000, "k")):
        if number >= unit:
            return f"{number / unit:.2f}{suffix}"
    return str(number)
