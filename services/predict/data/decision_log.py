"""Logs of `/v1/decisions`: each question that was asked is a task, its options are the labels, and answers are rows.

A line is a JSON object with a request, its answer and, if the teacher gave any, a reason for each answer:

    {"request": {"input": …, "questions": […]}, "response": {"answers": […]}, "reasons": ["…", null]}

Messages, questions and answers are those of the route. Other keys beside them are ignored, so that a whole request and
a whole answer of any server may be logged.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Discriminator, ValidationError

from services.core.decisions import (
    ChoiceAnswer,
    DecisionJson,
    DecisionRequest,
    LevelAnswer,
    PredicateAnswer,
    PredicateQuestion,
    Question,
    RefusalAnswer,
    instructions_of,
    name_of,
    options_of,
    text_of,
    user_texts,
)
from services.core.errors import InvalidField
from services.core.refusals import first_complaint
from services.core.store.manifest import MAX_NAME_LENGTH
from services.core.text_files import BadFile, Place, read_records
from services.predict.data.rows import Row, TeacherOutput
from services.predict.data.task_file import TaskFile
from services.predict.model.task_description import nearest
from services.predict.tasks import Task

# The field of a student's input, which is the text that a request is about.
INPUT = "input"
PREDICATE = ("true", "false")

Answer = Annotated[PredicateAnswer | ChoiceAnswer | LevelAnswer | RefusalAnswer, Discriminator("type")]


class _Request(DecisionRequest):
    model: str = ""


def _known(given: Any) -> Any:
    """Drop the keys of a request that other servers add."""
    return {key: given[key] for key in given.keys() & _Request.model_fields} if isinstance(given, dict) else given


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class _Response(BaseModel):
    answers: list[Answer]


class _Line(BaseModel):
    request: Annotated[_Request, BeforeValidator(_known)]
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
        text = _text_of(line.request, place)
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


def _text_of(request: DecisionRequest, place: Place) -> str:
    """Return the text that a student will be given in this request's place. Raises BadFile for what it can't read."""
    if request.documents:
        raise BadFile(f"{place}: request.documents: a student of logs reads no documents; log decisions without them")
    try:
        parts = user_texts(request)
    except InvalidField as refused:
        raise BadFile(f"{place}: request.{refused.message}") from None
    for param, part in parts:
        if isinstance(part, DecisionJson):
            raise BadFile(f"{place}: request.{param}: a student of logs reads texts, not JSON; log it as input_text")
    text = "\n".join(text_of(part) for _, part in parts)
    if not text.strip():
        raise BadFile(f"{place}: request.input is blank")
    return text


def _task_of(question: Question, found: dict[str, DecidedTask], place: Place, where: str) -> DecidedTask:
    """Find the task of a question, or add it. Raises BadFile."""
    text, labels = instructions_of(question), _labels_of(question)
    called = (question.name or text).strip()
    name = re.sub(r"[^a-z0-9._-]+", "-", called.lower()).strip("-._")[:MAX_NAME_LENGTH]
    if (one := found.get(name)) is None:
        try:
            given = TaskFile.model_validate({"task": name, "fields": [INPUT], "labels": labels})
        except ValidationError as error:
            raise BadFile(
                f"{place}: {where}: {first_complaint(error, 'the question')}; a question's `name` names its task"
            ) from None
        one = found[name] = DecidedTask(replace(given.to_task(), name=called), question, place)
    first = one.question
    for what, differs in (
        ("type", question.type != first.type),
        ("instructions", text != instructions_of(first)),
        ("options", set(labels) != set(_labels_of(first))),
    ):
        if differs:
            raise BadFile(
                f"{place}: {where}: {name} has other {what} than at {one.place}; give each question a `name` of its own"
            )
    return one


def _labels_of(question: Question) -> list[str]:
    return (
        list(PREDICATE) if isinstance(question, PredicateQuestion) else [one.name for one in options_of(question, "")]
    )


def _label_of(question: Question, answer: Answer, where: str) -> str | None:
    """Return the teacher's most probable option, None for a refusal. Raises BadFile."""
    if answer.type not in (question.type, "refusal"):
        raise BadFile(f"{where}.type is {answer.type}, but the question is a {question.type}")
    match answer:
        case RefusalAnswer():
            return None
        case PredicateAnswer():
            return PREDICATE[answer.probability < 0.5]
        case ChoiceAnswer():
            label = name_of(answer.choice)
        case LevelAnswer():
            label = max(answer.probabilities, key=lambda one: one.probability).label
    if label not in (labels := _labels_of(question)):
        raise BadFile(f"{where}: {label!r} is no option of the question; {nearest(label, labels)}")
    return label
