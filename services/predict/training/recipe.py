"""Recipes, examples and outcomes of trainings: plain values for the training and for tables of runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError

from services.core.refusals import message_of
from services.core.text_files import read_toml
from services.predict.data.rows import Example
from services.predict.tasks import (
    MAX_INPUT_TOKENS,
    MAX_NEW_TOKENS,
    MAX_TARGET_TOKENS,
    NO_PREFIXES,
    RELEASED_PREFIXES,
    Prefixes,
    Task,
    explained_input,
    joint_target,
)

# "standard" is finetuning with human labels and distillation with a teacher's (Eq. 2.1), "explained" has the teacher's
# rationale in its input (Eq. 2.2), "step-by-step" learns label and rationale as two tasks (Eq. 2.3), and "single-task"
# writes the rationale and then the label (Eq. 2.5).
Method = Literal["standard", "single-task", "step-by-step", "explained"]
METHODS: tuple[Method, ...] = get_args(Method)
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of a training, as docs/guide/distill.md explains them; the defaults are the published ones.

    `micro_batch_size` examples run at a time in each process, or if it is None, all of its part of the batch. Sequence
    limits include the end of sequence; `max_new_tokens` limits a label, but a single-task answer may have
    `max_target_tokens`. `average` is the share of the best step's weights (Wortsman et al. 2022). Raises ValueError.
    """

    method: Method = "step-by-step"
    alpha: float = 0.5
    prefixes: Prefixes = RELEASED_PREFIXES
    learning_rate: float = 5e-5
    batch_size: int = 64
    num_steps: int = 10_000
    evaluate_every: int = 250
    warmup_steps: int = 0
    micro_batch_size: int | None = None
    max_input_tokens: int = MAX_INPUT_TOKENS
    max_target_tokens: int = MAX_TARGET_TOKENS
    max_new_tokens: int = MAX_NEW_TOKENS
    max_evaluated: int | None = None
    seed: int = 0
    lora_rank: int | None = None
    precision: Precision = "float32"
    max_gradient_norm: float = 1.0
    gradient_checkpointing: bool = False
    average: float | None = None
    vocab_size: int = 4_096
    drop_empty: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is one of {', '.join(METHODS)}, not {self.method!r}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision is one of {', '.join(get_args(Precision))}, not {self.precision!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, not {self.alpha}")
        for name in ("learning_rate", "max_gradient_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a finite number above 0, not {getattr(self, name)}")
        if self.average is not None and not 0 < self.average <= 1:
            raise ValueError(f"average is a share above 0 and at most 1, not {self.average}")
        if self.average is not None and self.lora_rank is not None:
            raise ValueError("average is for all weights, and a lora_rank leaves most of them as they are: give one")
        at_least_one = ("batch_size", "num_steps", "evaluate_every", "micro_batch_size", "max_new_tokens")
        for name in (*at_least_one, "max_evaluated", "lora_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        for name in ("max_input_tokens", "max_target_tokens"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} is at least 2, a token and the end of sequence, not {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"seed is 0 or more, not {self.seed}")
        if not 0 <= self.warmup_steps < self.num_steps:
            raise ValueError(f"warmup_steps is 0 or more and below num_steps ({self.num_steps}): {self.warmup_steps}")

    @property
    def used_prefixes(self) -> Prefixes:
        """The prefixes of this method's inputs."""
        return self.prefixes if self.method == "step-by-step" else NO_PREFIXES

    @property
    def max_answer_tokens(self) -> int:
        """Maximum number of tokens generated for an answer that is compared with a label."""
        return self.max_target_tokens if self.method == "single-task" else self.max_new_tokens

    def input_text(self, example: Example) -> str:
        """Return the student's input when asked for a label.

        Raises ValueError for an example without a rationale if the method's inputs contain one.
        """
        if self.method != "explained":
            return self.used_prefixes.label + example.input
        if example.rationale is None:
            raise ValueError(f"there is no rationale to explain the input {example.input[:60]!r}")
        return explained_input(example.input, example.rationale)

    def label_text(self, example: Example) -> str:
        """Return the target for a label; a single-task answer without a rationale is the marker and the label."""
        if self.method == "single-task":
            return joint_target(example.rationale or "", example.label).lstrip()
        return example.label

    def rationale_texts(self, example: Example) -> tuple[str, str] | None:
        """The input that asks for a rationale, and its target; None if the method or the example has none.

        An empty rationale is learnt as such: the published runs keep outputs that their rules could not read.
        """
        if self.method != "step-by-step" or example.rationale is None:
            return None
        return self.used_prefixes.rationale + example.input, example.rationale


def recipe_keys(kind: type[Recipe] = Recipe) -> dict[str, Any]:
    """The types of the hyper-parameters that a file may set, by their keys; method and seed are a command's options."""
    hints = get_type_hints(kind)
    for name in ("method", "seed", "prefixes", "num_steps"):
        del hints[name]
    return hints | {"steps": int, "rationale_weight": float, "label_prefix": str, "rationale_prefix": str}


# Options of a training's command, and of a sweep's.
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--recipe",
        help=f"TOML file of hyperparameters: {', '.join(sorted(recipe_keys()))}.",
        show_default="as published",
    ),
]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps.", show_default=str(Recipe.num_steps))]
BatchSize = Annotated[
    int | None, typer.Option(help="Examples per step, over all processes.", show_default=str(Recipe.batch_size))
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Initial learning rate, decaying linearly to 0.", show_default=str(Recipe.learning_rate)),
]


