"""Rationale and label of a teacher's output, parsed by the rules behind the published results.

The rules are those of the released parser with their quirks: questions of a teacher's own are cut off, and ANLI's label
loses its last character whether or not it is the full stop. An output that a rule cannot parse is kept together with
its problem; the rationale or label is then " " or "".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from services.predict.data.rows import Problem, TeacherOutput
from services.predict.tasks import ANSWER_MARKER, TASKS, FieldValue, Task

# Form of the outputs: PaLM's, or GPT-NeoX's, which may begin with white space and have other words before the answer.
Dialect = Literal["palm", "gpt"]

# The word before each input in a prompt for a user's own task.
OWN_INPUT = "Input:"
# Signs that chat models put around an answer.
_DECORATION = " \t*_`\"'.:<>"


def parse_output(task: str, text: str, dialect: Dialect = "palm") -> TeacherOutput:
    """Parse a teacher's output for a task in TASKS. Never fails on a text; raises KeyError for an unknown task.

    `unknown_label` is reported only for tasks with fixed labels; the caller, who knows the question, must check whether
    a label is one of its choices, or an equation with a value.
    """
    parsed = _RULES[task](text, dialect)
    return replace(parsed, problem=parsed.problem or _problem(task, parsed))


def read_output(task: Task, values: Mapping[str, FieldValue], text: str) -> TeacherOutput:
    """Parse an output about these values, for a published task or a user's own.

    Published tasks use the rules for outputs that may begin with white space. These do not know the question; here a
    label must also be one of its choices, and an equation must have a value.
    """
    parsed = parse_output(task.name, text, "gpt") if task.name in TASKS else _parse_own(task, values, text)
    if parsed.problem not in (None, "no_rationale"):
        return parsed
    candidates = task.candidates(values)
    if candidates is not None and parsed.label not in candidates:
        return replace(parsed, problem="unknown_label")
    if task.metric == "equal_value" and task.value(parsed.label) is None:
        return replace(parsed, problem="no_value")
    return parsed


def _parse_own(task: Task, values: Mapping[str, FieldValue], text: str) -> TeacherOutput:
    """Parse `… So the answer is the answer.`; a label or choice is one line, in any case, quotes or asterisks."""
    parts = text.split(f"\n{OWN_INPUT}")[0].strip().split(ANSWER_MARKER.strip())
    if len(parts) != 2:
        return TeacherOutput(text, "", "", _problem_of(parts))
    rationale, label = parts[0].rstrip(" \t\n*_"), parts[1].lstrip(":").strip(" \t\n*").removesuffix(".").rstrip(" *")
    if (candidates := task.candidates(values)) is not None:
        label = _nearest_label(label.split("\n")[0].strip(), candidates, has_letters=task.choices is not None)
    problem: Problem | None = None if rationale else "no_rationale"
    return TeacherOutput(text, rationale, label, problem if label else "no_label")


def _nearest_label(line: str, candidates: Sequence[str], *, has_letters: bool) -> str:
    """The one candidate that matches a line; without one, the line without its decoration."""
    bare = line.strip(_DECORATION)
    if has_letters:
        bare = re.sub(r"^\(.\)\s*", "", bare)
    for meant in (line, bare):
        if meant in candidates:
            return meant
    near = [one for one in candidates if one.strip(_DECORATION).casefold() == bare.casefold()]
    return near[0] if len(near) == 1 else bare


def _problem(task: str, parsed: TeacherOutput) -> Problem | None:
    labels = TASKS[task].labels
    if not parsed.label.strip():
        return "no_label"
    if labels is not None and parsed.label not in labels:
        return "unknown_label"
    return None if parsed.rationale.strip() else "no_rationale"


def _parse_marked(text: str, dialect: Dialect, marker: str, read: Callable[[str], str]) -> TeacherOutput:
    body = _outer_stripped(text.split("Q:")[0], dialect)
    parts = body.split(marker)
    if len(parts) != 2:
        return TeacherOutput(text, " ", " ", _problem_of(parts))
    return TeacherOutput(text, parts[0].rstrip(), read(parts[1]))


def _choice_after_letter(text: str) -> str:
    """Read ` (b) a choice.`, whose label ends before the next letter in parentheses."""
    found = re.split(r"\(.\)", text)
    if len(found) < 2 or not found[1].strip():
        return " "
    return found[1].strip().removesuffix(".")


def _outermost_parentheses(text: str) -> str:
    """Read ` (3 + (4 - 1)).`, whose label extends from the first parenthesis of a line to its last."""
    for line in text.split("\n"):
        start, end = line.find("("), line.rfind(")")
        if 0 <= start < end:
            return line[start : end + 1]
    return " "


def _parse_esnli(text: str, dialect: Dialect) -> TeacherOutput:
    """Parse the rationale, then `Answer: neutral` on a line of its own, then the next `Premise`."""
    rationale = _outer_stripped(text.split("Answer:")[0], dialect)
    answers = text.split("Answer: ")
    if len(answers) < 2:
        return TeacherOutput(text, rationale, " ", "no_answer")
    return TeacherOutput(text, rationale, answers[1].split("Premise")[0].rstrip())


def _parse_anli(text: str, dialect: Dialect) -> TeacherOutput:
    """Parse `… So the answer is neutral.`, then the next `Premise:`; the last character is always cut off."""
    body = _outer_stripped(text.split("Premise:")[0], dialect)
    markers = ("So the answer is", "The answer is") if dialect == "gpt" else ("So the answer is",)
    for parts in map(body.split, markers):
        if len(parts) == 2:
            return TeacherOutput(text, parts[0].rstrip(), parts[1].lstrip()[:-1])
    return TeacherOutput(text, "", "", _problem_of(body.split(markers[0])))


def _problem_of(parts: list[str]) -> Problem:
    return "no_answer" if len(parts) < 2 else "several_answers"


def _outer_stripped(text: str, dialect: Dialect) -> str:
    return text.strip() if dialect == "gpt" else text.rstrip()


_RULES: Mapping[str, Callable[[str, Dialect], TeacherOutput]] = {
    "esnli": _parse_esnli,
    "anli1": _parse_anli,
    "cqa": partial(_parse_marked, marker="So the answer is", read=_choice_after_letter),
    "svamp": partial(_parse_marked, marker="The answer is", read=_outermost_parentheses),
    "asdiv": partial(_parse_marked, marker="The answer is", read=_outermost_parentheses),
}
