"""`fovea train distill`: teach a T5 a task with a teacher's rationales, and publish it.

The same command, given again, goes on where it was interrupted. `accelerate launch -m services.predict.training.train`
or `torchrun -m services.predict.training.train`, with the same options, shares the work out among several processes.
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
from services.jobs.options import StoreUrl, output_folder
from services.jobs.publication import check_publication, publish_trained
from services.predict.data.rationale_file import OutputError
from services.predict.data.rows import BadData, LabelSource
from services.predict.distillation import alpha_of
from services.predict.tasks import RELEASED_PREFIXES, Prefixes
from services.predict.training.loop import CHECKPOINT
from services.predict.training.recipe import Method, Outcome, Precision, Recipe
from services.predict.training.runs import SHAPES, DataSource, StudentRun, run_student

KIND = "t5-student"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TaskName = Literal["esnli", "anli1", "cqa", "svamp", "word-problems", "inferences", "deductions", "denoising"]


@app.command()
def distill(
    task: Annotated[TaskName, typer.Argument(help="Task: a published data set, or generated data.")],
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the result and the resume state.")
    ],
    model: Annotated[str, typer.Option(help=f"A Hugging Face T5 directory; from scratch: {', '.join(SHAPES)}.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the published data sets.")] = None,
    rationales: Annotated[
        Path | None, typer.Option(help="Output of `fovea distill extract`, a file or a folder.", show_default="PaLM's")
    ] = None,
    labels: Annotated[LabelSource, typer.Option(help="Labels to learn: those of humans, or the teacher's.")] = "human",
    fraction: Annotated[float, typer.Option(help="Fraction of the training rows, chosen by the seed.")] = 1.0,
    augment: Annotated[bool, typer.Option("--augment", help="Add ASDiv's problems to svamp.")] = False,
    drop_empty: Annotated[bool, typer.Option("--drop-empty", help="Drop outputs that could not be parsed.")] = False,
    num_train: Annotated[int, typer.Option(min=1, help="Number of generated training rows.")] = DataSource.num_train,
    method: Annotated[
        Method, typer.Option(help="Training method. explained: the rationale is part of the input.")
    ] = Recipe.method,
    alpha: Annotated[float | None, typer.Option(help="Weight of the labels' loss.", show_default="0.5")] = None,
    rationale_weight: Annotated[
        float | None, typer.Option(help="λ, the weight of rationales, instead of --alpha.")
    ] = None,
    label_prefix: Annotated[str, typer.Option(help="Prefix of inputs for labels.")] = RELEASED_PREFIXES.label,
    rationale_prefix: Annotated[
        str, typer.Option(help="Prefix of inputs for rationales.")
    ] = RELEASED_PREFIXES.rationale,
    learning_rate: Annotated[
        float, typer.Option(help="Initial learning rate, decaying linearly to 0.")
    ] = Recipe.learning_rate,
    batch_size: Annotated[int, typer.Option(help="Examples per step, over all processes.")] = Recipe.batch_size,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = Recipe.num_steps,
    evaluate_every: Annotated[
        int, typer.Option(help="Steps between evaluations and resume states.")
    ] = Recipe.evaluate_every,
    warmup_steps: Annotated[int, typer.Option(help="Steps of learning-rate warm-up.")] = Recipe.warmup_steps,
    micro_batch_size: Annotated[int | None, typer.Option(help="Examples per forward pass.")] = None,
    max_input_tokens: Annotated[int, typer.Option(help="Longer inputs are truncated.")] = Recipe.max_input_tokens,
    max_target_tokens: Annotated[int, typer.Option(help="Longer targets are truncated.")] = Recipe.max_target_tokens,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of a generated label.")] = Recipe.max_new_tokens,
    max_evaluated: Annotated[int | None, typer.Option(help="Maximum number of validation examples.")] = None,
    max_gradient_norm: Annotated[float, typer.Option(help="Maximum norm of the gradient.")] = Recipe.max_gradient_norm,
    seed: Annotated[int, typer.Option(help="Seed of weights, order, dropout and the fraction of the data.")] = 0,
    lora_rank: Annotated[
        int | None, typer.Option(help="Train LoRA matrices of this rank on the attention weights.")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="Precision of the computation; weights are float32.")
    ] = "float32",
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Recompute activations to save memory.")
    ] = False,
    vocab_size: Annotated[
        int, typer.Option(help="Vocabulary size of a student trained from scratch.")
    ] = StudentRun.vocab_size,
    name: Annotated[str | None, typer.Option(help="Name in the model store.", show_default="the task's")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the published checkpoint.")] = None,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a student, choose its best step on validation examples, test it once, and publish it.

    The defaults are the published hyperparameters. Run the same command again to continue an interrupted run.
    """
    options: dict[str, Any] = dict(locals())
    console = Console(highlight=False)
    with _one_line_errors():
        run = _run(options)
        if publish and method == "explained":
            raise ValueError("a student of the method explained can't be served: give --no-publish")
        check_publication(name or task, store_url, is_wanted=publish)
        outcome = run_student(run, output, lambda line: _tell(console, line))
        if PartialState().is_main_process:
            _finish(run, outcome, options)


def _run(options: dict[str, Any]) -> StudentRun:
    """The run that the options describe. Raises ValueError."""
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
    source = DataSource(
        options["task"],
        options["data"],
        options["rationales"],
        options["labels"],
        options["fraction"],
        options["augment"],
        options["drop_empty"],
        options["num_train"],
    )
    recipe = Recipe(**values, num_steps=options["steps"], prefixes=prefixes)
    return StudentRun(source, options["model"], recipe, options["vocab_size"])


def _tell(console: Console, line: str) -> None:
    """Print a line, on the main process alone."""
    if PartialState().is_main_process:
        console.print(line, markup=False, soft_wrap=True)


def _finish(run: StudentRun, outcome: Outcome, options: dict[str, Any]) -> None:
    base = None if run.model in SHAPES else Path(run.model).resolve().name
    metrics = {key: value for key, value in asdict(outcome).items() if key not in ("evaluations", "seconds")}
    kept = {**options, "alpha": run.recipe.alpha, "base": base}
    publish_trained(options["output"] / CHECKPOINT, options["name"] or run.data.task, KIND, kept, metrics)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Print an error as one line, with the option's name where it is about one."""
    try:
        yield
    except (BadData, OutputError, StoreError, ValueError, OSError) as error:
        first, _, rest = str(error).partition(" ")
        option = _OPTIONS.get(first, first)
        Console(stderr=True, highlight=False).print(
            f"fovea train distill: {option} {rest}", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. Run the same command to continue from the last state.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


_NAMED = (*Recipe.__dataclass_fields__, "name", "fraction", "model", "vocab_size")
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMED} | {"num_steps": "--steps"}


if __name__ == "__main__":
    app()
