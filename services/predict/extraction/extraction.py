"""Extraction of a teacher's outputs for many inputs: request bodies, records, and totals."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.core.openai_client import Answer, Endpoint
from services.jobs.inquiry.inquiry import Tokens
from services.jobs.inquiry.record_file import OutputError, digest_of
from services.predict.data.inputs import Input
from services.predict.data.rationale_file import Record
from services.predict.extraction.prompts import Prompts
from services.predict.tasks import FieldValue

# Outputs needed to judge a teacher before all outputs have arrived.
MIN_JUDGED = 20
# Characters of an unparsed output that are shown.
MAX_SHOWN = 400
# Unless a request's additional fields have another.
TEMPERATURE = 0.0


class UnparsedOutputs(Exception):
    """Too large a share of the outputs can't be parsed; the message can be shown to users."""


@dataclass(frozen=True)
class Plan:
    """The common part of an extraction's requests; `extra` adds fields to their JSON, null removes a field."""

    prompts: Prompts
    endpoint: Endpoint
    model: str
    max_tokens: int = 256
    extra: Mapping[str, Any] = field(default_factory=dict)

    def prompt(self, values: Mapping[str, FieldValue]) -> str | list[dict[str, str]]:
        is_chat = self.endpoint.api == "chat"
        return self.prompts.messages(values) if is_chat else self.prompts.completion(values)

    def body(self, prompt: str | list[dict[str, str]]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages" if self.endpoint.api == "chat" else "prompt": prompt,
            "temperature": TEMPERATURE,
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
            "temperature": TEMPERATURE,
            "max_tokens": self.max_tokens,
            "extra": dict(self.extra),
        }

    def record(self, one: Input, prompt: str | list[dict[str, str]], answer: Answer) -> Record:
        """Make the record of an answer to a prompt about an input."""
        read = self.prompts.read(one.values, answer.text)
        return Record(
            id=one.id,
            row=one.row,
            prompt=digest_of(prompt),
            arguments=digest_of(self.arguments()),
            model=answer.model,
            output=answer.text,
            finish_reason=answer.finish_reason,
            rationale=read.rationale,
            label=read.label,
            problem=read.problem,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
        )


@dataclass
class Tally:
    """Totals of the records of a file; `max_unparsed` is the largest share of unparsed outputs that is accepted."""

    tokens: Tokens = field(default_factory=Tokens)
    max_unparsed: float = 1.0
    num_records: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    first_unparsed: Record | None = None

    def add(self, record: Record) -> None:
        self.num_records += 1
        self.tokens.add(record.prompt_tokens, record.completion_tokens)
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
        return f"{self.problems.total()} unparsed · {self.tokens.told()}"


def unanswered(plan: Plan, inputs: Sequence[Input], records: Sequence[Record]) -> list[Input]:
    """The inputs without a record. Raises OutputError for an input whose record has another text or row."""
    found = {record.id: record for record in records}
    for one in inputs:
        record = found.get(one.id)
        if record is not None and (record.row, record.prompt) != (one.row, digest_of(plan.prompt(one.values))):
            raise OutputError(f"the output belongs to other inputs: {one.id} was different when it was sent")
    return [one for one in inputs if one.id not in found]
