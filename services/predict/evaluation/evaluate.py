"""`fovea evaluate distill …`: students by the dissertation's protocol (chapter 2), with its tables and figures."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.text_files import BadFile
from services.jobs.interruption import EXIT_FAILED, one_line_errors
from services.jobs.options import among, command_line, output_folder, parse_numbers, results_file, split
from services.jobs.plots import draw
from services.jobs.tables import MISSING, Table
from services.predict.data.inputs import few_shot_rows
from services.predict.data.published import Split, read_outputs, read_rows
from services.predict.data.rows import LabelSource, Row, join
from services.predict.data.task_file import read_task_file
from services.predict.evaluation.results import FEW_SHOT_COT, RESULT_FILES, Result, figures, make_tables, print_tables
from services.predict.evaluation.sweep import (
    PALM,
    Cell,
    Grid,
    Sweep,
    Teacher,
    collect,
    path_of_task,
    run_shown,
)
from services.predict.tasks import SVAMP, Task
from services.predict.training import recipe as option
from services.predict.training.recipe import METHODS, Recipe, recipe_of
from services.predict.training.sources import PUBLISHED_TASKS, DataSource, count_rows

RESULTS, TABLES = "results.json", "tables.md"
TASK_FILE_SUFFIXES = (".yaml", ".yml", ".json")
RELEASED = "released"
LABEL_SOURCES: tuple[LabelSource, ...] = get_args(LabelSource)

app = command_line(no_args_is_help=True)


@app.callback()
def choose_job() -> None:
    """Evaluate distilled students by the dissertation's protocol."""


Output = Annotated[Path, typer.Option(callback=output_folder, help="Folder of a new or existing sweep.")]
Models = Annotated[
    str,
    typer.Option(help="T5 folders, or tiny, mini, small, base, … to train from scratch, comma-separated."),
]
Fractions = Annotated[str, typer.Option(help="Fractions of the training data.")]
Methods = Annotated[str, typer.Option(help=f"Among {', '.join(METHODS)}.")]
Seeds = Annotated[str, typer.Option(help="Seeds of training and of the fractions.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of students trained at a time, each in its own process.")]
ScoresOnly = Annotated[bool, typer.Option("--scores-only", help="Do not keep the students' checkpoints.")]
Save = Annotated[
    Path | None, typer.Option(callback=results_file(RESULT_FILES.load), help="File to add the results to.")
]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="Only report the existing results.")]


