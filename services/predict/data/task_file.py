"""Task files: a user's own task, the keys of the labels in its rows and the prompt for a teacher, as YAML or JSON.

    task: tickets
    fields: [subject, body]
    labels: [billing, bug]

A checkpoint trained for the task contains what a service needs to know about it, so only jobs read these files.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from services.core.refusals import complaint_about
from services.core.store.manifest import MAX_NAME_LENGTH, NAME_PATTERN
from services.core.text_files import BadFile, read_json, read_text
from services.predict.model.task_description import FIELD_NAME, StrictFile, TaskFields
from services.predict.tasks import TASKS, Task

# The limit of a request to the service.
MAX_FIELDS = 64

GivenDemonstration = dict[str, str | tuple[str, ...]]


class OwnPrompt(StrictFile):
    """Instruction to a teacher, and inputs with their `rationale` and `label` as demonstrations."""

    instruction: Annotated[str, Field(min_length=1)]
    demonstrations: tuple[GivenDemonstration, ...] = ()


class TaskFile(TaskFields):
    """A user's own task.

    `label` and `rationale` are the keys of a row that hold its label and, where somebody has written one, the reason
    for it. `prompt` is for `fovea distill extract` alone.
    """

    label: str = "label"
    rationale: str = "rationale"
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    split_seed: Annotated[int, Field(ge=0)] = 0
    prompt: OwnPrompt | None = None

    @field_validator("labels", "fields", mode="before")
    @classmethod
    def _are_texts(cls, given: Any) -> Any:
        for one in given if isinstance(given, list) else ():
            if isinstance(one, bool | int | float):
                raise ValueError(f"{json.dumps(one)} is not a text; put it into quotes, as in YAML yes and no")
            if isinstance(one, str) and (not one or one != one.strip()):
                raise ValueError(f"{one!r} is empty, or begins or ends with white space")
        return given

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if NAME_PATTERN.fullmatch(self.task) is None:
            raise ValueError(f"task: its name consists of a-z, 0-9, '.', '_' and '-', at most {MAX_NAME_LENGTH}")
        if self.task in TASKS:
            raise ValueError(f"task: {self.task} is the name of a task that is built in")
        if self.label == self.rationale:
            raise ValueError(f"rationale: {self.rationale!r} is the key of the label")
        if len(self.fields) > MAX_FIELDS:
            raise ValueError(f"fields: at most {MAX_FIELDS}, not {len(self.fields)}")
        for name in self.fields:
            if FIELD_NAME.fullmatch(name) is None:
                raise ValueError(f"fields: {name!r} must be letters, digits, '_', '-' and spaces after a letter")
            if name in (self.label, self.rationale):
                raise ValueError(f"fields: {name!r} is the label or the rationale, which the student is to find")
            if name in ("label", "rationale"):
                raise ValueError(f"fields: {name!r} is a key of demonstrations; rename it in the rows")
        if self.labels is not None and len(self.labels) < 2:
            raise ValueError("labels: at least 2; leave them out where the answer is free text")
        if self.metric == "equal_value" and (self.labels or self.choices):
            raise ValueError("metric: equal_value is for equations, which are free text, not labels or choices")
        if self.template is not None and "separator" in self.model_fields_set:
            raise ValueError("separator: a template needs none")
        return self

    def own(self) -> "OwnTask":
        """Return the task with what a training needs of its rows."""
        return OwnTask(self.to_task(), self.label, self.rationale, self.test_share, self.split_seed)


@dataclass(frozen=True)
class OwnTask:
    """A user's own task for a training: the keys of labels and rationales in its rows, and how the rows are split.

    Without a file of their own, the test rows are `test_share` of the rows, chosen by `split_seed`.
    """

    task: Task
    label: str
    rationale: str
    test_share: float = 0.1
    split_seed: int = 0


def read_task_file(path: Path) -> TaskFile:
    """Read and check a task file: JSON if its name ends in .json, else YAML. Raises BadFile."""
    values = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(values, dict):
        raise BadFile(f"{path}: not a task, which has the keys {', '.join(TaskFile.model_fields)}")
    try:
        return TaskFile.model_validate(values)
    except ValidationError as error:
        raise BadFile(f"{path}: {complaint_about(error, values, 'the file')}") from None


def read_yaml(path: Path) -> Any:
    """Parse a whole file, of which no object repeats a key. Raises BadFile."""
    try:
        loader = _UniqueKeysLoader(read_text(path))
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadFile(f"{path}{f':{mark.line + 1}' if mark else ''}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise BadFile(f"{path}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BadFile(f"{path}: nested too deeply") from None


class _UniqueKeysLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} occurs twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)
