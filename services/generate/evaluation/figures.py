"""The dissertation's Figures 3.3 to 3.6 from results, as panels to draw."""

from collections.abc import Mapping, Sequence

from services.generate.evaluation.results import ERROR, RESULT_FILES, Result, average_of, positions_of
from services.generate.evaluation.tables import heading
from services.jobs.plots import Curve, Panel

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
    return Curve(
        name,
        tuple((position + 1, columns[str(position)]) for position in positions),
        tuple(columns.get(f"{position}{ERROR}") for position in positions),
    )
