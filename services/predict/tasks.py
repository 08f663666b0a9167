"""Tasks of a student: the fields of an input, the text that they become, the labels, and the metric.

A task is data, so that a checkpoint can describe its task and a service can parse requests for it. The texts are
exactly those published with Distilling step-by-step (Hsieh et al. 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter, ascii_lowercase
from typing import Literal

from services.predict.arithmetic import equal_values, evaluate

Metric = Literal["exact_match", "equal_value"]
# Whether a student reads numbers as they are written, or as the signs of `number_slots`.
Numbers = Literal["written", "slots"]
FieldValue = str | Sequence[str]

# T5's end of sequence. Its tokenizer turns these four characters into that token anywhere in a text, so the separator
# of premise and hypothesis is an end of sequence, as it was when the published students were trained.
EOS = "</s>"

# Lengths of a student's sequences and of its generated texts, as published.
MAX_INPUT_TOKENS = 1024
MAX_TARGET_TOKENS = 256
MAX_NEW_TOKENS = 64

MIN_CHOICES, MAX_CHOICES = 2, len(ascii_lowercase)


class FieldError(ValueError):
    """Values that do not fit a task; `field` names the field at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Prefixes:
    """The texts before an input that ask for its label, or for its rationale."""

    label: str = "predict: "
    rationale: str = "explain: "


RELEASED_PREFIXES = Prefixes()  # of the released code
NO_PREFIXES = Prefixes("", "")  # standard finetuning and distillation, which ask for labels alone


@dataclass(frozen=True)
class Task:
    """A task: `fields` are joined in order by `separator`, or inserted in `template`, which contains their {names}.

    `labels` are the only answers; None if an answer is one of the input's own choices (those of the field `choices`)
    or free text. `metric` says which predictions are right: "exact_match" those that equal the label, "equal_value"
    equations that have its value. `numbers` is how the student reads numbers.
    """

    name: str
    fields: tuple[str, ...]
    separator: str
    metric: Metric = "exact_match"
    labels: tuple[str, ...] | None = None
    choices: str | None = None
    template: str | None = None
    numbers: Numbers = "written"

    @property
    def frame(self) -> str:
        """The text of an input that belongs to no field."""
        if self.template is None:
            return self.separator * (len(self.fields) - 1)
        return "".join(literal for literal, *_ in Formatter().parse(self.template))

    def input_text(self, values: Mapping[str, FieldValue]) -> str:
        """Return the text of an input without a prefix.

        Texts are unchanged, except that an EOS in a text is broken up so that it cannot be mistaken for the separator.
        Raises FieldError.
        """
        for name in values:
            if name not in self.fields:
                raise FieldError(name, f"{self.name} has no field {name!r}; its fields are {', '.join(self.fields)}")
        texts = {name: self._text(name, values) for name in self.fields}
        return self.separator.join(texts.values()) if self.template is None else self.template.format(**texts)

    def candidates(self, values: Mapping[str, FieldValue]) -> tuple[str, ...] | None:
        """The possible answers for an input: the labels or its choices, without duplicates; None for free text.

        Raises FieldError as `input_text` does, but only for the choices.
        """
        if self.choices is None:
            return self.labels
        return tuple(dict.fromkeys(self._choices(values)))

    def is_right(self, prediction: str, label: str) -> bool:
        """Whether a prediction counts as right, by the task's metric."""
        return equal_values(prediction, label) if self.metric == "equal_value" else prediction == label

    def value(self, label: str) -> int | float | None:
        """The value of a label that is an equation; None for other tasks and for an equation without a value."""
        return evaluate(label) if self.metric == "equal_value" else None

    def _text(self, name: str, values: Mapping[str, FieldValue]) -> str:
        value = values.get(name)
        if name == self.choices:
            lettered = zip(ascii_lowercase, self._choices(values), strict=False)
            return "\n".join(["Answer Choices:", *(f"({letter}) {_plain(choice)}" for letter, choice in lettered)])
        if not isinstance(value, str):
            raise FieldError(name, _wrong(name, values, "a string"))
        return _plain(value)

    def _choices(self, values: Mapping[str, FieldValue]) -> Sequence[str]:
        name = self.choices or ""
        value = values.get(name)
        if not isinstance(value, list | tuple) or not all(isinstance(choice, str) for choice in value):
            raise FieldError(name, _wrong(name, values, "a list of strings"))
        if not MIN_CHOICES <= len(value) <= MAX_CHOICES:
            raise FieldError(name, f"{name} must be {MIN_CHOICES} to {MAX_CHOICES} strings, not {len(value)}")
        return value


_INFERENCES = ("entailment", "neutral", "contradiction")  # in the order of the files' numbers
ESNLI = Task("esnli", ("premise", "hypothesis"), EOS, labels=_INFERENCES)
ANLI1 = Task("anli1", ("premise", "hypothesis"), EOS, labels=_INFERENCES)
CQA = Task("cqa", ("question", "choices"), "\n", choices="choices")
SVAMP = Task("svamp", ("body", "question"), "\n", metric="equal_value")
ASDIV = Task("asdiv", ("body", "question"), "\n", metric="equal_value")

TASKS: Mapping[str, Task] = {task.name: task for task in (ESNLI, ANLI1, CQA, SVAMP, ASDIV)}


# The marker of students that give rationale and label in one answer (Eq. 2.5, [r̂, ŷ]), as teachers write it.
ANSWER_MARKER = " So the answer is "


def joint_target(rationale: str, label: str) -> str:
    """The target of single-task training: the rationale, ANSWER_MARKER, then the label."""
    return rationale + ANSWER_MARKER + label


def split_joint(answer: str) -> tuple[str, str | None]:
    """Split such an answer into rationale and label; the label follows the last marker, None without a marker."""
    rationale, marker, label = answer.rpartition(ANSWER_MARKER.rstrip())
    return (rationale.strip(), label.strip()) if marker else (answer.strip(), None)


def explained_input(text: str, rationale: str) -> str:
    """The input [x, r̂] of a student that is given the teacher's rationale (Eq. 2.2), in training and in use."""
    return f"{text}\nRationale: {rationale}"


def _wrong(name: str, values: Mapping[str, FieldValue], expected: str) -> str:
    if name not in values:
        return f"{name} is missing"
    return f"{name} must be {expected}{', not null' if values[name] is None else ''}"


def _plain(text: str) -> str:
    return text.replace(EOS, "< /s>")
