"""`fovea train fsc-clip-ablations`: the rows of FSC-CLIP's Tables 2 and 3, or of a sweep, tuned and evaluated.

The published rows are in `ablations.toml`. Rows with the same recipe are one training.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.settings import DeviceName
from services.core.store.checkpoint_files import DESCRIPTION_FILE
from services.core.text_files import read_json, read_toml
from services.jobs.checkpoints import Device
from services.jobs.interruption import interruptible
from services.jobs.options import among, command_line
from services.jobs.recipes import chosen_recipe
from services.jobs.resumption import option_names, other_arguments
from services.jobs.tables import MISSING, Table
from services.jobs.training import rank
from services.score.evaluation.judges import Result
from services.score.evaluation.loading import JudgeOptions, Limit, Named, exits, load_clip_judge
from services.score.evaluation.suite.command import DataFolder, Suite, run_suite
from services.score.evaluation.suite.parts import PARTS, fingerprint
from services.score.evaluation.tables import AVERAGES, numbers_of
from services.score.training.recipe import Recipe
from services.score.training.train import Output, fsc_clip
from services.score.training.train import app as tuning

PAPER = ("2", "3a", "3b", "3c")
RESULTS, ARGUMENTS = "results.json", "arguments.json"
STOPPED = "Stopped. The same command continues with what is in --output."
# Options of the tuning that do not change its result, or that each row has its own of.
NEUTRAL = ("output", "overrides", "num_workers", "checkpoint_every", "name", "publish", "store_url")


Averages = Sequence[float | None]
NOT_PRINTED: Averages = (None,) * len(AVERAGES)


@dataclass(frozen=True)
class Row:
    """A row's keys of the recipe as `--set` takes them, the changes that name it, and its published averages."""

    overrides: Sequence[str]
    name: str
    published: Averages


app = command_line()


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@interruptible(STOPPED)
def ablations(
    context: typer.Context,
    output: Output,
    benchmarks: DataFolder,
    table: Annotated[str, typer.Option(help="Comma-separated tables of the paper.")] = ",".join(PAPER),
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE,VALUE,…: a table of these values of a recipe's key instead. Repeatable."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Comma-separated parts of the suite to evaluate.", show_default="all")
    ] = None,
    limit: Limit = None,
    device: Device = "auto",
) -> None:
    """Tune and evaluate the rows of FSC-CLIP's Tables 2 and 3, or of a sweep, and print them beside the published ones.

    All other options are those of `fovea train fsc-clip`, for every row. Rows that are finished in --output are not
    made again.
    """
    log_warnings_to_stderr()
    shared = _parsed(context.args, output)
    asked = _swept(sweep) if sweep else _published(among(table, PAPER, "--table"))
    tables = {title: [_row(shared, *one) for one in some] for title, some in asked.items()}
    rows = {row.name: row for some in tables.values() for row in some}
    names = tuple(PARTS) if only is None else among(only, tuple(PARTS), "--only")
    _keep_arguments(output, shared)
    for row in [row for row in rows.values() if not (output / row.name / "checkpoint" / DESCRIPTION_FILE).is_file()]:
        overrides = [*shared["overrides"], *row.overrides]
        fsc_clip(**{**shared, "output": output / row.name, "overrides": overrides, "publish": False})
    if rank() != 0:
        return
    for name in rows:  # three times the size of the weights, and of no more use
        (output / name / "resume-tuning.pt").unlink(missing_ok=True)
    suite = Suite(benchmarks, names, limit, keeps_read=True)
    with exits("fovea train fsc-clip-ablations", STOPPED):
        results = [one for name in rows for one in _evaluated(name, output, suite, device)]
    numbers = {name: [column.of(own) for column in AVERAGES] for name, own in numbers_of(results).items()}
    console = Console(width=240, highlight=False)
    for title, some in tables.items():
        console.print(_table(title, some, numbers).to_rich())
    told = {
        title: [{"row": one.name, "ours": numbers.get(one.name), "published": one.published} for one in some]
        for title, some in tables.items()
    }
    typer.echo(json.dumps({"columns": [column.heading for column in AVERAGES], "tables": told}))


