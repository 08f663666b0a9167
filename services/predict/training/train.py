"""`fovea train distill`: teach a T5 a task with a teacher's rationales, and publish it.

Running the same command again continues an interrupted training. With the same options, `accelerate launch -m
services.predict.training.train` or `torchrun -m services.predict.training.train` divides the work among processes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from accelerate import PartialState
from rich.console import Console

from services.core.store.errors import StoreError
from services.core.store.manifest import MAX_NAME_LENGTH, NAME_PATTERN
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.inquiry.record_file import OutputError
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line, output_folder
from services.predict.data.rows import BadData, LabelSource
from services.predict.data.task_file import read_task_file
from services.predict.training.initialisation import SHAPES
from services.predict.training.loop import CHECKPOINT
from services.predict.training.recipe import (
    BatchSize,
    LearningRate,
    Method,
    Outcome,
    Recipe,
    RecipeFile,
    Steps,
    read_recipe,
)
from services.predict.training.runs import StudentRun, run_student
from services.predict.training.sources import DataSource

KIND = "t5-student"
EXIT_FAILED = 1
# The standard error of an accuracy on as many rows is up to 5 percentage points.
ENOUGH_TEST_ROWS = 100

app = command_line()

TaskName = Literal["esnli", "anli1", "cqa", "svamp"]
Output = Annotated[
    Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the result and the resume state.")
]
MethodName = Annotated[Method, typer.Option(help="Training method. explained: the rationale is part of the input.")]
Seed = Annotated[int, typer.Option(help="Seed of weights, order, dropout and the fraction of the data.")]
Name = Annotated[str | None, typer.Option(help="Name in the model store.", show_default="the task's")]
Licence = Annotated[str | None, typer.Option(help="Licence of the published checkpoint.")]
Statement = Annotated[
    str | None, typer.Option(help="What the student has seen and knows, in a sentence for its users.")
]
Publish = Annotated[bool, typer.Option(help="Publish to the model store when done.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the published data sets; for your own task a file of JSON lines, or a folder with train.jsonl,"
        " valid.jsonl and test.jsonl."
    ),
]
Rationales = Annotated[
    Path | None, typer.Option(help="Output of `fovea distill extract`, a file or a folder.", show_default="PaLM's")
]


@app.command()
@interruptible(resumable)
def distill(
    *,
    task: Annotated[TaskName | None, typer.Argument(help="Published data set.", show_default=False)] = None,
    task_file: Annotated[
        Path | None, typer.Option("--task", help="Your own task instead: a YAML or JSON file.", show_default=False)
    ] = None,
    output: Output,
    model: Annotated[str, typer.Option(help=f"A Hugging Face T5 directory; from scratch: {', '.join(SHAPES)}.")],
    data: Data = None,
    rationales: Rationales = None,
    labels: Annotated[LabelSource, typer.Option(help="Labels to learn: those of humans, or the teacher's.")] = "human",
    fraction: Annotated[float, typer.Option(help="Fraction of the training rows, chosen by the seed.")] = 1.0,
    augment: Annotated[bool, typer.Option("--augment", help="Add ASDiv's problems to svamp.")] = False,
    method: MethodName = Recipe.method,
    recipe: RecipeFile = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = 0,
    name: Name = None,
    licence: Licence = None,
    statement: Statement = None,
    publish: Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a student, choose its best step on validation examples, test it once, and publish it.

    The defaults are the published hyperparameters. Run the same command again to continue an interrupted run.
    """
    options: dict[str, Any] = dict(locals())
    with one_line_errors("fovea train distill"):
        if (task is None) == (task_file is None):
            raise typer.BadParameter("name a task, or give a file with --task, and not both")
        own = None if task_file is None else read_task_file(task_file).own()
        source = DataSource(own.task.name if own else str(task), data, rationales, labels, fraction, augment, own=own)
        train_and_publish(StudentRun(source, model, recipe_of(Recipe, options)), options)


def recipe_of(kind: type[Recipe], options: Mapping[str, Any]) -> Recipe:
    """Make the recipe of a command's options, some of which replace values of its file. Raises ValueError."""
    given = {name: options[name] for name in ("method", "seed", "steps", "batch_size", "learning_rate")}
    return read_recipe(kind, options["recipe"], given)


def train_and_publish(run: StudentRun, options: Mapping[str, Any], num_workers: int = 0) -> None:
    """Train a student, or continue its training, and publish it according to the command's options.

    Raises ValueError, BadData, OutputError, StoreError and OSError.
    """
    name, publish = options["name"] or run.data.task, options["publish"]
    if NAME_PATTERN.fullmatch(name) is None:
        raise ValueError(f"name consists of a-z, 0-9, '.', '_' and '-', at most {MAX_NAME_LENGTH}, not {name!r}")
    if publish and run.recipe.method == "explained":
        raise ValueError("a student of the method explained can't be served: give --no-publish")
    check_publication(name, options["store_url"], is_wanted=publish)
    console = Console(stderr=True, highlight=False)

    def tell(line: str) -> None:
        if PartialState().is_main_process:
            console.print(line, markup=False, soft_wrap=True)

    outcome = run_student(run, options["output"], tell, num_workers=num_workers)
    if PartialState().is_main_process:
        _finish(run, outcome, name, options)
    if outcome.num_test is not None and outcome.num_test < ENOUGH_TEST_ROWS:
        few = f"{outcome.num_test} test rows: on fewer than {ENOUGH_TEST_ROWS}, an accuracy says little."
        tell(f"The test accuracy is that of {few}")


def _finish(run: StudentRun, outcome: Outcome, name: str, options: Mapping[str, Any]) -> None:
    base = Path(run.model).resolve().name if Path(run.model).is_dir() else None
    metrics = {key: value for key, value in asdict(outcome).items() if key not in ("evaluations", "seconds")}
    hyper = asdict(run.recipe)
    hyper |= {"steps": hyper.pop("num_steps"), **{f"{key}_prefix": text for key, text in hyper.pop("prefixes").items()}}
    kept = {**options, **hyper, "task": run.data.task, "base": base}
    del kept["recipe"]
    publish_trained(options["output"] / CHECKPOINT, name, KIND, kept, metrics)


@contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """Print an error as one line, with the option's name if it concerns one."""
    try:
        yield
    except (BadData, OutputError, StoreError, ValueError, OSError) as error:
        first, _, rest = str(error).partition(" ")
        Console(stderr=True, highlight=False).print(
            f"{command}: {_OPTIONS.get(first, first)} {rest}", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_FAILED) from None


_OPTIONS = {"num_steps": "--steps", "batch_size": "--batch-size", "learning_rate": "--learning-rate"} | {
    name: f"--{name}" for name in ("seed", "name", "fraction", "model")
}


if __name__ == "__main__":
    app()
