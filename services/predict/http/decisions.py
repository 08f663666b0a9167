"""Decisions by a student: questions about its one task, whose options are the task's labels or an input's choices.

A student can't read a question's instructions: it has learnt one question. So a question counts as that one if its
options are the labels, or if a predicate's statement is that the input has a label; others are refused.
"""

import math
from collections.abc import Mapping
from typing import Any

from services.core.decisions import (
    DecisionJson,
    DecisionRequest,
    DecisionText,
    PredicateQuestion,
    Question,
    instructions_of,
    options_of,
    text_of,
    user_texts,
)
from services.core.errors import InvalidField
from services.core.exchange import RequestContext
from services.core.http.bodies import parse_json
from services.core.http.decisions import Decided, Distribution
from services.core.store.manifest import Manifest
from services.predict.model.task_description import TaskDescription
from services.predict.service import NamedInput, PredictService
from services.predict.tasks import FieldValue

MAX_LISTED = 20
# Labels that a boolean stands for, and by which a task of two labels answers a predicate that bears its name.
BOOLEANS = {"true": ("true", "yes"), "false": ("false", "no")}


async def decide(service: PredictService, body: DecisionRequest, context: RequestContext) -> Decided:
    """Answer each question by the student's probabilities. Raises InvalidField."""
    asked: list[tuple[int, list[str]]] = []  # each question's place among the inputs, and the labels of its options
    threshold = 0.0

    def inputs_of(description: TaskDescription, manifest: Manifest) -> list[NamedInput]:
        nonlocal threshold
        threshold = 0.0 if body.teacher is None else _threshold(manifest)
        fields = _fields(body, description)
        if description.choices is None:
            by_name = {label.strip().casefold(): label for label in description.labels or ()}
            questions = enumerate(body.questions)
            asked.extend((0, _labels(question, index, description, by_name)) for index, question in questions)
            return [(fields, "input")]
        inputs: dict[tuple[str, ...], tuple[int, NamedInput]] = {}
        for index, question in enumerate(body.questions):
            choices = _choices(question, index, description)
            named = ({**fields, description.choices: choices}, f"questions.{index}")
            asked.append((inputs.setdefault(tuple(choices), (len(inputs), named))[0], choices))
        return [named for _, named in inputs.values()]

    predicted = await service.label(body.model, inputs_of, context)
    distributions = []
    for place, labels in asked:
        one = predicted.predictions[place]
        shares, is_certain = one.probabilities or {}, one.confidence is not None and one.confidence >= threshold
        distributions.append(Distribution([shares[label] for label in labels], one.confidence, is_certain))
    return Decided(predicted.model, distributions, sum(one.prompt_tokens for one in predicted.predictions))


def _threshold(manifest: Manifest) -> float:
    """Return the confidence below which a student hands over: always, where no confidence was found to be enough.

    Raises InvalidField for a student that was not trained on logged decisions.
    """
    found = manifest.metrics.get("threshold", "")
    if found is None or isinstance(found, int | float):
        return math.inf if found is None else found
    told = (
        f"{manifest.name} has no threshold in its manifest, so it can't hand over; `fovea distill decisions` finds one"
    )
    raise InvalidField(f"teacher: {told}.", param="teacher")


def _fields(body: DecisionRequest, description: TaskDescription) -> dict[str, FieldValue]:
    """Return the values of the task's fields but its choices: of a JSON object that has them, or the text of the only
    one."""
    names = [name for name in description.fields if name != description.choices]
    parts = user_texts(body)
    texts, param = [part for _, part in parts], parts[-1][0] if parts else "input"
    given = _object_in(texts[0]) if len(texts) == 1 else None
    if isinstance(given, Mapping) and given.keys() == set(names):
        for name, value in given.items():
            if not isinstance(value, str):
                raise InvalidField(f"{param}: {name} must be a string.", param=param)
        return {name: str(given[name]) for name in names}
    if len(names) > 1 or any(isinstance(one, DecisionJson) for one in texts):
        told = f"{description.task} reads the fields {', '.join(names)}"
        raise InvalidField(f"{param}: {told}: send one JSON object of exactly these, each a string.", param=param)
    return {names[0]: "\n".join(map(text_of, texts))}


def _object_in(part: DecisionText | DecisionJson) -> Any:
    """Return the JSON of a part, also of a text that is an object, as LangChain sends one; None for other texts."""
    if isinstance(part, DecisionJson):
        return part.data
    try:
        return parse_json(part.text) if part.text.lstrip().startswith("{") else None
    except ValueError:
        return None


def _labels(question: Question, index: int, description: TaskDescription, by_name: Mapping[str, str]) -> list[str]:
    """Return the label of each option in order, or the one that a predicate states."""
    param, labels = f"questions.{index}", description.labels
    if labels is None:
        told = f"{description.task} is answered by free text, and has no labels to decide between"
        raise InvalidField(f"{param}: {told}.", param=param)
    if isinstance(question, PredicateQuestion):
        return [_stated(question, param, description, by_name)]
    options, found = options_of(question, param), dict[str, None]()
    for option in options:
        names = (option.text, option.name, *BOOLEANS.get(option.name, ()))
        label = next((by_name[name] for one in names if (name := one.strip().casefold()) in by_name), None)
        if label is None or label in found:
            reason = "is no label" if label is None else "is the label of an earlier option"
            told = f"{option.name[:100]!r} {reason}. {_told(description)}"
            raise InvalidField(f"{option.param}: {told}", param=option.param)
        found[label] = None
    if len(found) < len(labels):
        missing = next(label for label in labels if label not in found)
        raise InvalidField(f"{param}: No option is the label {missing!r}. {_told(description)}", param=param)
    return list(found)


def _stated(question: PredicateQuestion, param: str, description: TaskDescription, by_name: Mapping[str, str]) -> str:
    """Return the label that a predicate states the input to have."""
    names = [one.strip().casefold() for one in (instructions_of(question), question.name or "")]
    for name in names:
        if name in by_name:
            return by_name[name]
    yes, no = (next((by_name[one] for one in BOOLEANS[value] if one in by_name), None) for value in BOOLEANS)
    if description.task.casefold() in names and yes is not None and no is not None and len(by_name) == 2:
        return yes
    told = "A predicate states one label, by its instructions or its name."
    raise InvalidField(f"{param}.instructions: {told} {_told(description)}", param=f"{param}.instructions")


def _choices(question: Question, index: int, description: TaskDescription) -> list[str]:
    param = f"questions.{index}"
    if isinstance(question, PredicateQuestion):
        told = f"{description.task} chooses among options, and judges no statements"
        raise InvalidField(f"{param}: {told}; ask a choice.", param=param)
    return [option.text for option in options_of(question, param)]


def _told(description: TaskDescription) -> str:
    """Say what the student decides."""
    labels = description.labels or ()
    listed = ", ".join(labels[:MAX_LISTED]) + (", …" if len(labels) > MAX_LISTED else "")
    return f"This model decides only {description.task}, whose labels are {listed}: each needs one option."
