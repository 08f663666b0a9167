"""`fovea papers`: the papers' tables and figures, their published numbers, and ours beside them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.cli.papers import ledger
from services.cli.papers.ledger import Row
from services.cli.papers.run import (
    Cell,
    Missing,
    Misused,
    Record,
    append,
    choose_models,
    filled,
    find_data,
    folder_of,
    run,
)
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import did_you_mean
from services.jobs.options import command_line, output_file
from services.jobs.tables import MISSING, Table

# Exit status of wrong words, where data or weights are missing, and of a row that has no command.
MISUSED, LACKS, HAS_NO_COMMAND = 2, 3, 4
NEXT = """
runs: packaged models and texts that their owners publish suffice; needs data: images, weights, a language model or
people are needed; not runnable: a diagram, an example or a survey.
`fovea papers show T4.6` tells a row's published numbers and what it needs; `fovea papers run T5.1` runs one."""

app = command_line()


@app.callback(invoke_without_command=True)
def listing(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole ledger as JSON.")] = False,
) -> None:
    """List the tables, figures, methods and protocols of the five papers, and run them.

    A row runs with what is there (packaged models, and texts that its owners publish), needs data or weights that it
    names, or has no command.
    """
    if context.invoked_subcommand is not None:
        return
    if as_json:
        typer.echo(json.dumps({row.id: row.model_dump(mode="json") for row in ledger.rows().values()}))
        return
    for paper in ledger.papers():
        rows = [(row.id, row.kind, row.title, row.status) for row in paper.row]
        _print(Table.of_texts(paper.paper, ("id", "kind", "shows", "status"), rows, num_names=4))
    counts = ", ".join(f"{count} {status}" for status, count in ledger.count_by_status().items())
    typer.echo(f"{len(ledger.rows())} rows: {counts}.{NEXT}")


@app.command()
def show(row_id: Annotated[str, typer.Argument(metavar="id", help="A row of the list, such as T4.4.")]) -> None:
    """Show a row: its published numbers, its command, and the data and weights that it needs."""
    row = _row(row_id)
    paper = next(paper for paper in ledger.papers() if row in paper.row)
    typer.echo(f"{row.id}: {row.title}\n{paper.paper}, page {row.page} of {paper.document}; {row.status}")
    for published in row.published:
        cells = [(name, *map(_number, numbers)) for name, numbers in published.rows.items()]
        title = f"Published: {published.source}, page {published.page}"
        _print(Table.of_texts(title, ("", *published.columns), cells))
    lines = [
        *([f"why: {row.why}"] if row.why else []),
        *(f"command: fovea {' '.join(step)}" for step in row.steps),
        *(f"data {name}: {data.told}" for name, data in row.data.items()),
        *(f"in place of the paper's model, --model '{beside}=...': {name}" for beside, name in row.models.items()),
        *(f"--model '{beside}=' trains it: {' '.join(words)}" for beside, words in row.recipes.items()),
        *([f"the paper's weights: {row.weights}"] if row.weights else []),
        *(f"recorded: {text}" for text in row.recorded),
    ]
    typer.echo("\n".join(lines))


