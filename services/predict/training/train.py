"""`fovea train distill`: teach a T5 a task with a teacher's rationales, and publish it.

Running the same command again continues an interrupted training. With the same options, `accelerate launch -m
services.predict.training.train` or `torchrun -m services.predict.training.train` divides the work among processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from accelerate import PartialState
from rich.console import Console

from services.core.store.errors import StoreError
from services.core.store.manifest import MAX_NAME_LENGTH, NAME_PATTERN
from services.jobs.inquiry.record_file import OutputError
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line, output_folder
from services.jobs.publication import check_publication, publish_trained
from services.predict.data.rows import BadData, LabelSource
from services.predict.data.task_file import OwnTask, read_task_file
from services.predict.distillation import alpha_of
from services.predict.tasks import RELEASED_PREFIXES, Prefixes
from services.predict.training import options as option
from services.predict.training.loop import CHECKPOINT
from services.predict.training.recipe import Method, Outcome, Recipe
from services.predict.training.runs import SHAPES, DataSource, StudentRun, run_student

KIND = "t5-student"
EXIT_FAILED = 1
# The standard error of an accuracy on as many rows is up to 5 percentage points.
ENOUGH_TEST_ROWS = 100

app = command_line()

TaskName = Literal[
    "esnli",
    "anli1",
    "cqa",
    "svamp",
    "word-problems",
    "inferences",
    "deductions",
    "denoising",
    "everyday-problems",
    "everyday-inferences",
    "word-inferences",
]


@app.command()
@interruptible(resumable)
def distill(
    *,
    task: Annotated[
        TaskName | None, typer.Argument(help="Task: a published data set, or generated data.", show_default=False)
    ] = None,
    task_file: Annotated[
        Path | None, typer.Option("--task", help="Your own task instead: a YAML or JSON file.", show_default=False)
    ] = None,
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the result and the resume state.")
    ],
    model: Annotated[str, typer.Option(help=f"A Hugging Face T5 directory; from scratch: {', '.join(SHAPES)}.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the published data sets; for your own task a file of JSON lines, or a folder with"
            " train.jsonl, valid.jsonl and test.jsonl."
        ),
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="Share of your own task's rows held out as test rows, without a test.jsonl.")
    ] = OwnTask.test_share,
    split_seed: Annotated[int, typer.Option(help="Seed that chooses these rows.")] = OwnTask.split_seed,
    rationales: Annotated[
        Path | None, typer.Option(help="Output of `fovea distill extract`, a file or a folder.", show_default="PaLM's")
    ] = None,
    labels: Annotated[LabelSource, typer.Option(help="Labels to learn: those of humans, or the teacher's.")] = "human",
    fraction: Annotated[float, typer.Option(help="Fraction of the training rows, chosen by the seed.")] = 1.0,
    augment: Annotated[bool, typer.Option("--augment", help="Add ASDiv's problems to svamp.")] = False,
    drop_empty: option.DropEmpty = False,
    num_train: option.NumTrain = DataSource.num_train,
    method: Annotated[
        Method, typer.Option(help="Training method. explained: the rationale is part of the input.")
    ] = Recipe.method,
    alpha: option.Alpha = None,
    rationale_weight: option.RationaleWeight = None,
    label_prefix: option.LabelPrefix = RELEASED_PREFIXES.label,
    rationale_prefix: option.RationalePrefix = RELEASED_PREFIXES.rationale,
    learning_rate: option.LearningRate = Recipe.learning_rate,
    batch_size: Annotated[int, typer.Option(help="Examples per step, over all processes.")] = Recipe.batch_size,
    steps: option.Steps = Recipe.num_steps,
    evaluate_every: option.EvaluateEvery = Recipe.evaluate_every,
    warmup_steps: option.WarmupSteps = Recipe.warmup_steps,
    micro_batch_size: option.MicroBatchSize = None,
    max_input_tokens: option.MaxInputTokens = Recipe.max_input_tokens,
    max_target_tokens: option.MaxTargetTokens = Recipe.max_target_tokens,
    max_new_tokens: option.MaxNewTokens = Recipe.max_new_tokens,
    max_evaluated: option.MaxEvaluated = None,
    max_gradient_norm: option.MaxGradientNorm = Recipe.max_gradient_norm,
    seed: Annotated[int, typer.Option(help="Seed of weights, order, dropout and the fraction of the data.")] = 0,
    lora_rank: option.LoraRank = None,
    precision: option.Precision = "float32",
    gradient_checkpointing: option.GradientCheckpointing = False,
    num_workers: option.NumWorkers = 0,
    probe_weight: option.ProbeWeight = None,
    average: option.Average = None,
    vocab_size: Annotated[
        int, typer.Option(help="Vocabulary size of a student trained from scratch.")
    ] = StudentRun.vocab_size,
    matching_heads: Annotated[
        int | None, typer.Option(help="Give a student of a directory more heads, which begin by matching equal tokens.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in the model store.", show_default="the task's")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the published checkpoint.")] = None,
    statement: Annotated[
        str | None, typer.Option(help="What the student has seen and knows, in a sentence for its users.")
    ] = None,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a student, choose its best step on validation examples, test it once, and publish it.

    The defaults are the published hyperparameters. Run the same command again to continue an interrupted run.
    """
    options: dict[str, Any] = dict(locals())
    console = Console(stderr=True, highlight=False)
    with _one_line_errors():
        run = _run(options)
        if publish and method == "explained":
            raise ValueError("a student of the method explained can't be served: give --no-publish")
        check_publication(name or run.data.task, store_url, is_wanted=publish)
        outcome = run_student(run, output, lambda line: _tell(console, line), num_workers=num_workers)
        if PartialState().is_main_process:
            _finish(run, outcome, options)
            if outcome.num_test is not None and outcome.num_test < ENOUGH_TEST_ROWS:
                few = f"{outcome.num_test} test rows: on fewer than {ENOUGH_TEST_ROWS}, an accuracy says little."
                _tell(console, f"The test accuracy is that of {few}")