@app.command()
def sweep(
    output: Output,
    tasks: Annotated[
        str, typer.Option(help="esnli, anli1, cqa, svamp or task files (.yaml, .json), comma-separated.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="Folder of the published data sets, or rows of your own task.")
    ] = None,
    models: Models = "mini",
    fractions: Fractions = "1,0.5,0.25,0.125",
    methods: Methods = "standard,step-by-step",
    labels: Annotated[str, typer.Option(help="Labels to learn: human, llm or human,llm.")] = "human",
    seeds: Seeds = "0,1,2,3",
    rationales: Annotated[
        list[str] | None,
        typer.Option(
            help="Teacher: NAME=PATH, where PATH is an output of `fovea distill extract` or a folder with one file or "
            "folder for each task; or released for PaLM's outputs. Repeatable.",
            show_default=RELEASED,
        ),
    ] = None,
    few_shot_cot: Annotated[
        list[str] | None,
        typer.Option(
            help="Teacher to draw beside the students: NAME=PATH, where PATH is its outputs of the test rows by `fovea "
            "distill extract --split test` or a folder with one file for each task. Repeatable.",
            show_default="PaLM, where its outputs are there",
        ),
    ] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Also train svamp with ASDiv's problems.")] = False,
    recipe: option.RecipeFile = None,
    steps: option.Steps = None,
    batch_size: option.BatchSize = None,
    learning_rate: option.LearningRate = None,
    workers: Workers = 1,
    scores_only: ScoresOnly = False,
    save: Save = None,
    report_only: ReportOnly = False,
) -> None:
    """Train a student for each combination of the options, and print the dissertation's tables.

    Run the same command again to continue. The exit status is 1 if a student failed; the others are still trained.
    """
    options: dict[str, Any] = dict(locals())

    run_sweep("fovea evaluate distill sweep", options, lambda: _grid(options).cells(), lambda: list(_asked(options)))


def run_sweep(
    command: str,
    options: Mapping[str, Any],
    cells: Callable[[], Sequence[Cell]],
    known: Callable[[], Sequence[Result]] = list,
) -> None:
    """Run the cells of a sweep's command, if it does not only report, and report their results and those `known`.

    What is known is read first, so that a bad file of it is found before the training. Raises Exit with the status of
    the command.
    """
    console = Console(stderr=True, highlight=False)
    output, num_failed = options["output"], 0
    with one_line_errors(command, console, (OSError, ValueError)):
        teachers = known()
        if not options["report_only"]:
            work = Sweep(cells(), output, is_lean=options["scores_only"])
            num_failed = run_shown(work, options["workers"], console)
        results = report(teachers, output, options["save"])
    typer.echo(json.dumps([asdict(result) for result in results]))
    if num_failed:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def table(
    results: Annotated[list[Path], typer.Argument(help="Result files.")],
    save: Annotated[
        Path | None,
        typer.Option(callback=results_file(RESULT_FILES.load), help="File to add all of them to."),
    ] = None,
) -> None:
    """Combine the results of several sweeps in the dissertation's tables."""
    try:
        loaded = RESULT_FILES.load(results)
        print_tables(loaded, Console(width=200, highlight=False))
        if save is not None:
            RESULT_FILES.save(loaded, save)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="RESULTS") from error
    except KeyError as error:
        raise typer.BadParameter(
            f"{', '.join(map(str, results))}: scores lack {error}", param_hint="RESULTS"
        ) from error


@app.command()
def counts(
    data: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Folder of the published data sets.")],
    tasks: Annotated[str, typer.Option(help="Data sets, comma-separated.")] = ",".join(PUBLISHED_TASKS),
) -> None:
    """Count the rows of the published data sets as trainings split them (Table A.1)."""
    named = among(tasks, tuple(PUBLISHED_TASKS), "--tasks")
    try:
        counted = {task: count_rows(PUBLISHED_TASKS[task], data) for task in named}
    except BadFile as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error
    splits: tuple[Split, ...] = get_args(Split)
    rows = [(task, *map(_told, map(own.get, splits))) for task, own in counted.items()]
    Console(width=200, highlight=False).print(Table.of_texts("Rows", ("data", *splits), rows).to_rich())
    typer.echo(json.dumps(counted))