@app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_row(
    context: typer.Context,
    row_id: Annotated[str, typer.Argument(metavar="id", help="A row of the list, such as T4.4.")],
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of the data sets; `show` names its files."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to run, or ROW=MODEL to set it beside that published row; ROW= trains it by its recipe. "
            "Repeatable.",
            show_default="the packaged ones, else all that have a recipe",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the commands that have one.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder to keep what the commands draw, train and write, a folder a run."),
    ] = None,
    save: Annotated[Path, typer.Option(callback=output_file, help="JSON lines file to add the record to.")] = Path(
        "~/.fovea/papers.jsonl"
    ),
) -> None:
    """Run a row's protocol on what is there, and print the published numbers and ours.

    Further options, such as --limit 20, are those of the row's command.

    The exit status is 2 for an option that neither has, 3 if data or weights are missing, 4 if the row has no command,
    1 if its command fails.
    """
    log_warnings_to_stderr()
    row = _row(row_id)
    if not row.steps:
        typer.echo(f"{row.id} is {row.status}: {row.why}", err=True)
        raise typer.Exit(HAS_NO_COMMAND)
    with _told_in_one_line():
        models = choose_models(row, model or [])
        found = find_data(row, data, models, is_whole=not context.args)
        for chosen in models:
            kept = None if output is None else folder_of(row, chosen, output)
            record = run(row, chosen, found, seed, context.args, kept)
            append(record, save.expanduser())
            _tell(row, record)
            if kept is not None:
                typer.echo(f"Kept in {kept}")
            elif any("{out}" in word for step in row.steps for word in step):
                typer.echo("What the commands wrote is deleted; --output FOLDER keeps it.")


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Exit with a status of its own for wrong words, and for what is missing."""
    try:
        yield
    except (Missing, Misused) as refused:
        typer.echo(f"fovea papers: {refused}", err=True)
        raise typer.Exit(LACKS if isinstance(refused, Missing) else MISUSED) from None


def _row(row_id: str) -> Row:
    """Return the row of an id in any case. Exits for an unknown one."""
    rows = {one.casefold(): row for one, row in ledger.rows().items()}
    with _told_in_one_line():
        if row_id.casefold() not in rows:
            near = did_you_mean(row_id, ledger.rows())
            raise Misused(f"the ledger has no row {row_id!r}{near or '; `fovea papers` lists them'}")
    return rows[row_id.casefold()]


def _tell(row: Row, record: Record) -> None:
    typer.echo(f"{row.id}: {row.title}\nOurs: {described(record)}")
    for label, text in (("the paper's", row.weights), ("why", row.why)):
        if text:
            typer.echo(f"{label}: {text}")
    tables = comparison_tables(record)
    for table in tables:
        _print(table)
    if not tables:
        typer.echo("The commands ran. No published number stands beside their results.")
    elif sum(len(table.rows) for table in tables) < sum(1 for published in row.published for _ in published.cells()):
        typer.echo(f"`fovea papers show {row.id}` has the other published rows.")


def described(record: Record) -> str:
    """Name a run's model, its seed where its commands have one, and the options that were added to the row's own."""
    has_seed = any("{seed}" in word for step in _row(record.id).steps for word in step)
    seed = f", seed {record.seed}" * has_seed
    more = f", with {' '.join(record.more)}, so not the row's whole protocol" if record.more else ""
    return f"{record.model or 'no model'}{seed}{more}"


def comparison_tables(record: Record) -> list[Table]:
    """Put published numbers and ours side by side, a table for each published one; a dash is one that was not computed.

    Only the paper's own model over the whole protocol can be within its tolerance, so a model that stands in for it is
    said to, and so is a run with other options.
    """
    row = _row(record.id)
    ours = f"Ours: {record.model}" if record.model else "Ours"
    header = ("row", "column", "Published", ours, "Difference", "Tolerance", "Within")
    tables = []
    for published in row.published:
        compared = {
            filled(name, {"beside": record.beside})
            for comparison in row.compare
            if comparison.source == published.source
            for name in comparison.rows
        }
        rows: list[tuple[str, ...]] = []
        for name, column, number in published.cells():
            where = (published.source, name, column)
            cells = [cell for cell in record.cells if (cell.source, cell.row, cell.column) == where]
            rows += [(name, column, *_compared(cell, record, row)) for cell in cells]
            if not cells and name in compared:
                rows.append((name, column, _number(number), *[MISSING] * 4))
        if rows:
            title = f"{published.source}, page {published.page}"
            tables.append(Table.of_texts(title, header, rows, num_names=2))
    return tables


def _compared(cell: Cell, record: Record, row: Row) -> tuple[str, ...]:
    number = _number(cell.ours) + (f" ({cell.by})" if cell.by else "")
    of_paper = "in part" if record.more else "yes" if cell.is_within else "no"
    within = "stand-in" if cell.by or record.model in row.models.values() else of_paper
    return _number(cell.published), number, f"{round(cell.difference, 4):+.4g}", _number(cell.tolerance), within


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}" if value == round(value, 4) else f"{value:.4g}"


def _print(table: Table) -> None:
    Console(width=200, highlight=False).print(table.to_rich())
