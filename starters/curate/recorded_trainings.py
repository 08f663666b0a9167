"""Record of trainings on hard negatives in one file, from which the documentation's tables are made.

python -m starters.curate.recorded_trainings docs/results/curate-trainings.json --results results.json \\
    --control clip --audit rules=audits/rules --audit refined=audits/refined --seeing clip \\
    --checkpoint clip=runs/clip/checkpoint … --csv models.csv
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from services.core.durable_files import write_durably
from services.curate.evaluation.measure import (
    Correlation,
    Scores,
    correlation,
    correlation_table,
    form_accuracies,
    gains_table,
)
from services.curate.refinement.scores import Attack
from services.jobs.options import command_line, output_file
from services.jobs.tables import MISSING, Table
from starters.curate.recorded import attacks_of, cell_of

app = command_line()

RESULT_FIELDS = ("judge", "benchmark", "scores", "sizes")
# Of a checkpoint's metrics: accuracy of zero-shot classification, and recall of retrieval in both directions.
GENERAL = ("zs", "i2t", "t2i")
# With fewer pairs, accuracies differ mostly by chance.
MIN_PAIRS = 100
# The general ability that accuracies on pairs are correlated with.
X = "zero-shot accuracy"


@app.command()
def record(
    output: Annotated[Path, typer.Argument(callback=output_file, help="JSON file to write.")],
    results: Annotated[list[Path], typer.Option(exists=True, help="Results of `fovea evaluate compositionality`.")],
    control: Annotated[str, typer.Option(help="Row of the model that was tuned without hard negatives.")],
    audit: Annotated[list[str], typer.Option(help="BENCHMARK=FOLDER of an audit's output. Repeatable.")],
    seeing: Annotated[list[str], typer.Option(help="Row to tell beside blind models. Repeatable.")],
    checkpoint: Annotated[list[str], typer.Option(help="ROW=FOLDER of a checkpoint, in the order of rows.")],
    table: Annotated[
        Path | None, typer.Option("--csv", callback=output_file, help="CSV file of all models, to be correlated.")
    ] = None,
) -> None:
    """Write the record."""
    checkpoints = _named(checkpoint)
    loaded = [one for path in results for one in json.loads(path.read_text()) if one["judge"] in checkpoints]
    order = list(checkpoints)
    loaded.sort(key=lambda one: order.index(one["judge"]))
    found: dict[str, Any] = {
        "control": control,
        "seeing": seeing,
        "results": [{name: one[name] for name in RESULT_FIELDS} for one in loaded],
        "audits": {name: attacks_of(Path(folder)) for name, folder in _named(audit).items()},
        "general": {name: _metrics(Path(folder)) for name, folder in checkpoints.items()},
    }
    write_durably(output, [json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n"])
    if table is not None:
        write_durably(table, [_csv(found).encode()])


def training_table(found: Mapping[str, Any]) -> Table:
    """Tell accuracies by benchmark and form, and gains on the control (Tables 4.5 and C.4)."""
    return gains_table(form_accuracies(found["results"]), found["control"])


def seeing_table(found: Mapping[str, Any]) -> Table:
    """Tell the accuracy of blind choices and of models that see, by benchmark and type (Table C.2)."""
    attackers = list(dict.fromkeys(row["attacker"] for rows in found["audits"].values() for row in rows))
    seen = {(one["judge"], one["benchmark"]): one["scores"] for one in found["results"]}
    sizes = {one["benchmark"]: one["sizes"] for one in found["results"]}
    rows = []
    for benchmark, attacks in found["audits"].items():
        by_task: dict[str, dict[str, Attack]] = {}
        for fields in attacks:
            by_task.setdefault(fields["task"], {})[fields["attacker"]] = Attack(**fields)
        for task, own in by_task.items():
            scores = [seen.get((judge, benchmark), {}).get(task) for judge in found["seeing"]]
            if any(score is not None for score in scores):
                total = next(iter(own.values())).total
                blind = (cell_of(own[name]) if name in own else MISSING for name in attackers)
                told = (MISSING if score is None else f"{score:.1f}" for score in scores)
                rows.append((benchmark, task, f"{total:,}", *blind, f"{sizes[benchmark][task]:,}", *told))
    judges = (f"{judge}, with the images" for judge in found["seeing"])
    header = ("benchmark", "type", "pairs", *attackers, "pairs with their images", *judges)
    return Table.of_texts("", header, rows, num_names=2)


def general_correlations(found: Mapping[str, Any]) -> list[Correlation]:
    """Correlate zero-shot accuracy with the accuracy on each form of each benchmark (Figure 4.5)."""
    columns = _columns(found)
    x = np.array(columns.pop(X))
    return [correlation(name, x, np.array(values)) for name, values in columns.items()]


def general_table(found: Mapping[str, Any]) -> Table:
    """Tell these correlations."""
    return correlation_table(general_correlations(found), X)


def _columns(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """Collect the numbers of all models that have metrics and results, by column."""
    scores = _with_metrics(found)
    parts = [part for part in scores[0].accuracy if all(one.sizes.get(part, 0) >= MIN_PAIRS for one in scores)]
    general = {X: [found["general"][one.judge]["zs"] for one in scores]}
    return general | {" ".join(part): [one.accuracy[part] for one in scores] for part in parts}


def _with_metrics(found: Mapping[str, Any]) -> Sequence[Scores]:
    return [one for one in form_accuracies(found["results"]) if one.judge in found["general"]]


def _csv(found: Mapping[str, Any]) -> str:
    columns, text = _columns(found), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("model", *columns))
    names = [one.judge for one in _with_metrics(found)]
    writer.writerows((name, *numbers) for name, numbers in zip(names, zip(*columns.values(), strict=True), strict=True))
    return text.getvalue()


def _metrics(folder: Path) -> dict[str, float]:
    metrics = json.loads((folder / "checkpoint.json").read_text())["metrics"]
    return {name: metrics[name] for name in GENERAL}


def _named(texts: Sequence[str]) -> dict[str, str]:
    unnamed = [text for text in texts if "=" not in text]
    if unnamed:
        raise typer.BadParameter(f"{unnamed[0]!r} is not NAME=FOLDER")
    return {name: folder for name, _, folder in (text.partition("=") for text in texts)}


if __name__ == "__main__":
    app()