def _parsed(arguments: Sequence[str], output: Path) -> dict[str, Any]:
    """Parse the shared arguments as `fovea train fsc-clip` does. Raises UsageError."""
    command = typer.main.get_command(tuning)
    parsed = command.make_context("fovea train fsc-clip", [*arguments, "--output", str(output)]).params
    return {**parsed, "overrides": parsed["overrides"] or []}


def _published(names: Sequence[str]) -> dict[str, list[tuple[Sequence[str], Averages]]]:
    """Read the published tables: rows of overrides and averages, by title."""
    with as_file(files("services.score.training") / "ablations.toml") as path:
        known = read_toml(path)
    return {known[name]["title"]: [(row["set"], row["published"]) for row in known[name]["rows"]] for name in names}


def _swept(sweeps: Sequence[str]) -> dict[str, list[tuple[Sequence[str], Averages]]]:
    """Make the tables of sweeps, with published averages where the paper has the same row."""
    printed = {_paper(overrides): averages for rows in _published(PAPER).values() for overrides, averages in rows}
    found: dict[str, list[tuple[Sequence[str], Averages]]] = {}
    for sweep in sweeps:
        key, _, values = sweep.partition("=")
        overrides = [[f"{key}={value}"] for value in values.split(",")]
        found[f"Sweep of {key}"] = [(one, printed.get(_paper(one), NOT_PRINTED)) for one in overrides]
    return found


def _paper(overrides: Sequence[str]) -> Recipe:
    return chosen_recipe(Recipe, "fsc-clip-laion-coco", overrides, {})


def _row(shared: Mapping[str, Any], overrides: Sequence[str], published: Averages) -> Row:
    """Name a row by its changes of the shared recipe. Raises BadParameter for what the recipe refuses."""
    given = shared["overrides"]
    before, after = (chosen_recipe(Recipe, shared["recipe"], [*given, *some], {}) for some in ((), overrides))
    values = {one.name: (getattr(before, one.name), getattr(after, one.name)) for one in fields(Recipe)}
    changed = ",".join(f"{key}={last}" for key, (first, last) in values.items() if last != first)
    return Row(overrides, re.sub(r"[^\w.=,-]+", "_", changed) or "recipe", published)


def _keep_arguments(output: Path, shared: Mapping[str, Any]) -> None:
    """Keep what all rows share. Raises Refused for a folder whose rows share something else."""
    now = {**shared, "set": sorted(shared["overrides"])}
    now = json.loads(json.dumps({key: value for key, value in now.items() if key not in NEUTRAL}, default=str))
    path = output / ARGUMENTS
    if path.is_file() and (begun := read_json(path)) != now:
        raise other_arguments(path, begun, now, option_names(*now))
    write_durably(path, [json.dumps(now, indent=2).encode() + b"\n"])


def _evaluated(name: str, output: Path, suite: Suite, device: DeviceName) -> Sequence[Result]:
    """Evaluate a row on what is not saved yet. Raises Refused."""
    place, options = output / name / "checkpoint", JudgeOptions("clip", device, similarity="global")
    outcome = run_suite(
        lambda: load_clip_judge(Named(name, str(place)), place, options),
        suite,
        judge=name,
        settings={"checkpoint": fingerprint(place), "similarity": options.similarity},
        save=output / RESULTS,
        tell=lambda line: typer.echo(f"{name}, {line}"),
    )
    return outcome.results


def _table(title: str, rows: Sequence[Row], numbers: Mapping[str, Averages]) -> Table:
    """Make a table of our averages, the published ones and the differences; one with missing parts has no number."""
    header = ["\nRow", *(f"{column.heading}\n{of}" for column in AVERAGES for of in ("ours", "published", "±"))]
    lines = []
    for row in rows:
        cells = [row.name]
        for own, theirs in zip(numbers.get(row.name, NOT_PRINTED), row.published, strict=True):
            cells += [MISSING if value is None else f"{value:.1f}" for value in (own, theirs)]
            cells.append(MISSING if own is None or theirs is None else f"{own - theirs:+.1f}")
        lines.append(cells)
    return Table.of_texts(title, header, lines)


if __name__ == "__main__":
    app()
