"""Blind models beside models that see the images, on the same tasks (Table C.2, Figure 4.2), and Figure 4.5."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.core.refusals import Refused
from services.curate.intervals import correlation_interval
from services.curate.sugarcrepe import pearson
from services.jobs.plots import Curve, Panel, draw
from services.jobs.tables import Table, ranked


@dataclass(frozen=True)
class Row:
    """A model's accuracy in percent by task; a blind one has never seen an image."""

    model: str
    is_blind: bool
    scores: Mapping[str, float]


def read_audit(path: Path) -> list[Row]:
    """Read the `audit.json` of `fovea curate audit`. Raises Refused for another file."""
    try:
        attacks = json.loads(path.read_text(encoding="utf-8"))["attacks"]
        found: dict[str, dict[str, float]] = {}
        for one in attacks:
            if one["task"] != "all":
                found.setdefault(one["attacker"], {})[one["task"]] = 100 * one["accuracy"]
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path} is no audit.json: {error!r}") from error
    return [Row(name, True, scores) for name, scores in found.items()]


def read_results(path: Path) -> list[Row]:
    """Read the results of `fovea evaluate compositionality … --output`. Raises Refused for another file."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        found: dict[str, dict[str, float]] = {}
        for one in results:
            found.setdefault(one["judge"], {}).update({task: float(score) for task, score in one["scores"].items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"{path} holds no results of an evaluation: {error!r}") from error
    return [Row(name, False, scores) for name, scores in found.items()]


def merged(rows: Sequence[Row]) -> list[Row]:
    """Merge rows of one model, in order of their first appearance."""
    found: dict[tuple[str, bool], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row.model, row.is_blind), {}).update(row.scores)
    return [Row(model, is_blind, scores) for (model, is_blind), scores in found.items()]


def common_tasks(rows: Sequence[Row]) -> list[str]:
    """List the tasks that a blind model and a seeing one have. Raises Refused if there is none."""
    blind = dict.fromkeys(task for row in rows if row.is_blind for task in row.scores)
    seeing = {task for row in rows if not row.is_blind for task in row.scores}
    tasks = [task for task in blind if task in seeing]
    if not tasks:
        raise Refused(
            f"no task has both: blind models have {', '.join(blind)}; seeing ones {', '.join(sorted(seeing))}"
        )
    return tasks


def comparison(rows: Sequence[Row], tasks: Sequence[str]) -> Table:
    """Tell every model's accuracy by task, blind ones first, and mark the best."""
    ordered = sorted(rows, key=lambda row: not row.is_blind)
    columns = []
    for task in tasks:
        values = [round(row.scores[task], 2) if task in row.scores else None for row in ordered]
        columns.append(ranked(values, ["" if value is None else f"{value:.2f}" for value in values]))
    names = Table.of_texts("", (), [(row.model, "texts" if row.is_blind else "images and texts") for row in ordered])
    cells = tuple((*name, *own) for name, own in zip(names.rows, zip(*columns, strict=True), strict=True))
    return Table("Models with and without images (accuracy)", ("Model", "Reads", *tasks), cells, num_names=2)


def figure(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    """Draw the best blind and the best seeing model of each task as SVG."""
    curves = []
    for name, is_blind in (("best without images", True), ("best with images", False)):
        of_kind = [row for row in rows if row.is_blind is is_blind]
        best = [max(row.scores[task] for row in of_kind if task in row.scores) for task in tasks]
        points = tuple((float(place), score) for place, score in enumerate(best))
        curves.append(Curve(name, points, is_joined=False))
    # long names have a line for each part, or neighbours would overlap
    names = {float(place): re.sub(r"[_-]", r"\g<0>\n", task) for place, task in enumerate(tasks)}
    return draw([Panel("Accuracy by task", "task", "%", tuple(curves), x_names=names)])


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of two columns of one row a model, (N,) each, with its 95 % interval."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]

    @property
    def r(self) -> float:
        return pearson(self.x, self.y)

    @property
    def interval(self) -> tuple[float, float]:
        return correlation_interval(self.r, len(self.x))


def correlations(path: Path, x: str, columns: Sequence[str]) -> list[Correlation]:
    """Correlate column `x` of a CSV file with other columns, all numeric ones if none are named (Figure 4.5).

    Raises Refused for a column that is missing, holds other than numbers, or does not vary.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or x not in rows[0]:
        raise Refused(f"{path} has no column {x!r}")
    wanted = columns or [name for name in rows[0] if name != x and _is_number(rows[0][name])]
    values = {name: _column(path, rows, name) for name in (x, *wanted)}
    found = [Correlation(name, values[x], values[name]) for name in wanted]
    try:
        for one in found:
            pearson(one.x, one.y)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from error
    return found


def correlation_table(found: Sequence[Correlation], x: str) -> Table:
    """Tell r, its 95 % interval and the number of models."""
    rows = [
        (one.name, f"{one.r:.2f}", f"{one.interval[0]:.2f} to {one.interval[1]:.2f}", str(len(one.x))) for one in found
    ]
    return Table.of_texts(f"Correlation with {x}", ("Column", "r", "95 %", "Models"), rows)


def scatter(found: Sequence[Correlation], x: str) -> str:
    """Draw the models as points, a panel for each column, as SVG."""
    return draw(
        [
            Panel(
                f"{one.name}: r = {one.r:.2f}",
                x,
                one.name,
                (Curve("one model each", tuple(zip(one.x.tolist(), one.y.tolist(), strict=True)), is_joined=False),),
                has_zero=False,
                labels_points=False,
            )
            for one in found
        ]
    )


def _column(path: Path, rows: Sequence[Mapping[str, str]], name: str) -> NDArray[np.float64]:
    if name not in rows[0]:
        raise Refused(f"{path} has no column {name!r}")
    for number, row in enumerate(rows, 2):
        if not _is_number(row[name]):
            raise Refused(f"{path}:{number}: {name}: {row[name]!r} is not a number")
    return np.array([float(row[name]) for row in rows])


def _is_number(text: str | None) -> bool:
    try:
        return bool(np.isfinite(float(text or "")))
    except ValueError:
        return False
