"""Prompts that make a teacher give a rationale with its answer, and the parsing of its outputs.

Few-shot prompts contain demonstrations (x, r, y) before the input: chains of thought (Wei et al. 2022), as in
Distilling step-by-step. Zero-shot prompts describe the form of the output in words. The rules of
`services.predict.data.teacher_outputs` parse both forms.
"""

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import orjson
from pydantic import ValidationError

from services.predict.data.rows import BadData
from services.predict.data.task_file import GivenDemonstration, TaskFile, parse_yaml
from services.predict.data.teacher_outputs import OWN_INPUT, read_output
from services.predict.model.task_description import StrictFile, complaint_of
from services.predict.tasks import ANSWER_MARKER, FieldError, FieldValue, Task

# Prompt file of each task; both data sets of word problems share one.
PROMPT_FILES = {"esnli": "esnli", "anli1": "anli1", "cqa": "cqa", "svamp": "svamp", "asdiv": "svamp"}
LETTERS = string.ascii_lowercase

# For users' own tasks.
OWN_QUESTION = f"{OWN_INPUT}\n{{input}}\n\nAnswer:"
OWN_ANSWER = f"{{rationale}}{ANSWER_MARKER}{{label}}."
OWN_FORM = """{instruction}
{candidates}First give the reasoning in one or two sentences.
Then end with one sentence of exactly this form, and nothing after it:
{form}"""


class PromptError(Exception):
    """Prompts that can't be used; the message can be shown to users."""


class PromptFile(StrictFile):
    """The prompts of a task, as a YAML file holds them.

    `question` and `answer` are the two halves of a demonstration, with names in braces for what is filled in: the
    task's fields or `input`, all of them as a student reads them, and `rationale` and `label`. Where labels are
    choices, `{label}` is the letter in parentheses and the choice. `few_shot` are a chat's instructions before the
    demonstrations, `zero_shot` either route's instructions in place of them; `stop` ends an output. A demonstration
    holds a value for every field, and `rationale` and `label`.
    """

    question: str
    answer: str
    stop: tuple[str, ...] = ()
    few_shot: str
    zero_shot: str
    demonstrations: tuple[GivenDemonstration, ...]

    def digest(self) -> str:
        """Return the SHA-256 of its content in hexadecimal; comments and layout of the YAML do not count."""
        return hashlib.sha256(orjson.dumps(self.model_dump(), option=orjson.OPT_SORT_KEYS)).hexdigest()


class Demonstration(NamedTuple):
    """An input with its label and the rationale for it."""

    values: Mapping[str, FieldValue]
    rationale: str
    label: str


