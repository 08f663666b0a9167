"""Rationale and label of what a teacher wrote, by the rules that the published figures rest on.

A teacher continues a few-shot prompt: its reasons, its answer, and often further questions of its own, which are cut
off. The rules are those of the released parser with their quirks, among them that ANLI's label loses its last
character whether or not that is the full stop. What a rule cannot read is kept with what is wrong with it, so that
nothing is lost unseen; the texts that it then gives, " " or "", are the released ones too.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from services.predict.data.rows import Problem, TeacherOutput
from services.predict.tasks import TASKS

# Form of the outputs: PaLM's, or GPT-NeoX's, which may begin with white space and have other words before the answer.
Dialect = Literal["palm", "gpt"]


def parse_output(task: str, text: str, dialect: Dialect = "palm") -> TeacherOutput:
    """Parse what a teacher wrote for a task of TASKS. Never fails on a text; raises KeyError for an unknown task.

    `unknown_label` is told for tasks with fixed labels only; whether a label is among the choices of a question, or an
    equation with a value, is for the caller, who knows the question.
    """
    parsed = _RULES[task](text, dialect)
    return replace(parsed, problem=parsed.problem or _problem(task, parsed))


def _problem(task: str, parsed: TeacherOutput) -> Problem | None:
    labels = TASKS[task].labels
    if not parsed.label.strip():
        return "no_label"
    if labels is not None and parsed.label not in labels:
        return "unknown_label"
    return None if parsed.rationale.strip() else "no_rationale"


def _parse_choice(text: str, dialect: Dialect) -> TeacherOutput:
    """`… So the answer is (b) a choice.`; the label ends where a next letter in parentheses begins."""
    return _parse_marked(text, dialect, "So the answer is", _choice_after_letter)


def _parse_equation(text: str, dialect: Dialect) -> TeacherOutput:
    """`… The answer is (3 + (4 - 1)).`; the label reaches from the first parenthesis of a line to its last."""
    return _parse_marked(text, dialect, "The answer is", _outermost_parentheses)


def _parse_marked(text: str, dialect: Dialect, marker: str, read: Callable[[str], str]) -> TeacherOutput:
    body = _outer_stripped(text.split("Q:")[0], dialect)
    parts = body.split(marker)
    if len(parts) != 2:
        return TeacherOutput(text, " ", " ", _problem_of(parts))
    return TeacherOutput(text, parts[0].rstrip(), read(parts[1]))


def _choice_after_letter(text: str) -> str:
    found = re.split(r"\(.\)", text)
    if len(found) < 2 or not found[1].strip():
        return " "
    return found[1].strip().removesuffix(".")


def _outermost_parentheses(text: str) -> str:
    for line in text.split("\n"):
        start, end = line.find("("), line.rfind(")")
        if 0 <= start < end:
            return line[start : end + 1]
    return " "


def _parse_esnli(text: str, dialect: Dialect) -> TeacherOutput:
    """The reasons, then `Answer: neutral` on a line of its own, then the next `Premise`."""
    rationale = _outer_stripped(text.split("Answer:")[0], dialect)
    answers = text.split("Answer: ")
    if len(answers) < 2:
        return TeacherOutput(text, rationale, " ", "no_answer")
    return TeacherOutput(text, rationale, answers[1].split("Premise")[0].rstrip())


def _parse_anli(text: str, dialect: Dialect) -> TeacherOutput:
    """`… So the answer is neutral.`, then the next `Premise:`; the last character goes, as a full stop would."""
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
    "cqa": _parse_choice,
    "svamp": _parse_equation,
    "asdiv": _parse_equation,
}
