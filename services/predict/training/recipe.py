"""Recipes, examples and outcomes of trainings: plain values for the training and for tables of runs."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import typer
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from services.jobs.recipes import PublishedRecipe, chosen_recipe
from services.predict.data.rows import Row
from services.predict.tasks import (
    MAX_INPUT_TOKENS,
    MAX_NEW_TOKENS,
    MAX_TARGET_TOKENS,
    NO_PREFIXES,
    RELEASED_PREFIXES,
    Prefixes,
    explained_input,
    joint_target,
)

# "standard" is finetuning with human labels and distillation with a teacher's (Eq. 2.1), "explained" has the teacher's
# rationale in its input (Eq. 2.2), "step-by-step" learns label and rationale as two tasks (Eq. 2.3), and "single-task"
# writes the rationale and then the label (Eq. 2.5).
Method = Literal["standard", "single-task", "step-by-step", "explained"]
METHODS: tuple[Method, ...] = get_args(Method)
Number = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=2)]  # a token and the end of sequence
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Recipe(PublishedRecipe):
    """The hyper-parameters of a training, as docs/guide/distill.md explains them; the defaults are the published ones.

    `micro_batch_size` examples run at a time in each process, or if it is None, all of its part of the batch. Sequence
    limits include the end of sequence; `max_new_tokens` limits a label, but a single-task answer may have
    `max_target_tokens`. `average` is the share of the best step's weights (Wortsman et al. 2022). Raises ValueError.
    """

    method: Method = "step-by-step"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    rationale_weight: Annotated[float, Field(ge=0)] | None = None
    label_prefix: str = RELEASED_PREFIXES.label
    rationale_prefix: str = RELEASED_PREFIXES.rationale
    learning_rate: Positive = 5e-5
    batch_size: Number = 64
    steps: Number = 10_000
    evaluate_every: Number = 250
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    micro_batch_size: Number | None = None
    max_input_tokens: Length = MAX_INPUT_TOKENS
    max_target_tokens: Length = MAX_TARGET_TOKENS
    max_new_tokens: Number = MAX_NEW_TOKENS
    max_evaluated: Number | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    lora_rank: Number | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    max_gradient_norm: Positive = 1.0
    gradient_checkpointing: bool = False
    average: Annotated[float, Field(gt=0, le=1)] | None = None
    vocab_size: Number = 4_096
    drop_empty: bool = False

    package: ClassVar[str] = "services.predict.training"

    def __post_init__(self) -> None:
        if self.average is not None and self.lora_rank is not None:
            raise ValueError("average is for all weights, and a lora_rank leaves most of them as they are: give one")
        if self.rationale_weight is not None and self.alpha != type(self).alpha:
            raise ValueError("give alpha or rationale_weight, and not both")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps must be below steps ({self.steps}), not {self.warmup_steps}")

    @property
    def used_prefixes(self) -> Prefixes:
        """The prefixes of this method's inputs."""
        is_multi_task = self.method == "step-by-step"
        return Prefixes(self.label_prefix, self.rationale_prefix) if is_multi_task else NO_PREFIXES

    @property
    def max_answer_tokens(self) -> int:
        """Maximum number of tokens generated for an answer that is compared with a label."""
        return self.max_target_tokens if self.method == "single-task" else self.max_new_tokens

    def input_text(self, example: Row) -> str:
        """Return the student's input when asked for a label. Raises ValueError."""
        if self.method != "explained":
            return self.used_prefixes.label + example.input
        if example.rationale is None:
            raise ValueError(f"there is no rationale to explain the input {example.input[:60]!r}")
        return explained_input(example.input, example.rationale)

    def label_text(self, example: Row) -> str:
        """Return the target for a label; a single-task answer without a rationale is the marker and the label."""
        if self.method == "single-task":
            return joint_target(example.rationale or "", example.label).lstrip()
        return example.label

    def rationale_texts(self, example: Row) -> tuple[str, str] | None:
        """The input that asks for a rationale, and its target; None if the method or the example has none.

        An empty rationale is learnt as such: the published runs keep outputs that their rules could not read.
        """
        if self.method != "step-by-step" or example.rationale is None:
            return None
        return self.used_prefixes.rationale + example.input, example.rationale


# Options of a training's command, and of a sweep's.
RecipeFile = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help=f"TOML file of hyperparameters: {', '.join(sorted(Recipe.known_keys() - {'method', 'seed'}))}.",
        show_default="as published",
    ),
]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps.", show_default=str(Recipe.steps))]
BatchSize = Annotated[
    int | None, typer.Option(help="Examples per step, over all processes.", show_default=str(Recipe.batch_size))
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Initial learning rate, decaying linearly to 0.", show_default=str(Recipe.learning_rate)),
]


RecipeT = TypeVar("RecipeT", bound=Recipe)


def recipe_of(kind: type[RecipeT], options: Mapping[str, Any]) -> RecipeT:
    """Make the recipe of a command's options, which replace values of its TOML file. Raises BadParameter."""
    names = ("method", "seed", "steps", "batch_size", "learning_rate")
    return chosen_recipe(kind, options["recipe"], None, {name: options.get(name) for name in names})


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
    num_test: int