def _run(options: dict[str, Any]) -> StudentRun:
    """Make the run that the options describe. Raises ValueError."""
    alpha, weight = options["alpha"], options["rationale_weight"]
    if alpha is not None and weight is not None:
        raise ValueError("give --alpha or --rationale-weight, and not both")
    if options["name"] is not None and NAME_PATTERN.fullmatch(options["name"]) is None:
        raise ValueError(
            f"name consists of a-z, 0-9, '.', '_' and '-', at most {MAX_NAME_LENGTH}, not {options['name']!r}"
        )
    values = {name: options[name] for name in Recipe.__dataclass_fields__ if name in options}
    values["alpha"] = alpha if alpha is not None else Recipe.alpha if weight is None else alpha_of(weight)
    prefixes = Prefixes(options["label_prefix"], options["rationale_prefix"])
    own = _own_task(options)
    source = DataSource(
        own.task.name if own else options["task"],
        options["data"],
        options["rationales"],
        options["labels"],
        options["fraction"],
        options["augment"],
        options["drop_empty"],
        options["num_train"],
        own=own,
    )
    recipe = Recipe(**values, num_steps=options["steps"], prefixes=prefixes)
    return StudentRun(source, options["model"], recipe, options["vocab_size"], options["matching_heads"])


def _own_task(options: dict[str, Any]) -> OwnTask | None:
    """The task of --task. Raises BadParameter unless exactly one task is named, BadData, and ValueError."""
    split = options["test_share"], options["split_seed"]
    if (options["task"] is None) == (options["task_file"] is None):
        raise typer.BadParameter("name a task, or give a file with --task, and not both")
    if options["task_file"] is None:
        if split != (OwnTask.test_share, OwnTask.split_seed):
            raise ValueError("test_share and split_seed are for --task; the splits of other tasks are fixed")
        return None
    file = read_task_file(options["task_file"])
    return OwnTask(file.to_task(), file.label, file.rationale, *split)


def _tell(console: Console, line: str) -> None:
    """Print a line, only on the main process."""
    if PartialState().is_main_process:
        console.print(line, markup=False, soft_wrap=True)


def _finish(run: StudentRun, outcome: Outcome, options: dict[str, Any]) -> None:
    base = None if run.model in SHAPES else Path(run.model).resolve().name
    metrics = {key: value for key, value in asdict(outcome).items() if key not in ("evaluations", "seconds")}
    kept = {**options, "task": run.data.task, "alpha": run.recipe.alpha, "base": base}
    publish_trained(options["output"] / CHECKPOINT, options["name"] or run.data.task, KIND, kept, metrics)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Print an error as one line, with the option's name if it concerns one."""
    try:
        yield
    except (BadData, OutputError, StoreError, ValueError, OSError) as error:
        first, _, rest = str(error).partition(" ")
        option = _OPTIONS.get(first, first)
        Console(stderr=True, highlight=False).print(
            f"fovea train distill: {option} {rest}", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_FAILED) from None


_NAMED = (
    *Recipe.__dataclass_fields__,
    "name",
    "fraction",
    "model",
    "vocab_size",
    "matching_heads",
    "test_share",
    "split_seed",
)
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMED} | {"num_steps": "--steps"}


if __name__ == "__main__":
    app()
