"""Tables of the gains from tuning the small CLIP on generated scenes, by method, kind of hard negative and seed.

`python -m starters.score.evaluation.starter_tables RUNS RESULTS` collects the checkpoints of one folder, named `base`,
`<method>-<seed>` and `wise-ft-<seed>`, and of the wide base `wide-base-<seed>`, `wide-<seed>`,
`starter-<seed>` and `aligned-<seed>`, and prints the tables.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from services.core.store.checkpoint_files import DESCRIPTION_FILE
from services.jobs.result_files import ResultFiles
from services.jobs.tables import Table, with_error
from starters.score.data.scene_captions import ATTRIBUTES, NEGATIVE_KINDS

# Rows of the tables: the name of a run and its label.
NAMES = {
    "base": "before",
    "clip": "CLIP loss (control)",
    "global": "global hard negatives alone",
    "fsc-clip": "FSC-CLIP",
    "wise-ft": "FSC-CLIP + WiSE-FT",
    "wise-ft-local": "the same, scored as it is served",
    "wide-base": "wide base, before",
    "wide": "wide base, FSC-CLIP + WiSE-FT, scored as it is served",
    "starter": "the same, tuned further on close claims",
    "aligned": "the same, with its sizes aligned: the packaged starter",
}
# Blends that are measured only as they are served.
SERVED = ("wide", "starter", "aligned")
COMPOSITION = ("comp", *NEGATIVE_KINDS)
KEPT = ("zs", "i2t", "t2i")
HEADERS = {"comp": "Comp", "zs": "ZS", "i2t": "I2T R@1", "t2i": "T2I R@1"}


@dataclass(frozen=True)
class Result:
    """Test metrics of one row's runs in percent, by seed."""

    run: str
    scores: dict[str, dict[str, float]]


def _combine(earlier: Result, later: Result) -> Result:
    return Result(later.run, dict(sorted({**earlier.scores, **later.scores}.items())))


RESULT_FILES = ResultFiles(Result, attrgetter("run"), _combine, settings=lambda _: None)


def collect(runs: Path) -> list[Result]:
    """Collect the results of all finished runs in a folder. Raises OSError or ValueError for an invalid description."""
    found = []
    for path in sorted(runs.glob(f"*/checkpoint/{DESCRIPTION_FILE}")):
        name, _, seed = path.parents[1].name.rpartition("-")
        run = name or seed
        if run not in NAMES:
            continue
        described = json.loads(path.read_text())
        metrics = described["metrics"]
        seed = str(described["seed"])
        if run in ("wise-ft", *SERVED):
            chosen = {"alpha": described["training"]["alpha"], "local_weight": described["training"]["local_weight"]}
            kept = {key: value for key, value in metrics.items() if not key.startswith("global_")}
            served = "wise-ft-local" if run == "wise-ft" else run
            found.append(Result(served, {seed: {**kept, **chosen}}))
        if run == "wise-ft":
            as_global = {kind: metrics[f"global_{kind}"] for kind in COMPOSITION}
            found.append(Result(run, {seed: {**kept, **as_global, **chosen}}))
        elif run not in SERVED:
            found.append(Result(run, {seed: metrics}))
    return RESULT_FILES.merge(found)


def tables(results: Sequence[Result]) -> list[Table]:
    """Make the tables of composition and retained abilities, and of zero-shot accuracy by attribute."""
    known = {result.run: result.scores for result in results}
    first = _table(known, (*COMPOSITION, *KEPT))
    return [first, _table(known, ("zs", *(f"zs_{attribute}" for attribute in ATTRIBUTES)), left_out=("wise-ft-local",))]


def _table(
    results: dict[str, dict[str, dict[str, float]]], columns: Sequence[str], left_out: Sequence[str] = ()
) -> Table:
    names = [HEADERS.get(column, column.removeprefix("zs_")) for column in columns]
    rows = [
        [name, *(_cell([scores[column] for scores in results[run].values()]) for column in columns)]
        for run, name in NAMES.items()
        if run in results and run not in left_out
    ]
    return Table.of_texts("", ("", *names), rows)


def _cell(values: Sequence[float]) -> str:
    """Write mean ± standard deviation over seeds, or only the value for one seed."""
    return with_error(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, digits=1)


def main(
    runs: Annotated[Path, typer.Argument(help="Folder of the runs.")],
    results: Annotated[Path, typer.Argument(help="JSON file for the results.")],
) -> None:
    """Collect the runs of a folder and print the tables."""
    RESULT_FILES.save(collect(runs), results)
    typer.echo("\n".join(table.to_markdown() for table in tables(RESULT_FILES.load([results]))), nl=False)


if __name__ == "__main__":
    typer.run(main)
