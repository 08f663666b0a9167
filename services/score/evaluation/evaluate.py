"""`fovea evaluate compositionality …`: evaluate models on published benchmarks of matching captions with images.

The judges are CLIP and FSC-CLIP checkpoints, models that read only captions, vision-language models behind an endpoint,
and released answers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.core.text_files import BadFile
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, command_line, key_in, output_file, results_file
from services.jobs.sugarcrepe import SwapObj
from services.score.evaluation.aggregates import aggregates
from services.score.evaluation.benchmarks.published import BENCHMARKS
from services.score.evaluation.judges import RESULT_FILES, Result
from services.score.evaluation.judges import evaluate as evaluate_judge
from services.score.evaluation.loading import JudgeKind, JudgeOptions, Limit, SimilarityOption, exits, load_judges
from services.score.evaluation.records import Task, count
from services.score.evaluation.tables import draw_blind, make_tables, numbers_of, print_tables

STARTER = "fsc-clip-scenes"

app = command_line(no_args_is_help=True)

Images = Annotated[
    Path | None, typer.Option(help="Folder of the images; not needed for judges that read only captions.")
]
Model = Annotated[
    list[str] | None,
    typer.Option(
        help="Model to evaluate. Repeatable. A name in the store, a folder, or open_clip's NAME:PRETRAINED; with "
        "--judge, a Hugging Face folder, a model of the endpoint, or a file of answers. ROW=… sets its row's name.",
        show_default=f"{STARTER}, with --judge clip",
    ),
]
JudgeOption = Annotated[
    JudgeKind,
    typer.Option(
        help="clip: a model of images and texts. vera, grammar: text-only models. chat: a vision-language model behind "
        "an OpenAI-compatible endpoint chooses by number. vqa: it is asked whether the image shows each caption "
        "(VQAScore). answers: released answers of another judge."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(callback=results_file(RESULT_FILES.load), help="JSON file to add the scores to."),
]
BaseUrl = Annotated[str, typer.Option(help="Base URL of the endpoint, with --judge chat or vqa.")]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds its key.", show_default="no key")
]
Log = Annotated[
    Path | None,
    typer.Option(callback=output_file, help="File of its answers; questions with an answer in it are not sent again."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Number of concurrent requests to it.")]


@app.callback()
def choose_benchmark() -> None:
    """Evaluate how well models match captions with images."""
    log_warnings_to_stderr()


def evaluate(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="The benchmark's annotations: see above.")],
    images: Images = None,
    swap_obj: SwapObj = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="pairs, records: name of the benchmark in tables.", show_default="the file's name"),
    ] = None,
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    device: Device = "auto",
    store_url: StoreUrl = None,
    base_url: BaseUrl = JudgeOptions.base_url,
    key_variable: KeyVariable = None,
    log: Log = None,
    concurrency: Concurrency = JudgeOptions.concurrency,
) -> None:
    chosen = BENCHMARKS[str(context.info_name)]
    own = {"swap_obj": swap_obj, "benchmark": benchmark, "images": images}
    for name, value in own.items():
        if name not in chosen.options and value is not None:
            told = f"{context.info_name} has no such option"
            raise typer.BadParameter(told, param_hint=f"--{name.replace('_', '-')}")
    with bad_parameters():
        given: dict[str, Any] = {name: own[name] for name in chosen.options}
        if chosen.images is not None and images is None:
            given["images"] = chosen.images
        if limit is not None:  # some benchmarks have a limit of their own
            given["limit"] = limit
        tasks = chosen.load(data, **given)
    models = _models(model, judge)
    options = JudgeOptions(judge, device, store_url, similarity, base_url, key_in(key_variable), log, concurrency)
    run(tasks, models, options, {"limit": limit}, output)


for name, one in BENCHMARKS.items():
    app.command(name, help=one.help)(evaluate)


@app.command()
def table(
    results: Annotated[list[Path], typer.Argument(help="Files written by --output.")],
    form: Annotated[
        Literal["terminal", "markdown", "json"], typer.Option("--format", help="Format of the tables.")
    ] = "terminal",
    figure: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="SVG file of the best judges with and without images (Figure 4.2)."),
    ] = None,
) -> None:
    """Print saved scores in the papers' tables."""
    try:
        loaded = RESULT_FILES.load(results)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="RESULTS") from error
    if figure is not None:
        if (drawn := draw_blind(loaded)) is None:
            told = "no column of Table C.2 has a judge with images and one without: add results of `--judge vera`"
            raise typer.BadParameter(told, param_hint="--figure")
        write_durably(figure, [drawn.encode()])
    if form == "terminal":
        print_tables(loaded, Console(width=200, highlight=False))
    elif form == "json":
        typer.echo(json.dumps(numbers_of(loaded), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(one.to_markdown() for one in make_tables(loaded)), nl=False)


def run(
    tasks: Sequence[Task],
    models: Sequence[str],
    options: JudgeOptions,
    settings: Mapping[str, Any],
    output: Path | None,
) -> None:
    """Score the tasks with all judges, save the results and print them, with JSON as the last line.

    Each judge's results are saved as soon as it has finished.
    """
    typer.echo(count(tasks))
    reached: list[Result] = []
    with exits("fovea evaluate compositionality", "Answers recorded in --log are not requested again."):
        try:
            with bad_parameters("--model"):
                judges = load_judges(models, options)
            for judge in judges:
                with bad_parameters():
                    results = evaluate_judge(judge, tasks, settings)
                reached += results
                if output is not None:
                    RESULT_FILES.save(results, output)
        finally:
            tell(reached)  # also those that could not be saved


def tell(reached: Sequence[Result]) -> None:
    """Print the tables and, as the last line, the scores as JSON; nothing if no judge has finished."""
    if not reached:
        return
    print_tables(reached, Console(width=200, highlight=False))
    told = [{**asdict(one), "aggregates": aggregates(one.benchmark, one.scores, one.sizes)} for one in reached]
    typer.echo(json.dumps(told))


def _models(model: Sequence[str] | None, judge: JudgeKind) -> Sequence[str]:
    if not model and judge != "clip":
        raise typer.BadParameter(f"--judge {judge} needs at least one", param_hint="--model")
    return model or [STARTER]


@contextmanager
def bad_parameters(option: str | None = None) -> Iterator[None]:
    """Report missing data as an invalid option; with an `option`, also a judge that does not exist."""
    try:
        yield
    except Refused as error:
        if option is None and not isinstance(error, BadFile):
            raise
        raise typer.BadParameter(str(error), param_hint=option) from error


if __name__ == "__main__":
    app()
