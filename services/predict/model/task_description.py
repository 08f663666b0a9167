"""The description of a student's checkpoint in `task.json`, and the preparation of texts for its tokenizer."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.core.refusals import Refused, first_complaint, near_names
from services.nn.plain_texts import PlainTexts
from services.predict.confidence import Calibration
from services.predict.tasks import EOS, MAX_INPUT_TOKENS, MAX_NEW_TOKENS, FieldValue, Metric, Numbers, Prefixes, Task

TASK_FILE = "task.json"
MAX_LISTED = 20
FIELD_NAME = re.compile(r"[^\W\d][\w -]*")


class StrictFile(BaseModel):
    """Values of a file; an unknown key is refused with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_known_keys(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(f"there is no {name!r}; {nearest(str(name), cls.model_fields)}")
        return given


class TaskFields(StrictFile):
    """A task: `task` is its name, and the others are those of `Task`."""

    task: str = Field(min_length=1)
    fields: tuple[str, ...] = Field(min_length=1)
    separator: str = "\n"
    template: str | None = None
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)
    choices: str | None = None
    metric: Metric = "exact_match"
    numbers: Numbers = "written"

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
        if self.template is not None:
            _check_template(self.template, self.fields)
        return self

    def to_task(self) -> Task:
        """Return the task, which turns inputs into texts."""
        return Task(
            self.task, self.fields, self.separator, self.metric, self.labels, self.choices, self.template, self.numbers
        )


class TaskDescription(TaskFields):
    """A task as its student was trained for it.

    `label_prefix` is put before an input to ask for its label, empty for a student that was only finetuned;
    `rationale_prefix` asks for its rationale, None where the student has none. Tokens count with the end of sequence.
    `confidence` is None where the student's probabilities are not calibrated.
    """

    label_prefix: str = ""
    rationale_prefix: str | None = None
    max_input_tokens: int = Field(default=MAX_INPUT_TOKENS, ge=1)
    max_target_tokens: int = Field(default=MAX_NEW_TOKENS, ge=1)
    confidence: Calibration | None = None

    @classmethod
    def of(cls, task: Task, prefixes: Prefixes, *, has_rationales: bool, **limits: int) -> "TaskDescription":
        """Make the description of a task for a student with these prefixes; `limits` are the `max_…` fields."""
        return cls(
            task=task.name,
            **{name: getattr(task, name) for name in TaskFields.model_fields if name != "task"},
            label_prefix=prefixes.label,
            rationale_prefix=prefixes.rationale if has_rationales else None,
            **limits,
        )

    @classmethod
    def read(cls, directory: Path) -> "TaskDescription":
        """Read the description of a checkpoint folder. Raises Refused."""
        path = directory / TASK_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise Refused(
                f"{TASK_FILE} is missing, which says what the student answers; `fovea train distill` writes it"
            ) from None
        except ValidationError as error:
            raise Refused(f"{TASK_FILE}: {first_complaint(error, 'the file')}") from None

    def write(self, directory: Path) -> None:
        """Write it to a checkpoint folder."""
        (directory / TASK_FILE).write_text(self.model_dump_json(indent=2) + "\n")


def nearest(name: str, known: Iterable[str]) -> str:
    """Name the known name nearest to an unknown one, or list the first MAX_LISTED."""
    names = list(known)
    near = near_names(name, names)
    listed = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    return f"the nearest is {near[0]!r}" if near else f"known are {listed}"


def _check_template(template: str, fields: tuple[str, ...]) -> None:
    """Raises ValueError for a template that lacks a field's plain name, or has other placeholders."""
    try:
        parts = [(name, spec or conversion) for _, name, spec, conversion in Formatter().parse(template)]
    except ValueError as error:
        raise ValueError(f"template: {error}") from None
    found = [(name, form) for name, form in parts if name is not None]
    for name, form in found:
        if name not in fields:
            raise ValueError(f"template: {{{name}}} is not a field; {nearest(name, fields)}")
        if form or FIELD_NAME.fullmatch(name) is None:
            raise ValueError(
                f"template: {{{name}}} must be a field's name in braces, of letters, digits, '_', '-', ' '"
            )
    if missing := [f"{{{name}}}" for name in fields if name not in dict(found)]:
        raise ValueError(f"template: it lacks {' and '.join(missing)}")


class PlainValues:
    """Preparation of clients' values so that a student reads their texts well and finds no control token in them.

    An end of sequence is broken up in its texts, as `Task` does. The task's own text between fields is unchanged.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a fast tokenizer of transformers."""
        self._plain = PlainTexts.of(tokenizer, EOS)
        unknown = tokenizer.unk_token_id
        self._control_ids = {int(id_) for id_ in tokenizer.added_tokens_decoder if id_ != unknown}

    def make_plain(self, values: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
        """Make all texts of some fields plain; other values are unchanged, and the task rejects them."""
        return {name: self._plain_value(value) for name, value in values.items()}

    def num_controls(self, input_ids: list[int]) -> int:
        """Count the control tokens among these; the unknown token is not one."""
        return sum(id_ in self._control_ids for id_ in input_ids)

    def _plain_value(self, value: FieldValue) -> FieldValue:
        if isinstance(value, str):
            return self._plain(value)
        if isinstance(value, list | tuple):
            return [self._plain(one) if isinstance(one, str) else one for one in value]
        return value
