"""`fovea evaluate suite MODEL --data DIR --save FILE`: all of FSC-CLIP's benchmarks in one resumable run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.core.logs import log_warnings_to_stderr
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, among, command_line, results_file
from services.score.evaluation.judges import CannotJudge, Similarity
from services.score.evaluation.loading import JudgeOptions, Named, find_model, load_clip_judge
from services.score.evaluation.results import RESULT_FILES
from services.score.evaluation.suite.digests import fingerprint
from services.score.evaluation.suite.parts import PARTS
from services.score.evaluation.suite.run import Outcome, Suite, run_suite
from services.score.evaluation.tables import numbers_of, print_tables

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = command_line()


@app.command()
def suite(
    model: Annotated[
        str,
        typer.Argument(
            help="Model to evaluate: a name in the store, a folder, or open_clip's NAME:PRETRAINED. ROW=… sets its "
            "row's name."
        ),
    ],
    data: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of all data sets, laid out as the guide tells.")
    ],
    save: Annotated[
        Path | None,
        typer.Option(
            callback=results_file(RESULT_FILES.load),
            help="JSON file to add each part's scores to; a part whose scores it has is not evaluated again unless "
            "its data changed.",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Comma-separated parts to evaluate, such as crepe,cifar10.", show_default="all")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many records of each task.")] = None,
    similarity: Annotated[
        Similarity,
        typer.Option(
            help="How captions are compared with images in the compositionality benchmarks. global: pooled features, "
            "as in the paper. local: single tokens. mix: the checkpoint's weighting."
        ),
    ] = "global",
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Evaluate a CLIP on eleven compositionality benchmarks, 21 classification and three retrieval sets.

    What is missing in the data folder is named with its source, and no average is shown that needs it.
    """
    log_warnings_to_stderr()
    names = tuple(PARTS) if only is None else among(only, tuple(PARTS), "--only")
    options = JudgeOptions("clip", device, store_url, similarity)
    try:
        named = Named.parse(model)
        place = find_model(named.reference, options)
    except CannotJudge as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from error
    settings: dict[str, Any] = {"checkpoint": fingerprint(place), "similarity": similarity}
    try:
        outcome = run_suite(
            lambda: load_clip_judge(named, place, options),
            Suite(data, names, limit),
            judge=named.name,
            settings=settings,
            save=save,
            tell=typer.echo,
        )
    except CannotJudge as error:
        typer.echo(f"fovea evaluate suite: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command continues after the parts that are in --save.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    tell(outcome)


def tell(outcome: Outcome) -> None:
    """Print the tables, what is missing and, as the last line, all of it as JSON. Exits if nothing was evaluated."""
    print_tables(outcome.results, Console(width=240, highlight=False))
    if outcome.kept:
        typer.echo(f"Not evaluated again, as --save has them: {', '.join(outcome.kept)}")
    if outcome.unchecked:
        typer.echo(f"Their data are gone, so their scores could not be checked: {', '.join(outcome.unchecked)}")
    for name, reason in outcome.missing.items():
        typer.echo(f"Missing: {name}. {reason}")
    if not outcome.results:
        raise typer.Exit(EXIT_FAILED)
    numbers = next(iter(numbers_of(outcome.results).values()))
    typer.echo(json.dumps({"scores": numbers, "missing": outcome.missing}))


if __name__ == "__main__":
    app()