@dataclass(frozen=True)
class Prompts:
    """Prompts that ask a teacher for a task's rationales."""

    task: Task
    file: PromptFile
    is_zero_shot: bool = False

    def completion(self, values: Mapping[str, FieldValue]) -> str:
        """Return a text to be continued by rationale and label. Raises FieldError."""
        if self.is_zero_shot:
            return f"{self.file.zero_shot.strip()}\n\n{self._question(values)}"
        shown = [f"{question} {answer}" for question, answer in self._shown]
        return "\n\n".join([*shown, self._question(values)])

    def messages(self, values: Mapping[str, FieldValue]) -> list[dict[str, str]]:
        """Return the same as a chat: each demonstration is a question and its answer. Raises FieldError."""
        if self.is_zero_shot:
            return [{"role": "user", "content": self.completion(values)}]
        turns = [{"role": "system", "content": self.file.few_shot.strip()}]
        for question, answer in self._shown:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*turns, {"role": "user", "content": self._question(values)}]

    def check(self) -> None:
        """Raises PromptError if a demonstration is incomplete, or its own output does not parse to its values."""
        for number, given in enumerate(self.file.demonstrations, start=1):
            if missing := {"rationale", "label"} - given.keys():
                raise PromptError(f"demonstration {number} has no {' and no '.join(sorted(missing))}")
            one = _demonstration(given)
            try:
                candidates = self.task.candidates(one.values)
                if candidates is not None and one.label not in candidates:
                    raise PromptError(f"demonstration {number}: {one.label!r} is not one of {', '.join(candidates)}")
                self._question(one.values)
                read = read_output(self.task, one.values, self._answer(one))
            except FieldError as error:
                raise PromptError(f"demonstration {number}: {error}") from None
            except (KeyError, IndexError, AttributeError, ValueError) as error:
                raise PromptError(f"invalid braces in question or answer: {error}") from None
            if (read.rationale, read.label, read.problem) != (one.rationale, one.label, None):
                raise PromptError(f"demonstration {number}: it is parsed as {read}")

    @cached_property
    def _shown(self) -> Sequence[tuple[str, str]]:
        """Questions and answers of the demonstrations."""
        demonstrations = [_demonstration(one) for one in self.file.demonstrations]
        return [(self._question(one.values), self._answer(one)) for one in demonstrations]

    def _question(self, values: Mapping[str, FieldValue]) -> str:
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        return self.file.question.strip().format_map({**texts, "input": self.task.input_text(values)})

    def _answer(self, one: Demonstration) -> str:
        label = one.label
        if self.task.choices is not None:
            letter = LETTERS[tuple(one.values[self.task.choices]).index(label)]
            label = f"({letter}) {label}"
        return self.file.answer.format(rationale=one.rationale, label=label)


def load_prompts(task: Task, path: Path | None = None, *, is_zero_shot: bool = False) -> Prompts:
    """Load the prompts of a file, or the built-in ones for the task. Raises PromptError."""
    path = path or Path(__file__).with_name("demonstrations") / f"{PROMPT_FILES[task.name]}.yaml"
    try:
        file = PromptFile.model_validate(parse_yaml(path.read_bytes(), path))
    except BadData as error:
        raise PromptError(str(error)) from None
    except OSError as error:
        raise PromptError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise PromptError(f"{path}: {complaint_of(error)}") from None
    if not file.demonstrations:
        raise PromptError(f"{path}: demonstrations: at least one is needed")
    return _checked(Prompts(task, file, is_zero_shot=is_zero_shot), path)


def own_prompts(given: TaskFile, path: Path, *, is_zero_shot: bool = False) -> Prompts:
    """Make the prompts of a task file, zero-shot if it has no demonstrations. Raises PromptError."""
    task, prompt = given.to_task(), given.prompt
    if prompt is None:
        raise PromptError(f"{path}: prompt is missing, which tells the teacher what to do")
    candidates, form = "", "<answer>"
    if task.labels is not None:
        candidates, form = f"The answer is one of: {', '.join(task.labels)}.\n", "<label>"
    if task.choices is not None:
        candidates, form = "The answer is one of the choices of the input.\n", "(<letter>) <choice>"
    said = OWN_FORM.format(
        instruction=prompt.instruction.strip(),
        candidates=candidates,
        form=OWN_ANSWER.format(rationale="", label=form).strip(),
    )
    file = PromptFile(
        question=OWN_QUESTION,
        answer=OWN_ANSWER,
        stop=(f"\n\n{OWN_INPUT}",),
        few_shot=said,
        zero_shot=said,
        demonstrations=prompt.demonstrations,
    )
    return _checked(Prompts(task, file, is_zero_shot=is_zero_shot or not prompt.demonstrations), path)


def _checked(prompts: Prompts, path: Path) -> Prompts:
    """Check prompts and return them. Raises PromptError, naming the file."""
    try:
        prompts.check()
    except PromptError as error:
        raise PromptError(f"{path}: {error}") from None
    return prompts


def _demonstration(one: Mapping[str, str | tuple[str, ...]]) -> Demonstration:
    values = {name: value for name, value in one.items() if name not in ("rationale", "label")}
    return Demonstration(values, str(one["rationale"]), str(one["label"]))