def recipe_of(kind: type[Recipe], options: Mapping[str, Any]) -> Recipe:
    """Make the recipe of a command's options, which replace values of its TOML file, if there is one.

    Raises ValueError for unknown keys and invalid values, and BadFile.
    """
    path: Path | None = options["recipe"]
    values = {} if path is None else read_toml(path)
    hints = recipe_keys(kind)
    if unknown := sorted(values.keys() - hints.keys()):
        raise ValueError(f"recipe {path} has unknown keys: {', '.join(unknown)}; known are {', '.join(sorted(hints))}")
    for name, value in values.items():
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ValueError(f"recipe {path}: {name}: {message_of(error.errors()[0])}") from None
    given = {name: options.get(name) for name in ("method", "seed", "steps", "batch_size", "learning_rate")}
    values |= {name: value for name, value in given.items() if value is not None}
    if "rationale_weight" in values:
        if "alpha" in values:
            raise ValueError(f"recipe {path}: give alpha or rationale_weight, and not both")
        from services.predict.distillation import alpha_of  # which imports torch

        values["alpha"] = alpha_of(values.pop("rationale_weight"))
    if "steps" in values:
        values["num_steps"] = values.pop("steps")
    prefixes = Prefixes(
        values.pop("label_prefix", RELEASED_PREFIXES.label), values.pop("rationale_prefix", RELEASED_PREFIXES.rationale)
    )
    return kind(**values, prefixes=prefixes)


@dataclass(frozen=True)
class TeachingData:
    """Examples for training, for choosing the step, and for a single test of it.

    The confidence is fitted to `confided`, or without any to those for choosing.
    """

    task: Task
    train: list[Example]
    valid: list[Example]
    test: list[Example]
    confided: list[Example] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """After `step` steps: the mean training losses since the last evaluation, and the accuracy.

    `rationale_loss` is None if no rationale was learnt.
    """

    step: int
    loss: float
    label_loss: float
    rationale_loss: float | None
    validation_accuracy: float


@dataclass(frozen=True)
class Outcome:
    """A finished training: the first step with the greatest validation accuracy, and its test.

    `seconds` is the total of an interrupted training, without the work that was lost.
    """

    evaluations: tuple[Evaluation, ...]
    best_step: int
    validation_accuracy: float
    test_accuracy: float
    num_train: int
    num_parameters: int
    seconds: float
    num_test: int | None = None
