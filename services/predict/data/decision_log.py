"""Logs of `/v1/decisions`: each question that was asked is a task, its options are the labels, and answers are rows.

A line is a JSON object with a request, its answer and, if the teacher gave any, a reason for each answer:

    {"request": {"input": …, "questions": […]}, "response": {"answers": […]}, "reasons": ["…", null]}

Other keys are ignored, so that a whole request and a whole answer may be logged.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, ValidationError
from pydantic_core import PydanticCustomError

from services.core.store.manifest import MAX_NAME_LENGTH
from services.core.text_files import BadFile, Place, read_records
from services.predict.data.rows import Row, TeacherOutput
from services.predict.data.task_file import TaskFile
from services.predict.model.task_description import complaint_of, nearest
from services.predict.tasks import Task

# The field of a student's input, which is the text that a request is about.
INPUT = "input"
PREDICATE = ("true", "false")


class _Text(BaseModel):
    type: Literal["input_text"]
    text: str


def _as_parts(given: Any) -> Any:
    return [{"type": "input_text", "text": given}] if isinstance(given, str) else given


def _as_part(given: Any) -> Any:
    if isinstance(given, dict) and (kind := given.get("type", "input_text")) != "input_text":
        raise PydanticCustomError("not_text", "students read input_text, not {kind}", {"kind": str(kind)})
    return given


def _as_messages(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _as_text(given: Any) -> Any:
    return str(given).lower() if isinstance(given, bool) else given


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


_Parts = Annotated[list[Annotated[_Text, BeforeValidator(_as_part)]], BeforeValidator(_as_parts)]
_Value = Annotated[str, BeforeValidator(_as_text)]


class _Message(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: _Parts


class _Option(BaseModel):
    value: _Value


class _Level(BaseModel):
    label: str


class _Asked(BaseModel):
    name: str | None = None
    instructions: _Parts


class _Predicate(_Asked):
    type: Literal["predicate"]

    @property
    def labels(self) -> tuple[str, ...]:
        return PREDICATE


class _Choice(_Asked):
    type: Literal["choice"]
    choices: list[_Option]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(one.value for one in self.choices)


class _Score(_Asked):
    type: Literal["score"]
    levels: list[_Level]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(one.label for one in self.levels)


class _Refusal(BaseModel):
    type: Literal["refusal"]

    @property
    def label(self) -> str | None:
        return None


class _PredicateAnswer(BaseModel):
    type: Literal["predicate"]
    probability: float = Field(ge=0, le=1)

    @property
    def label(self) -> str:
        return PREDICATE[self.probability < 0.5]


class _ChoiceAnswer(BaseModel):
    type: Literal["choice"]
    choice: _Value

    @property
    def label(self) -> str:
        return self.choice


class _LevelProbability(_Level):
    probability: float


class _ScoreAnswer(BaseModel):
    type: Literal["score"]
    probabilities: list[_LevelProbability] = Field(min_length=1)

    @property
    def label(self) -> str:
        return max(self.probabilities, key=lambda one: one.probability).label


Question = _Predicate | _Choice | _Score
Answer = _PredicateAnswer | _ChoiceAnswer | _ScoreAnswer | _Refusal


class _Request(BaseModel):
    input: Annotated[list[_Message], BeforeValidator(_as_messages)]
    questions: list[Annotated[Question, Discriminator("type")]] = Field(min_length=1)


class _Response(BaseModel):
    answers: list[Annotated[Answer, Discriminator("type")]]


class _Line(BaseModel):
    request: _Request
    response: _Response
    reasons: Annotated[list[str | None], BeforeValidator(_as_list)] | None = None


@dataclass
class DecidedTask:
    """A question of a log as a task, the rows that a teacher labelled, and how often it declined to answer.

    `question` is the first time that it was asked, at `place`.
    """

    task: Task
    question: Question
    place: Place
    rows: list[Row] = field(default_factory=list)
    num_refused: int = 0


def read_decisions(logs: Sequence[Path]) -> dict[str, DecidedTask]:
    """Read the tasks of logs, each called by the name of its question or, without one, by its text.

    Their keys are these names as the store accepts them. Raises BadFile, also for different questions of one name.
    """
    found: dict[str, DecidedTask] = {}
    for place, line in (one for log in logs for one in read_records(log, _Line)):
        text = _text_of(part for message in line.request.input for part in message.content)
        if not text.strip():
            raise BadFile(f"{place}: request.input is blank")
        asked, answers = line.request.questions, line.response.answers
        reasons = [None] * len(asked) if line.reasons is None else line.reasons
        for name, given in (("response.answers", answers), ("reasons", reasons)):
            if len(given) != len(asked):
                raise BadFile(f"{place}: {name}: {len(given)}, but request.questions has {len(asked)}")
        for number, (question, answer, reason) in enumerate(zip(asked, answers, reasons, strict=True)):
            one = _task_of(question, found, place, f"request.questions.{number}")
            label = _label_of(question, answer, f"{place}: response.answers.{number}")
            if label is None:
                one.num_refused += 1
            else:
                output = TeacherOutput(reason, reason.strip(), label) if reason and reason.strip() else None
                one.rows.append(Row(one.task.input_text({INPUT: text}), label, output))
    if not found:
        raise BadFile(f"{', '.join(map(str, logs))}: there are no decisions")
    return found


def _text_of(parts: Iterable[_Text]) -> str:
    return "\n".join(part.text for part in parts)


def _task_of(question: Question, found: dict[str, DecidedTask], place: Place, where: str) -> DecidedTask:
    """Find the task of a question, or add it. Raises BadFile."""
    text = _text_of(question.instructions)
    called = (question.name or text).strip()
    name = re.sub(r"[^a-z0-9._-]+", "-", called.lower()).strip("-._")[:MAX_NAME_LENGTH]
    if (one := found.get(name)) is None:
        try:
            given = TaskFile.model_validate({"task": name, "fields": [INPUT], "labels": list(question.labels)})
        except ValidationError as error:
            raise BadFile(f"{place}: {where}: {complaint_of(error)}; a question's `name` names its task") from None
        one = found[name] = DecidedTask(replace(given.to_task(), name=called), question, place)
    first = one.question
    for what, differs in (
        ("type", question.type != first.type),
        ("instructions", text != _text_of(first.instructions)),
        ("options", set(question.labels) != set(first.labels)),
    ):
        if differs:
            raise BadFile(
                f"{place}: {where}: {name} has other {what} than at {one.place}; give each question a `name` of its own"
            )
    return one


def _label_of(question: Question, answer: Answer, where: str) -> str | None:
    """Return the teacher's most probable option, None for a refusal. Raises BadFile."""
    if answer.type not in (question.type, "refusal"):
        raise BadFile(f"{where}.type is {answer.type}, but the question is a {question.type}")
    label: str | None = answer.label
    if label is not None and label not in question.labels:
        raise BadFile(f"{where}: {label!r} is no option of the question; {nearest(label, question.labels)}")
    return label
