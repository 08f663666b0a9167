"""Scores of the protocols of found-in-the-middle, stored as JSON, and their tables and figures.

Several runs can be combined in one table.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from rich.console import Console

from services.jobs.plots import Curve, Panel
from services.jobs.result_files import ResultFiles
from services.jobs.tables import MISSING, Table

Protocol = Literal["accuracy", "recall", "attention", "hypotheses", "estimates"]


@dataclass(frozen=True)
class Result:
    """One model by one protocol on one data set with `num_documents` documents per question.

    `scores` by row and column of the protocol's table; columns of accuracies are gold positions, counted from 0.
    `settings` are the model's version, seed, number of questions, calibration profile, …
    """

    model: str
    protocol: Protocol
    data: str
    num_documents: int
    scores: dict[str, dict[str, float]]
    settings: dict[str, Any] = field(default_factory=dict)


def _combine(earlier: Result, later: Result) -> Result:
    """Merge the columns of equal rows."""
    rows = {row: {**earlier.scores.get(row, {}), **columns} for row, columns in later.scores.items()}
    return replace(later, scores={**earlier.scores, **rows})


RESULT_FILES = ResultFiles(Result, attrgetter("model", "protocol", "data", "num_documents"), _combine)


def positions_of(columns: Mapping[str, float]) -> list[int]:
    """The gold positions among a row's columns, in order; none for a method that does not depend on the position."""
    return sorted(int(column) for column in columns if column.isdigit())


def average_of(columns: Mapping[str, float]) -> float:
    """The mean over gold positions, or the value of `Avg.` for a method without them; NaN without either."""
    positions = positions_of(columns)
    if not positions:
        return columns.get("Avg.", math.nan)
    return math.fsum(columns[str(position)] for position in positions) / len(positions)


def truncated(percent: float) -> str:
    """Truncate to two decimals, as in Table B.2; 60.396 → 60.39.

    A value within rounding of a hundredth counts as that hundredth, so that 0.57 as 0.569999… stays 0.57.
    """
    return f"{math.floor(percent * 100 + 1e-6) / 100:.2f}"


MOST_USED = "Most likely used document"
ESTIMATE_COLUMNS = {
    "bias_spearman": "ρ of bias",
    "rel_spearman": "ρ of rel",
    "recall_at_3": "Recall@3",
    "average": "Avg.",
    "middle": "Middle",
    "ends": "Ends",
    "relative_cost": "Cost / exact",
    "prefills": "Cost / prefill",
}


def print_tables(results: Sequence[Result], console: Console) -> None:
    """Print every table for which the results have a score."""
    merged = RESULT_FILES.merge(results)
    for table in (
        *_attention_tables(_of(merged, "attention")),
        *_fraction_tables(_of(merged, "hypotheses")),
        *_recall_tables(_of(merged, "recall")),
        *_accuracy_tables(_of(merged, "accuracy")),
        *_estimate_tables(_of(merged, "estimates")),
    ):
        console.print(table.to_rich())


def ordinal(position: int) -> str:
    """Write a position, counted from 0, as in the dissertation: 0 → 1st, 9 → 10th."""
    number = position + 1
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def heading(result: Result) -> str:
    """Name the model, data set and number of documents of a result."""
    return f"{result.model}, {result.data}, K = {result.num_documents}"


def _of(results: Sequence[Result], protocol: Protocol) -> list[Result]:
    return [result for result in results if result.protocol == protocol]


def _attention_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Table 3.1: among wrong answers, in which half of the attention the most used document is."""
    for result in results:
        halves = result.scores[MOST_USED]
        total = sum(halves.values())
        rows = [
            (f"{half} half attention", f"{count:.0f}", f"{100 * count / total:.0f}%" if total else MISSING)
            for half, count in halves.items()
        ]
        yield Table.of_texts(f"Table 3.1: {heading(result)}", ("", "# of examples", "%"), rows)


def _fraction_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Tables 3.2 and B.1: how often the conditions hold, and how well either model of attention ranks."""
    for result in results:
        scores = result.scores.items()
        shares = [(row, f"{100 * columns['share']:.0f}%") for row, columns in scores if "share" in columns]
        yield Table.of_texts(f"Table 3.2: {heading(result)}", ("", "% of pairs"), shares)
        ranks = [(row, f"{columns['spearman']:.2f}") for row, columns in scores if "spearman" in columns]
        yield Table.of_texts(f"Table B.1: {heading(result)}", ("Model form of f", "Rank correlation"), ranks)


