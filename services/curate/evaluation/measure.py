"""`fovea curate measure …`: the dissertation's tables and figures about hard negatives, on your own data."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.curate.evaluation.blind_and_seeing import (
    common_tasks,
    comparison,
    correlation_table,
    correlations,
    figure,
    merged,
    read_audit,
    read_results,
    scatter,
)
from services.curate.evaluation.gains import gains_table, read_scores
from services.curate.evaluation.quality import count_judgements, qualities
from services.curate.refinement.loading import DEFAULT_CACHE, CacheFolder, Models, load_models
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, command_line, output_file
from services.jobs.published_data import MissingData
from services.jobs.sugarcrepe import FORMS, BadPairs, load_pairs
from services.jobs.tables import MISSING, Table

app = command_line(no_args_is_help=True)

Markdown = Annotated[
    Path | None, typer.Option("--output", callback=output_file, help="Markdown file to write the table to.")
]
PAIRS_HELP = "Pairs as JSON lines, or a folder in SugarCrepe's form."


@app.callback()
def choose() -> None:
    """Measure hard negatives as the dissertation does."""
    log_warnings_to_stderr()


@app.command()
def counts(pairs: Annotated[Path, typer.Argument(exists=True, help=PAIRS_HELP)], output: Markdown = None) -> None:
    """Count the pairs and images of each type (Table 4.2)."""
    with bad_input():
        loaded = load_pairs(pairs)
    of_kind = Counter(pair.kind for pair in loaded)
    rows: list[tuple[str, ...]] = [
        (form.upper(), kind, f"{of_kind[kind]:,}", f"{len({p.filename for p in loaded if p.kind == kind}):,}")
        for form, kinds in FORMS.items()
        for kind in kinds
        if of_kind[kind]
    ]
    rows.append(("all", "", f"{len(loaded):,}", f"{len({pair.filename for pair in loaded}):,}"))
    tell(Table.of_texts("Negative captions by type", ("Form", "Type", "Pairs", "Images"), rows, num_names=2), output)


@app.command()
def quality(
    ours: Annotated[Path, typer.Argument(exists=True, help=PAIRS_HELP)],
    theirs: Annotated[Path, typer.Argument(exists=True, help="Pairs of the same captions to compare with.")],
    model: Models = None,
    output: Markdown = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", callback=output_file, help="JSON file to write the numbers to.")
    ] = None,
    cache: CacheFolder = DEFAULT_CACHE,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Compare two sets of hard negatives by their blind scores, in the mean and caption by caption (Table 4.4)."""
    with bad_input():
        models = load_models(model, device=device, cache=cache, store_url=store_url)
        found = qualities(load_pairs(ours), load_pairs(theirs), models)
    rows = [
        (one.form, one.model, _told(one.theirs), _told(one.ours), _told(one.better), f"{one.num_compared:,}")
        for one in found
    ]
    header = ("Form", "Model", "theirs\nmean", "ours\nmean", "ours better %", "compared")
    tell(Table.of_texts("Scores of negative captions × 100", header, rows, num_names=2), output)
    if as_json is not None:
        write_durably(as_json, [json.dumps([asdict(one) for one in found], indent=2).encode() + b"\n"])


@app.command()
def humans(
    judgements: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="JSON lines with form, quality (commonsense or grammar) and better (ours, theirs or tie).",
        ),
    ],
    output: Markdown = None,
) -> None:
    """Count people's comparisons of two sets of hard negatives (Table C.3)."""
    with bad_input():
        found = count_judgements(judgements)
    rows = [
        (form, by, str(counted["theirs"]), str(counted["ours"]), str(counted["tie"]))
        for (form, by), counted in found.items()
    ]
    tell(Table.of_texts("Better in people's eyes", ("Form", "Quality", "Theirs", "Ours", "Tie"), rows, 2), output)


@app.command()
def blind(
    audits: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Files audit.json of audits.")],
    results: Annotated[
        list[Path],
        typer.Option(exists=True, dir_okay=False, help="Results of `fovea evaluate compositionality`. Repeatable."),
    ],
    output: Markdown = None,
    drawing: Annotated[
        Path | None, typer.Option("--figure", callback=output_file, help="SVG file of the best of both kinds by task.")
    ] = None,
) -> None:
    """Compare blind models with models that see the images, on the tasks that both have (Table C.2, Figure 4.2)."""
    with bad_input():
        rows = merged(
            [row for path in audits for row in read_audit(path)] + [r for p in results for r in read_results(p)]
        )
        tasks = common_tasks(rows)
    tell(comparison(rows, tasks), output)
    if drawing is not None:
        write_durably(drawing, [figure(rows, tasks).encode()])


@app.command()
def correlate(
    table: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="CSV file, one model a row.")],
    x: Annotated[str, typer.Option(help="Column to correlate with, such as accuracy on ImageNet.")],
    column: Annotated[
        list[str] | None, typer.Option(help="Column of accuracies. Repeatable.", show_default="all other numbers")
    ] = None,
    output: Markdown = None,
    drawing: Annotated[
        Path | None, typer.Option("--figure", callback=output_file, help="SVG file with a scatter plot of each column.")
    ] = None,
) -> None:
    """Correlate columns of results: Pearson's r of each with one of them (Figure 4.5)."""
    with bad_input():
        found = correlations(table, x, column or ())
    tell(correlation_table(found, x), output)
    if drawing is not None:
        write_durably(drawing, [scatter(found, x).encode()])


@app.command()
def gains(
    results: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help="Results of `fovea evaluate compositionality`."),
    ],
    control: Annotated[str, typer.Option(help="Row of the model that was tuned without hard negatives.")],
    output: Markdown = None,
) -> None:
    """Tell what training on hard negatives gains, by benchmark and form (Tables 4.5 and C.4)."""
    with bad_input():
        table = gains_table(read_scores(results), control)
    tell(table, output)


def tell(table: Table, output: Path | None) -> None:
    """Print a table, and write it as Markdown where wanted."""
    Console(width=140, highlight=False).print(table.to_rich())
    if output is not None:
        write_durably(output, [table.to_markdown().encode()])


@contextmanager
def bad_input() -> Iterator[None]:
    """Report unusable input as an invalid option."""
    try:
        yield
    except (BadPairs, MissingData, Refused) as error:
        raise typer.BadParameter(str(error)) from error


def _told(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


if __name__ == "__main__":
    app()
