"""Prompts that make a teacher give its reasons with its answer, and the rationales of its outputs.

Few-shot prompts hold demonstrations (x, r, y) before the input: chains of thought (Wei et al. 2022), as Distilling
step-by-step asks for them. Zero-shot prompts say in words what form the output should have. The released rules
of `llm_outputs` read either form.
"""

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.predict.data.teacher_outputs import parse_output
from services.predict.tasks import FieldError, FieldValue, Task

# Prompt file of each task; word problems of both data sets share one.
PROMPT_FILES = {"esnli": "esnli", "anli1": "anli1", "cqa": "cqa", "svamp": "svamp", "asdiv": "svamp"}
# Beside what the rules of `llm_outputs` complain of: an equation that has no value.
NO_VALUE = "no_value"

LETTERS = string.ascii_lowercase


class PromptError(Exception):
    """Prompts that can't be used; the message is fit to be shown."""


class PromptFile(BaseModel):
    """The prompts of a task, as a YAML file holds them.

    `question` and `answer` are the two halves of a demonstration, with names in braces for what is filled in: the
    task's fields or `input`, all of them as a student reads them, and `rationale` and `label`. Where labels are
    choices, `{label}` is the letter in parentheses and the choice. `few_shot` are a chat's instructions before the
    demonstrations, `zero_shot` either route's instructions in place of them; `stop` ends an output. A demonstration
    holds a value for every field, and `rationale` and `label`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    answer: str
    stop: tuple[str, ...] = ()
    few_shot: str
    zero_shot: str
    demonstrations: tuple[dict[str, str | tuple[str, ...]], ...] = Field(min_length=1)

    def digest(self) -> str:
        """Return the SHA-256 of its content in hexadecimal; comments and layout of the YAML do not count."""
        return hashlib.sha256(orjson.dumps(self.model_dump(), option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True)
class Demonstration:
    """An input, with why its label is the label."""

    values: Mapping[str, FieldValue]
    rationale: str
    label: str


@dataclass(frozen=True)
class Read:
    """A parsed output. `problem` is what keeps it from being a rationale and a label, as `llm_outputs` names it.

    `rationale` and `label` are what the rules give, also where there is a problem.
    """

    rationale: str
    label: str
    problem: str | None


@dataclass(frozen=True)
class Prompts:
    """Prompts that ask a teacher for a task's rationales."""

    task: Task
    file: PromptFile
    is_zero_shot: bool = False

    def completion(self, values: Mapping[str, FieldValue]) -> str:
        """A text to be continued by rationale and label. Raises FieldError."""
        if self.is_zero_shot:
            return f"{self.file.zero_shot.strip()}\n\n{self._question(values)}"
        shown = [f"{question} {answer}" for question, answer in self._shown]
        return "\n\n".join([*shown, self._question(values)])

    def messages(self, values: Mapping[str, FieldValue]) -> list[dict[str, str]]:
        """The same as a chat: each demonstration is a question and its answer. Raises FieldError."""
        if self.is_zero_shot:
            return [{"role": "user", "content": self.completion(values)}]
        turns = [{"role": "system", "content": self.file.few_shot.strip()}]
        for question, answer in self._shown:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*turns, {"role": "user", "content": self._question(values)}]

    def read(self, values: Mapping[str, FieldValue], output: str) -> Read:
        """Rationale and label of an output about these values.

        The rules are those for teachers that may begin with white space. They know no question; here a label must
        also be one of its choices, and an equation have a value.
        """
        parsed = parse_output(self.task.name, output, "gpt")
        problem: str | None = parsed.problem
        if problem in (None, "no_rationale"):
            candidates = self.task.candidates(values)
            if candidates is not None and parsed.label not in candidates:
                problem = "unknown_label"
            elif self.task.metric == "equal_value" and self.task.value(parsed.label) is None:
                problem = NO_VALUE
        return Read(parsed.rationale, parsed.label, problem)

    def check(self) -> None:
        """Raises PromptError where a demonstration lacks something, or its own output is not read as it was meant."""
        for number, given in enumerate(self.file.demonstrations, start=1):
            if missing := {"rationale", "label"} - given.keys():
                raise PromptError(f"demonstration {number} has no {' and no '.join(sorted(missing))}")
            one = _demonstration(given)
            try:
                candidates = self.task.candidates(one.values)
                if candidates is not None and one.label not in candidates:
                    raise PromptError(f"demonstration {number}: {one.label!r} is not one of {', '.join(candidates)}")
                self._question(one.values)
                read = self.read(one.values, self._answer(one))
            except FieldError as error:
                raise PromptError(f"demonstration {number}: {error}") from None
            except (KeyError, IndexError, AttributeError, ValueError) as error:
                raise PromptError(f"invalid braces in question or answer: {error}") from None
            if read != Read(one.rationale, one.label, None):
                raise PromptError(f"demonstration {number}: it is parsed as {read}")

    @cached_property
    def _shown(self) -> Sequence[tuple[str, str]]:
        """Question and answer of the demonstrations."""
        demonstrations = [_demonstration(one) for one in self.file.demonstrations]
        return [(self._question(one.values), self._answer(one)) for one in demonstrations]

    def _question(self, values: Mapping[str, FieldValue]) -> str:
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        return self.file.question.strip().format(input=self.task.input_text(values), **texts)

    def _answer(self, one: Demonstration) -> str:
        label = one.label
        if self.task.choices is not None:
            letter = LETTERS[tuple(one.values[self.task.choices]).index(label)]
            label = f"({letter}) {label}"
        return self.file.answer.format(rationale=one.rationale, label=label)


def load_prompts(task: Task, path: Path | None = None, *, is_zero_shot: bool = False) -> Prompts:
    """The prompts of a file, or ours for the task. Raises PromptError."""
    path = path or Path(__file__).with_name("demonstrations") / f"{PROMPT_FILES[task.name]}.yaml"
    try:
        file = PromptFile.model_validate(yaml.safe_load(path.read_bytes()))
        prompts = Prompts(task, file, is_zero_shot=is_zero_shot)
        prompts.check()
    except (OSError, yaml.YAMLError) as error:
        raise PromptError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise PromptError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except PromptError as error:
        raise PromptError(f"{path}: {error}") from None
    return prompts


def _demonstration(one: Mapping[str, str | tuple[str, ...]]) -> Demonstration:
    values = {name: value for name, value in one.items() if name not in ("rationale", "label")}
    return Demonstration(values, str(one["rationale"]), str(one["label"]))
