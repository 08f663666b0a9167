"""The description of a student's checkpoint in `task.json`, and texts as its tokenizer is to read them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.predict.tasks import EOS, MAX_INPUT_TOKENS, MAX_NEW_TOKENS, FieldValue, Metric, Prefixes, Task

TASK_FILE = "task.json"


class BadTask(ValueError):
    """A `task.json` that is missing or says nothing usable."""


class TaskDescription(BaseModel):
    """A task as its student was trained for it.

    `task`, `fields`, `separator`, `labels`, `choices` and `metric` are those of `Task`. `label_prefix` is put before
    an input to ask for its label, empty for a student that was only finetuned; `rationale_prefix` asks for its
    rationale, None where the student has none. Tokens count with the end of sequence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str = Field(min_length=1)
    fields: tuple[str, ...] = Field(min_length=1)
    separator: str = "\n"
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)
    choices: str | None = None
    metric: Metric = "exact_match"
    label_prefix: str = ""
    rationale_prefix: str | None = None
    max_input_tokens: int = Field(default=MAX_INPUT_TOKENS, ge=1)
    max_target_tokens: int = Field(default=MAX_NEW_TOKENS, ge=1)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.fields)) < len(self.fields):
            raise ValueError("fields must be unique")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must be unique")
        if self.labels is not None and self.choices is not None:
            raise ValueError("an answer is one of the labels or one of the choices, not both")
        if self.choices is not None and self.choices not in self.fields:
            raise ValueError(f"choices names {self.choices!r}, which is not a field")
        return self

    @classmethod
    def of(cls, task: Task, prefixes: Prefixes, *, has_rationales: bool, **limits: int) -> "TaskDescription":
        """The description of a task whose student is asked with these prefixes; `limits` are the `max_…` fields."""
        return cls(
            task=task.name,
            fields=task.fields,
            separator=task.separator,
            labels=task.labels,
            choices=task.choices,
            metric=task.metric,
            label_prefix=prefixes.label,
            rationale_prefix=prefixes.rationale if has_rationales else None,
            **limits,
        )

    @classmethod
    def read(cls, directory: Path) -> "TaskDescription":
        """Read the description of a checkpoint folder. Raises BadTask."""
        path = directory / TASK_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise BadTask(f"{TASK_FILE} is missing") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise BadTask(
                f"{TASK_FILE}: {place}: {first['msg']}" if place else f"{TASK_FILE}: {first['msg']}"
            ) from None

    def write(self, directory: Path) -> None:
        """Put it into a checkpoint folder."""
        (directory / TASK_FILE).write_text(self.model_dump_json(indent=2) + "\n")

    def to_task(self) -> Task:
        """Return the task, which makes texts of inputs."""
        return Task(self.task, self.fields, self.separator, self.metric, self.labels, self.choices)


class PlainTexts:
    """Texts of clients, so that a tokenizer reads no control token in them.

    Where a text spells one, a space is put behind its first character, as `Task` does with the end of sequence: `<pad>`
    becomes `< pad>`. What the task itself writes between fields stays as it is.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a fast one of transformers."""
        spelled = {token.content for token in tokenizer.added_tokens_decoder.values()} | {EOS}
        longest_first = sorted(filter(str.strip, spelled), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)))
        unknown = tokenizer.unk_token_id
        self._control_ids = {int(id_) for id_ in tokenizer.added_tokens_decoder if id_ != unknown}

    def make_plain(self, text: str) -> str:
        """The text with its control tokens broken up."""
        return self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def make_plain_values(self, values: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
        """Make all texts of some fields plain; a value that is no text stays as it is, for the task to refuse it."""
        return {name: self._plain_value(value) for name, value in values.items()}

    def num_controls(self, input_ids: list[int]) -> int:
        """Count the control tokens among these; an unknown character is none."""
        return sum(id_ in self._control_ids for id_ in input_ids)

    def _plain_value(self, value: FieldValue) -> FieldValue:
        if isinstance(value, str):
            return self.make_plain(value)
        if isinstance(value, list | tuple):
            return [self.make_plain(one) if isinstance(one, str) else one for one in value]
        return value
