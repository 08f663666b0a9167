"""`python -m starters train distill`: teach a T5 from generated rows, whose words may have labels, and publish it."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.predict.data.rows import TeachingData
from services.predict.training import initialisation
from services.predict.training.initialisation import build_tokenizer
from services.predict.training.loop import Teaching
from services.predict.training.recipe import BatchSize, LearningRate, Recipe, RecipeFile, Steps, recipe_of
from services.predict.training.train import (
    Licence,
    MethodName,
    Name,
    Output,
    Publish,
    Seed,
    Statement,
    StudentRun,
    one_line_errors,
    train_and_publish,
    training_texts,
)
from starters.predict.generated import GENERATED_TASKS, GeneratedSource
from starters.predict.matching_heads import SHAPES, add_matching_heads, create_matching_t5
from starters.predict.probes import ProbedRecipe, ProbedTeaching

app = command_line()


@dataclass(frozen=True)
class StarterRun(StudentRun):
    """A training that may have probes, of a student that may begin with heads that match equal tokens.

    `model` is also one of SHAPES. A student of a directory may get `matching_heads` more such heads. Raises ValueError
    for new heads of a student from scratch.
    """

    matching_heads: int | None = None
    teaching: ClassVar[type[Teaching]] = ProbedTeaching

    def __post_init__(self) -> None:
        super().__post_init__()
        is_new = self.model in SHAPES or self.model in initialisation.SHAPES
        if self.matching_heads is not None and (self.matching_heads < 1 or is_new):
            raise ValueError(f"matching_heads is at least 1, and for students of a directory: {self.matching_heads}")

    def load(self, data: TeachingData) -> tuple[Any, Any]:
        """The model before training, float32 on the CPU, and its tokenizer."""
        if self.model in SHAPES:
            tokenizer = build_tokenizer(training_texts(data, self.recipe), self.recipe.vocab_size)
            return create_matching_t5(self.model, len(tokenizer), self.recipe.seed), tokenizer
        model, tokenizer = super().load(data)
        if self.matching_heads is not None:
            model = add_matching_heads(model, self.matching_heads, self.recipe.seed)
        return model, tokenizer


@app.command()
@interruptible(resumable)
def distill(
    *,
    task: Annotated[str, typer.Argument(help=f"Generated data: {', '.join(GENERATED_TASKS)}.")],
    output: Output,
    model: Annotated[
        str,
        typer.Option(
            help=f"A Hugging Face T5 directory; from scratch: {', '.join([*SHAPES, *initialisation.SHAPES])}."
        ),
    ],
    num_train: Annotated[int, typer.Option(min=1, help="Number of training rows.")] = GeneratedSource.num_train,
    matching_heads: Annotated[
        int | None, typer.Option(help="Give a student of a directory more heads, which begin by matching equal tokens.")
    ] = None,
    method: MethodName = Recipe.method,
    recipe: RecipeFile = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = 0,
    num_workers: Annotated[int, typer.Option(min=0, help="Number of processes that tokenize batches.")] = 0,
    name: Name = None,
    licence: Licence = None,
    statement: Statement = None,
    publish: Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a student from generated rows, with the hyperparameters of `fovea train distill` and `probe_weight`."""
    options: dict[str, Any] = dict(locals())
    with one_line_errors("python -m starters train distill"):
        source = GeneratedSource(task, num_train=num_train)
        run = StarterRun(source, model, recipe_of(ProbedRecipe, options), matching_heads)
        train_and_publish(run, options, num_workers)


if __name__ == "__main__":
    app()
