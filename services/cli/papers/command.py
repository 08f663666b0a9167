"""`fovea papers`: the papers' tables and figures, their published numbers, and ours beside them."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.cli.papers import ledger
from services.cli.papers.ledger import Row
from services.cli.papers.run import Missing, Record, append, choose_models, find_data, folder_of, run
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.jobs.options import command_line, output_file
from services.jobs.tables import Table

# Exit status where data or weights are missing, and of a row that has no command.
LACKS, HAS_NO_COMMAND = 3, 4

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
        _print(Table.of_texts(paper.paper, ("", "", "", "status"), rows, num_names=4))
    counts = ", ".join(f"{count} {status}" for status, count in ledger.count_by_status().items())
    typer.echo(f"{len(ledger.rows())} rows: {counts}.")


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
        *(f"data {name}: {' or '.join(data.paths)}, from {data.source}" for name, data in row.data.items()),
        *(f"in place of the paper's model ({beside}): {name}" for beside, name in row.models.items()),
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

    The exit status is 3 if data or weights are missing, 4 if the row has no command, 1 if its command fails.
    """
    log_warnings_to_stderr()
    row = _row(row_id)
    if not row.steps:
        typer.echo(f"{row.id} is {row.status}: {row.why}", err=True)
        raise typer.Exit(HAS_NO_COMMAND)
    try:
        models = choose_models(row, model or [])
        found = find_data(row, data, models)
    except Missing as missing:
        typer.echo(str(missing), err=True)
        raise typer.Exit(LACKS) from None
    for chosen in models:
        kept = None if output is None else folder_of(row, chosen, output)
        record = run(row, chosen, found, seed, context.args, kept)
        append(record, save.expanduser())
        _tell(row, record)
        if kept is not None:
            typer.echo(f"Kept in {kept}")
        elif any("{out}" in word for step in row.steps for word in step):
            typer.echo("What the commands wrote is deleted; --output FOLDER keeps it.")


def _row(row_id: str) -> Row:
    rows = ledger.rows()
    if row_id not in rows:
        raise Refused(f"the ledger has no row {row_id!r}; `fovea papers` lists them")
    return rows[row_id]


def _tell(row: Row, record: Record) -> None:
    typer.echo(f"{row.id}: {row.title}\nOurs: {described(record)}")
    for label, text in (("the paper's", row.weights), ("why", row.why)):
        if text:
            typer.echo(f"{label}: {text}")
    for table in comparison_tables(record):
        _print(table)
    if not record.cells:
        typer.echo("The commands ran. No published number stands beside their results.")


def described(record: Record) -> str:
    """Name a run's model, its seed where its commands have one, and the options that were added to the row's own."""
    has_seed = any("{seed}" in word for step in _row(record.id).steps for word in step)
    seed = f", seed {record.seed}" * has_seed
    more = f", with {' '.join(record.more)}, so not the row's whole protocol" if record.more else ""
    return f"{record.model or 'no model'}{seed}{more}"


def comparison_tables(record: Record) -> list[Table]:
    """Put published numbers and ours side by side, a table for each published one.

    Only the paper's own model over the whole protocol can be within its tolerance, so a model that stands in for it is
    said to, and so is a run with other options.
    """
    stand_ins = _row(record.id).models.values()
    ours = f"Ours: {record.model}" if record.model else "Ours"
    header = ("", "", "Published", ours, "Difference", "Tolerance", "Within")
    by_source: dict[str, list[tuple[str, ...]]] = {}
    for cell in record.cells:
        number = _number(cell.ours) + (f" ({cell.by})" if cell.by else "")
        numbers = (_number(cell.published), number, f"{cell.difference:+.4g}", _number(cell.tolerance))
        of_paper = "in part" if record.more else "yes" if cell.is_within else "no"
        within = "stand-in" if cell.by or record.model in stand_ins else of_paper
        cells = by_source.setdefault(f"{cell.source}, page {cell.page}", [])
        cells.append((cell.row, cell.column, *numbers, within))
    return [Table.of_texts(source, header, rows, num_names=2) for source, rows in by_source.items()]


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}" if value == round(value, 4) else f"{value:.4g}"


def _print(table: Table) -> None:
    Console(width=200, highlight=False).print(table.to_rich())
