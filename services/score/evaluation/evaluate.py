"""`fovea evaluate compositionality …`: which caption is true of which image, asked by published benchmarks.

The judges are CLIP and FSC-CLIP checkpoints, models that read captions alone, vision-language models behind an
endpoint, and answers that were released.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from services.core.logs import log_warnings_to_stderr
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, output_file, results_file
from services.jobs.published_data import MissingData
from services.score.evaluation.aggregates import aggregates
from services.score.evaluation.benchmarks import (
    load_imagecode,
    load_negclip_captions,
    load_records,
    load_sugarcrepe_tasks,
    load_valse,
    load_winoground,
)
from services.score.evaluation.judges import CannotJudge, Resampling, Similarity
from services.score.evaluation.judges import evaluate as evaluate_judge
from services.score.evaluation.loading import JudgeKind, JudgeOptions, load_judges
from services.score.evaluation.records import Task, count
from services.score.evaluation.results import RESULT_FILES, Result
from services.score.evaluation.tables import make_tables, numbers_of, print_tables

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
STARTER = "fsc-clip-scenes"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Images = Annotated[Path, typer.Option(help="The folder of the images; judges that only read captions need none.")]
Model = Annotated[
    list[str] | None,
    typer.Option(
        help="Who judges, several times for several: a name in the store, a folder, or open_clip's NAME:PRETRAINED; "
        "with --judge, a Hugging Face folder, a model of the endpoint's, or a file of answers. ROW=… names its row.",
        show_default=f"{STARTER}, with --judge clip",
    ),
]
JudgeOption = Annotated[
    JudgeKind,
    typer.Option(
        help="clip: a model of images and texts. vera, grammar: models of texts. chat: a vision-language model behind "
        "an OpenAI-compatible endpoint. answers: what another judge got right, released."
    ),
]
SimilarityOption = Annotated[
    Similarity,
    typer.Option(help="global: pooled features; local: single tokens; mix: as the checkpoint says, else global."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many records of each task, the first ones.")]
Output = Annotated[
    Path | None,
    typer.Option(
        callback=results_file(RESULT_FILES.load), help="A JSON file to keep the scores in, beside those that it holds."
    ),
]
Resamples = Annotated[int, typer.Option(min=0, help="Draw the records so often anew, for intervals of 95 %.")]
BaseUrl = Annotated[str, typer.Option(help="Where the endpoint listens, with --judge chat.")]
KeyVariable = Annotated[
    str | None, typer.Option(help="The environment variable that holds its key.", show_default="no key")
]
Log = Annotated[Path | None, typer.Option(callback=output_file, help="A file of its answers: none is asked for again.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests to it on their way at a time.")]

HERE = Path()


@app.callback()
def choose_benchmark() -> None:
    """Evaluate who can tell which caption is true of which image."""
    log_warnings_to_stderr()


@app.command()
def sugarcrepe(
    data: Annotated[Path, typer.Option(help="The folder with replace_obj.json and the six others.")],
    images: Images = Path("val2017"),
    swap_obj: Annotated[
        Path | None, typer.Option(help="Another swap_obj.json, such as the first published one of 246 choices.")
    ] = None,
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    resamples: Resamples = 0,
    device: Device = "auto",
    store_url: StoreUrl = None,
    base_url: BaseUrl = JudgeOptions.base_url,
    key_variable: KeyVariable = None,
    log: Log = None,
    concurrency: Concurrency = JudgeOptions.concurrency,
) -> None:
    """Choose the true one of two captions that differ by little: SugarCrepe's seven types (Tables 4.5, 4.6)."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_sugarcrepe_tasks(data, images, swap_obj=swap_obj, limit=limit)
    run(tasks, options)


@app.command()
def valse(
    data: Annotated[Path, typer.Option(help="The folder with existence.json and the ten others; gzip'ed or not.")],
    images: Images = HERE,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what fewer than two of three people found true.")
    ] = False,
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    resamples: Resamples = 0,
    device: Device = "auto",
    store_url: StoreUrl = None,
    base_url: BaseUrl = JudgeOptions.base_url,
    key_variable: KeyVariable = None,
    log: Log = None,
    concurrency: Concurrency = JudgeOptions.concurrency,
) -> None:
    """A caption or its foil: VALSE's eleven files.

    The images are in folders of their data sets: visual7w, val2017, swig, VisualDialog_val2018, train2014, val2014.
    """
    options = dict(locals())
    with bad_parameters():
        tasks = load_valse(data, images, valid_only=not everything, limit=limit)
    run(tasks, options, {"valid_only": not everything})


