"""`fovea evaluate compositionality …`: evaluate models on published benchmarks of matching captions with images.

The judges are CLIP and FSC-CLIP checkpoints, models that read only captions, vision-language models behind an endpoint,
and released answers.
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
from services.jobs.options import StoreUrl, command_line, output_file, results_file
from services.jobs.published_data import MissingData
from services.score.evaluation.aggregates import aggregates
from services.score.evaluation.benchmarks.aro import load_negclip_captions
from services.score.evaluation.benchmarks.imagecode import load_imagecode
from services.score.evaluation.benchmarks.record_files import load_pairs_tasks, load_records
from services.score.evaluation.benchmarks.sugarcrepe import load_sugarcrepe_pp_tasks, load_sugarcrepe_tasks
from services.score.evaluation.benchmarks.valse import load_valse
from services.score.evaluation.benchmarks.winoground import load_winoground
from services.score.evaluation.judges import CannotJudge, Resampling, Similarity
from services.score.evaluation.judges import evaluate as evaluate_judge
from services.score.evaluation.loading import JudgeKind, JudgeOptions, load_judges
from services.score.evaluation.records import Task, count
from services.score.evaluation.results import RESULT_FILES, Result
from services.score.evaluation.tables import make_tables, numbers_of, print_tables

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
STARTER = "fsc-clip-scenes"

app = command_line(no_args_is_help=True)

Images = Annotated[Path, typer.Option(help="Folder of the images; not needed for judges that read only captions.")]
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
SimilarityOption = Annotated[
    Similarity,
    typer.Option(
        help="global: pooled features. local: single tokens. mix: the checkpoint's weighting, or else global."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many records of each task.")]
Output = Annotated[
    Path | None,
    typer.Option(callback=results_file(RESULT_FILES.load), help="JSON file to add the scores to."),
]
Resamples = Annotated[int, typer.Option(min=0, help="Number of bootstrap samples for 95 % confidence intervals.")]
BaseUrl = Annotated[str, typer.Option(help="Base URL of the endpoint, with --judge chat or vqa.")]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds its key.", show_default="no key")
]
Log = Annotated[
    Path | None,
    typer.Option(callback=output_file, help="File of its answers; questions with an answer in it are not sent again."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Number of concurrent requests to it.")]

HERE = Path()


@app.callback()
def choose_benchmark() -> None:
    """Evaluate how well models match captions with images."""
    log_warnings_to_stderr()


@app.command()
def sugarcrepe(
    data: Annotated[Path, typer.Option(help="Folder with replace_obj.json and the other six files.")],
    images: Images = Path("val2017"),
    swap_obj: Annotated[
        Path | None, typer.Option(help="Another swap_obj.json, such as the first release with 246 choices.")
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
    """Choose the correct one of two similar captions: SugarCrepe's seven types (Tables 4.5, 4.6)."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_sugarcrepe_tasks(data, images, swap_obj=swap_obj, limit=limit)
    run(tasks, options)


@app.command()
def pairs(
    data: Annotated[Path, typer.Option(help="Pairs as JSON lines, or a folder in SugarCrepe's form.")],
    images: Images = HERE,
    benchmark: Annotated[
        str | None, typer.Option(help="Name of the benchmark in tables.", show_default="the file's name")
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
    """Choose the true one of two captions in any pairs of `fovea curate`, by type and form."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_pairs_tasks(data, images, benchmark=benchmark, limit=limit)
    run(tasks, options)


@app.command()
def sugarcrepe_pp(
    data: Annotated[Path, typer.Option(help="Folder with replace_obj.json and others of the seven files.")],
    images: Images = Path("val2017"),
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
    """Prefer each of two true captions in different words to a similar false one: SugarCrepe++, image to text."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_sugarcrepe_pp_tasks(data, images, limit=limit)
    run(tasks, options)


@app.command()
def valse(
    data: Annotated[Path, typer.Option(help="Folder with existence.json and the other ten files, optionally gzipped.")],
    images: Images = HERE,
    everything: Annotated[
        bool, typer.Option("--all", help="Include items whose caption fewer than two of three annotators found true.")
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
    """Distinguish a caption from its foil: VALSE's eleven files.

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
    """Choose a caption among swaps of its words, as NegCLIP was validated; `suite` reads ARO's own four tasks."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_negclip_captions(data, images, limit=limit)
    run(tasks, options)


@app.command()
def winoground(
    data: Annotated[Path, typer.Option(help="Folder with examples.jsonl.")],
    images: Images = Path("images"),
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
    """Match two captions of the same words with two images: text, image and group score."""
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
    base_url: BaseUrl = JudgeOptions.base_url,
    key_variable: KeyVariable = None,
    log: Log = None,
    concurrency: Concurrency = JudgeOptions.concurrency,
) -> None:
    """Choose the image that a caption describes among ten: ImageCoDe."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_imagecode(data, images, limit=limit)
    run(tasks, options)


@app.command()
def records(
    data: Annotated[Path, typer.Option(help="File of records as JSON lines with id, images and captions.")],
    images: Images = HERE,
    benchmark: Annotated[
        str | None, typer.Option(help="Name of the benchmark: crepe, eqben, …", show_default="the file's name")
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
    """Evaluate any benchmark given as records: captions of an image, images of a caption, or pairs of both."""
    options = dict(locals())
    with bad_parameters():
        tasks = load_records(data, images, benchmark=benchmark, limit=limit)
    run(tasks, options)


@app.command()
def table(
    results: Annotated[list[Path], typer.Argument(help="Files written by --output.")],
    form: Annotated[
        Literal["terminal", "markdown", "latex", "json"], typer.Option("--format", help="Format of the tables.")
    ] = "terminal",
) -> None:
    """Print saved scores in the papers' tables."""
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
    """Score the tasks with all judges, save the results and print them, with JSON as the last line.

    Each judge's results are saved as soon as it has finished.
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
        tell(reached)  # these results may not have been saved
        raise
    except CannotJudge as error:
        tell(reached)
        typer.echo(f"fovea evaluate compositionality: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        tell(reached)
        typer.echo("Stopped. Answers recorded in --log are not requested again.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    tell(reached)


def tell(reached: Sequence[Result]) -> None:
    """Print the tables and, as the last line, the scores as JSON; nothing if no judge has finished."""
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
    names = ("device", "store_url", "similarity", "base_url", "log", "concurrency")
    same = {name: options[name] for name in names}
    return JudgeOptions(options["judge"], **same, key=_key(options["key_variable"]))


def _key(variable: str | None) -> str | None:
    """Read the key from the environment, as others can read a command line."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise typer.BadParameter(f"{variable} is not set", param_hint="--key-variable")
    return key


@contextmanager
def bad_parameters(option: str | None = None) -> Iterator[None]:
    """Report missing data as an invalid option; with an `option`, also a judge that does not exist."""
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
