"""Record of a refinement, audits and a comparison in one file, from which the documentation's tables are made.

python -m starters.curate.recorded docs/results/curate.json --refinement refined --quality quality.json \\
    --audit "SugarCrepe=audits/sugarcrepe" …
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from services.core.durable_files import write_durably
from services.curate.refinement.scores import Attack
from services.jobs.options import command_line, output_file
from services.jobs.tables import MISSING, Table

app = command_line()

# The dissertation's numbers of pairs (Table 4.2).
PUBLISHED_COUNTS = {
    **{"replace_obj": 1652, "replace_att": 788, "replace_rel": 1406},
    **{"swap_obj": 246, "swap_att": 666, "add_obj": 2062, "add_att": 692},
}
# The fields of an attack that are kept; the others follow from them.
ATTACK_FIELDS = ("attacker", "task", "num_right", "num_wrong", "num_ties", "chance")


@app.command()
def record(
    output: Annotated[Path, typer.Argument(callback=output_file, help="JSON file to write.")],
    refinement: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Output of `fovea curate refine`.")],
    quality: Annotated[Path, typer.Option(exists=True, help="JSON of `fovea curate measure quality`.")],
    audit: Annotated[list[str], typer.Option(help="NAME=FOLDER of an audit's output. Repeatable.")],
) -> None:
    """Write the record."""
    audits = dict(one.split("=", 1) for one in audit)
    report = json.loads((refinement / "report.json").read_text())
    found: dict[str, Any] = {
        "refinement": {"seed": report["seed"], "models": report["models"], "results": report["results"]},
        "quality": json.loads(quality.read_text()),
        "audits": {name: attacks_of(Path(folder)) for name, folder in audits.items()},
    }
    write_durably(output, [json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n"])


def refinement_table(found: dict[str, Any]) -> Table:
    """Tell, by type, the pairs before and after, the published number, and each model's accuracy before and after."""
    by_kind: dict[str, dict[str, Any]] = {}
    for row in found["refinement"]["results"]:
        by_kind.setdefault(row["kind"], {})[row["model"]] = row
    models = list(next(iter(by_kind.values())))
    rows = []
    for kind, of_models in by_kind.items():
        one = of_models[models[0]]
        accuracies = [
            f"{_percent(of_models[name]['before'])} → {of_models[name]['after']['accuracy']:.1f}" for name in models
        ]
        published = f"{PUBLISHED_COUNTS[kind]:,}" if kind in PUBLISHED_COUNTS else MISSING
        rows.append((kind, f"{one['before']['pairs']:,}", f"{one['after']['pairs']:,}", published, *accuracies))
    header = ("type", "unrefined", "kept", "published", *(f"{name}: right before → after, %" for name in models))
    return Table.of_texts("", header, rows)


def audit_table(found: dict[str, Any]) -> Table:
    """Tell each attack's accuracy with guessed ties by benchmark and task, bold where it is hackable or reversed."""
    attackers = list(dict.fromkeys(row["attacker"] for rows in found["audits"].values() for row in rows))
    rows: list[tuple[str, ...]] = []
    for name, attacks in found["audits"].items():
        by_task: dict[str, dict[str, Attack]] = {}
        for fields in attacks:
            by_task.setdefault(fields["task"], {})[fields["attacker"]] = Attack(**fields)
        for task, own in by_task.items():
            one = next(iter(own.values()))
            cells = (cell_of(own[attacker]) if attacker in own else MISSING for attacker in attackers)
            rows.append((name, task, f"{one.total:,}", f"{100 * one.chance:.0f}", *cells))
    return Table.of_texts("", ("benchmark", "task", "items", "chance", *attackers), rows, num_names=2)


def quality_table(found: dict[str, Any]) -> Table:
    """Tell the scores of two sets of negatives (Table 4.4)."""
    rows = [
        (
            *(one["form"], one["model"], _number(one["theirs"]), _number(one["ours"])),
            *(_number(one["better"]), f"{one['num_compared']:,}"),
        )
        for one in found["quality"]
    ]
    header = ("form", "model", "rules, mean", "SugarCrepe, mean", "SugarCrepe better, %", "compared")
    return Table.of_texts("", header, rows, num_names=2)


def attacks_of(folder: Path) -> list[dict[str, Any]]:
    attacks = json.loads((folder / "audit.json").read_text())["attacks"]
    return [{name: one[name] for name in ATTACK_FIELDS} for one in attacks]


def cell_of(attack: Attack) -> str:
    text = f"{100 * attack.with_guesses:.1f}"
    return f"**{text}**" if attack.verdict else text


def _percent(choices: dict[str, Any]) -> str:
    low, high = choices["interval"]
    return f"{choices['accuracy']:.1f} ({low:.1f}–{high:.1f})"


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


if __name__ == "__main__":
    app()