@app.command()
def aro(
    data: Annotated[Path, typer.Option(help="NegCLIP's valid_neg_clip.tsv.")],
    images: Images = HERE,
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    resamples: Resamples = 0,
    device: Device = "auto",
    store_url: StoreUrl = None,
    base_url: BaseUrl = JudgeOptions.base_url,
    key_variable: KeyVariable = None,
    log: Log = None,
    concurrency: Concurrency = JudgeOptions.concurrency,
) -> None:
    """A caption among swaps of its own words: the captions that ARO's authors validated NegCLIP with."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_negclip_captions(data, images, limit=limit)
    run(tasks, options)


@app.command()
def winoground(
    data: Annotated[Path, typer.Option(help="The folder with examples.jsonl.")],
    images: Images = Path("images"),
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    resamples: Resamples = 0,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Two captions of the same words and their two images: text, image and group score."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_winoground(data, images, limit=limit)
    run(tasks, options)


@app.command()
def imagecode(
    data: Annotated[Path, typer.Option(help="valid_data.json.")],
    images: Images = Path("image-sets"),
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    resamples: Resamples = 0,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Choose among ten images the one that a caption describes: ImageCoDe."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_imagecode(data, images, limit=limit)
    run(tasks, options)


@app.command()
def records(
    data: Annotated[Path, typer.Option(help="A file of records: JSON, one a line, with id, images and captions.")],
    images: Images = HERE,
    benchmark: Annotated[
        str | None, typer.Option(help="What it is of: crepe, eqben, …", show_default="the file's name")
    ] = None,
    model: Model = None,
    judge: JudgeOption = "clip",
    similarity: SimilarityOption = "mix",
    limit: Limit = None,
    output: Output = None,
    resamples: Resamples = 0,
    device: Device = "auto",
    store_url: StoreUrl = None,
    base_url: BaseUrl = JudgeOptions.base_url,
    key_variable: KeyVariable = None,
    log: Log = None,
    concurrency: Concurrency = JudgeOptions.concurrency,
) -> None:
    """Any benchmark, written as records: captions of an image, images of a caption, or pairs of both."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_records(data, images, benchmark=benchmark, limit=limit)
    run(tasks, options)


@app.command()
def table(
    results: Annotated[list[Path], typer.Argument(help="Files that --output wrote.")],
    form: Annotated[
        Literal["terminal", "markdown", "latex", "json"], typer.Option("--format", help="How to write them.")
    ] = "terminal",
) -> None:
    """Put saved scores together in the papers' tables."""
    try:
        loaded = RESULT_FILES.load(results)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="RESULTS") from error
    if form == "terminal":
        print_tables(loaded, Console(width=200, highlight=False))
    elif form == "json":
        typer.echo(json.dumps(numbers_of(loaded), indent=2, ensure_ascii=False))
    else:
        made = make_tables(loaded)
        typer.echo("\n".join(one.to_markdown() if form == "markdown" else one.to_latex() for one in made), nl=False)


def run(tasks: Sequence[Task], options: Mapping[str, Any], asked: Mapping[str, Any] | None = None) -> None:
    """Have all judges score the tasks; tell, keep and print what they reached, with JSON as the last line.

    A judge's scores are kept as soon as there are any.
    """
    typer.echo(count(tasks))
    settings = {**(asked or {}), "limit": options["limit"]}
    output, reached = options["output"], list[Result]()
    resampling = Resampling(options["resamples"])
    try:
        with bad_parameters("--model"):
            judges = load_judges(_models(options), _judge_options(options))
        for judge in judges:
            with bad_parameters():
                results = evaluate_judge(judge, tasks, settings, resampling)
            reached += results
            if output is not None:
                RESULT_FILES.save(results, output)
    except OSError:
        tell(reached)  # what may not have been kept
        raise
    except CannotJudge as error:
        tell(reached)
        typer.echo(f"fovea evaluate compositionality: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        tell(reached)
        typer.echo("Stopped. What was answered into --log is not asked again.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    tell(reached)


def tell(reached: Sequence[Result]) -> None:
    """The tables and, as the last line, the scores as JSON; nothing where no judge has come to an end."""
    if not reached:
        return
    print_tables(reached, Console(width=200, highlight=False))
    told = [{**asdict(one), "aggregates": aggregates(one.benchmark, one.scores, one.sizes)} for one in reached]
    typer.echo(json.dumps(told))


def _models(options: Mapping[str, Any]) -> list[str]:
    if options["model"]:
        return list(options["model"])
    if options["judge"] == "clip":
        return [STARTER]
    raise typer.BadParameter(f"--judge {options['judge']} needs at least one", param_hint="--model")


def _judge_options(options: Mapping[str, Any]) -> JudgeOptions:
    """Collect the judges' options; those of an endpoint are not among all commands'."""
    names = ("device", "store_url", "similarity", "base_url", "log", "concurrency")
    same = {name: options[name] for name in names if name in options}
    return JudgeOptions(options["judge"], **same, key=_key(options.get("key_variable")))


def _key(variable: str | None) -> str | None:
    """Read the key from the environment alone: a command line can be read by others."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise typer.BadParameter(f"{variable} is not set", param_hint="--key-variable")
    return key


@contextmanager
def bad_parameters(option: str | None = None) -> Iterator[None]:
    """Report missing data as a wrong option; with an `option`, also a judge that does not exist."""
    try:
        yield
    except MissingData as error:
        raise typer.BadParameter(str(error)) from error
    except CannotJudge as error:
        if option is None:
            raise
        raise typer.BadParameter(str(error), param_hint=option) from error


if __name__ == "__main__":
    app()