def _told(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"


def report(known: Sequence[Result], output: Path, save: Path | None) -> list[Result]:
    """Add the results in a sweep's folder to those `known`; save them, print their tables and draw their figures."""
    earlier = [output / RESULTS] if (output / RESULTS).is_file() else []
    teachers = [result for result in RESULT_FILES.load(earlier) if result.method == FEW_SHOT_COT]
    results = RESULT_FILES.merge([*teachers, *known, *collect(output)])
    RESULT_FILES.write(results, output / RESULTS)
    if save is not None:
        kept = RESULT_FILES.load([save]) if save.is_file() else []
        results = RESULT_FILES.merge([*kept, *results])
    markdown = "\n".join(one.to_markdown() for one in make_tables(results))
    write_durably(output / TABLES, [markdown.encode()])
    print_tables(results, Console(width=200, highlight=False))
    if save is not None:
        RESULT_FILES.write(results, save)
    draw_figures(results, output)
    return results


def draw_figures(results: Sequence[Result], folder: Path) -> None:
    """Draw every figure for which there are results."""
    for figure, panels in figures(results).items():
        path = folder / f"figure-{figure}.svg"
        write_durably(path, [draw(panels).encode()])
        typer.echo(f"wrote {path}")


def few_shot_cot_of(task: str, folder: Path) -> Result | None:
    """The result of PaLM itself on the test rows, from the released outputs; None if they are not in the folder.

    Raises BadFile for rows and outputs that can't be read or do not match.
    """
    if not any((folder / task / "palm").glob("test_CoT_*")):
        return None
    described = PUBLISHED_TASKS[task]
    rows = read_rows(described, folder, "test")
    return _few_shot_cot(described, PALM, join(rows, read_outputs(described, folder, "test")))


def _asked(options: Mapping[str, Any]) -> Iterator[Result]:
    """Yield the results of PaLM and of the named teachers themselves, on each task. Raises BadParameter and BadFile."""
    teachers = [_named(text, "--few-shot-cot") for text in options["few_shot_cot"] or ()]
    if teachers and not (options["tasks"] and options["data"]):
        raise typer.BadParameter("needs --tasks and --data", param_hint="--few-shot-cot")
    for name in split(options["tasks"]) if options["data"] is not None else ():
        task = PUBLISHED_TASKS.get(name)
        if task is not None and (released := few_shot_cot_of(name, options["data"])) is not None:
            yield released
        for teacher, path in teachers:
            if task is None:
                raise typer.BadParameter(f"{name} has no published test rows", param_hint="--few-shot-cot")
            yield _few_shot_cot(task, teacher, few_shot_rows(task, options["data"], path_of_task(path, name)))


def _few_shot_cot(task: Task, teacher: str, rows: Sequence[Row]) -> Result:
    """The result of a teacher itself on the rows that have its output, of which one at least does."""
    right = [task.is_right(row.output.label, row.label) for row in rows if row.output is not None]
    scores = {"test_accuracy": fmean(right)}
    if len(right) < len(rows):
        scores["num_questions"] = len(right)
    return Result(task.name, "human", teacher, FEW_SHOT_COT, 0.0, teacher, {"-": scores})


def _grid(options: Mapping[str, Any]) -> Grid:
    """Make the grid from the command's options. Raises BadParameter and ValueError."""
    return Grid(
        tuple(_sources(options)),
        models_of(options["models"]),
        among(options["methods"], METHODS, "--methods"),
        among(options["labels"], LABEL_SOURCES, "--labels"),
        tuple(map(_teacher, options["rationales"] or [RELEASED])),
        parse_numbers(options["fractions"], float, "--fractions"),
        parse_numbers(options["seeds"], int, "--seeds"),
        recipe_of(Recipe, options),
    )


def models_of(text: str) -> tuple[str, ...]:
    """Split a list of models. Raises BadParameter for one that is neither a T5's folder nor a shape."""
    from services.predict.training.initialisation import SHAPES  # which imports torch

    models = split(text)
    for model in models:
        if model not in SHAPES and not (Path(model) / "config.json").is_file():
            message = f"{model!r} is neither a folder with a config.json nor one of {', '.join(SHAPES)}"
            raise typer.BadParameter(message, param_hint="--models")
    return models


def _sources(options: Mapping[str, Any]) -> Iterator[DataSource]:
    if not options["tasks"]:
        raise typer.BadParameter("name at least one task", param_hint="--tasks")
    for task in split(options["tasks"]):
        if Path(task).suffix in TASK_FILE_SUFFIXES:
            file = read_task_file(Path(task))
            rows = None if options["data"] is None else path_of_task(options["data"], file.task)
            yield DataSource(file.task, rows, own=file.own())
        else:
            yield DataSource(task, options["data"])
        if task == SVAMP.name and options["augment"]:
            yield DataSource(task, options["data"], augment=True)


def _teacher(text: str) -> Teacher:
    """Parse a teacher: `released`, or NAME=PATH. Raises BadParameter."""
    if text == RELEASED:
        return Teacher(PALM)
    return Teacher(*_named(text, "--rationales", f"neither {RELEASED} nor"))


def _named(text: str, option: str, is_not: str = "not") -> tuple[str, Path]:
    """Parse NAME=PATH. Raises BadParameter."""
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise typer.BadParameter(f"{text!r} is {is_not} NAME=PATH", param_hint=option)
    return name, Path(path)


if __name__ == "__main__":
    app()
