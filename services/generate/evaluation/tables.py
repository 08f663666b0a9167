"""The dissertation's tables of found-in-the-middle, and a comparison of the estimates of the bias."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from services.generate.evaluation.results import (
    ERROR,
    RESULT_FILES,
    Protocol,
    Result,
    average_of,
    positions_of,
    truncated,
)
from services.jobs.tables import MISSING, Table

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
    if position not in columns:
        return MISSING
    error = columns.get(position + ERROR)
    return truncated(columns[position]) + ("" if error is None else f" ± {error:.1f}")


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Group results of one model on one data set, fewer documents first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.model, result.data), []).append(result)
    return [sorted(group, key=lambda result: result.num_documents) for group in groups.values()]


def _rows(results: Sequence[Result]) -> list[str]:
    """The names of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(row for result in results for row in result.scores))