def _recall_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Table 3.3: Recall@3 with gold in the middle, a column for each number of documents."""
    for group in _grouped(results):
        rows = []
        for method in _rows(group):
            cells = [result.scores.get(method, {}).get("recall_at_3") for result in group]
            rows.append([method, *(MISSING if cell is None else f"{cell:.4f}" for cell in cells)])
        title = f"Table 3.3: Recall@3, {group[0].model}, {group[0].data}"
        yield Table.of_texts(title, ("Method", *(f"K = {result.num_documents}" for result in group)), rows)


def _accuracy_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Table B.2: accuracy in percent by gold position, truncated to two decimals."""
    for group in _grouped(results):
        positions = [sorted({p for row in result.scores.values() for p in positions_of(row)}) for result in group]
        header = ["Method"]
        for result, asked in zip(group, positions, strict=True):
            names = [*(ordinal(position) for position in asked), "Avg."]
            header += [f"K = {result.num_documents}\n{name}" for name in names]
        rows = []
        for method in _rows(group):
            cells = []
            for result, asked in zip(group, positions, strict=True):
                columns = result.scores.get(method, {})
                cells += [_percent(columns, str(position)) for position in asked]
                cells.append(truncated(average_of(columns)) if columns else MISSING)
            rows.append([method, *cells])
        yield Table.of_texts(f"Table B.2: {group[0].model}, {group[0].data}", header, rows)


def _estimate_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Make the table of each estimate's agreement with the paper's, and its cost."""
    for result in results:
        rows = []
        for row, columns in result.scores.items():
            cells = []
            for column in ESTIMATE_COLUMNS:
                value = columns.get(column)
                is_percent = column in ("average", "middle", "ends")
                cells.append(MISSING if value is None else f"{value:.2f}" if is_percent else f"{value:.3f}")
            rows.append([row, *cells])
        header = ("bias", *ESTIMATE_COLUMNS.values())
        yield Table.of_texts(f"Estimates of the bias: {heading(result)}", header, rows)


def _percent(columns: dict[str, float], position: str) -> str:
    return truncated(columns[position]) if position in columns else MISSING


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Group results of one model on one data set, fewer documents first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.model, result.data), []).append(result)
    return [sorted(group, key=lambda result: result.num_documents) for group in groups.values()]


def _rows(results: Sequence[Result]) -> list[str]:
    """The names of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(row for result in results for row in result.scores))


VANILLA, CALIBRATED = "Vanilla attention", "Calibrated attention"


def figures(results: Sequence[Result]) -> dict[str, list[Panel]]:
    """Make the panels of each figure (`3.3` to `3.6`), one for each result with data for it."""
    merged = RESULT_FILES.merge(results)
    attention = [result for result in merged if result.protocol == "attention"]
    accuracy = [result for result in merged if result.protocol == "accuracy"]
    panels = {
        "3.3": [_by_position(result, "TF-IDF, ", "TF-IDF similarity", has_zero=True) for result in attention],
        "3.4": [_by_position(result, "Attention, ", "Attn", has_zero=False) for result in attention],
        "3.5": [_accuracy(result, {VANILLA, CALIBRATED}) for result in accuracy],
        "3.6": [_accuracy(result, None) for result in accuracy],
    }
    found = {figure: [panel for panel in some if panel.curves] for figure, some in panels.items()}
    return {figure: some for figure, some in found.items() if some}


def _by_position(result: Result, beginning: str, label: str, *, has_zero: bool) -> Panel:
    curves = tuple(
        _curve(row.removeprefix(beginning), columns)
        for row, columns in result.scores.items()
        if row.startswith(beginning) and columns
    )
    return Panel(heading(result), "Position of the document", label, curves, has_zero)


def _accuracy(result: Result, rows: set[str] | None) -> Panel:
    curves = tuple(
        _curve(row, columns) for row, columns in result.scores.items() if columns and (rows is None or row in rows)
    )
    return Panel(heading(result), "Position of the gold document", "Accuracy (%)", curves)


def _curve(name: str, columns: Mapping[str, float]) -> Curve:
    """Make a curve, with positions counted from 1; a row without positions is a horizontal line."""
    positions = positions_of(columns)
    if not positions:
        return Curve(name, ((0.0, average_of(columns)),), is_level=True)
    return Curve(name, tuple((position + 1, columns[str(position)]) for position in positions))
