"""Judges side by side, in the layouts of the dissertation's Tables 4.5, 4.6 and C.4 and of FSC-CLIP's Table 1.

What has no published layout gets a table of its benchmark. The best of a column is bold, the second underlined.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from services.score.evaluation.aggregates import (
    AVERAGE,
    COMP,
    MACRO,
    SUGARCREPE_FORMS,
    SUGARCREPE_SIZES,
    VALSE_GROUPS,
    aggregates,
    comp,
    mean_of,
)
from services.score.evaluation.results import Result, merge_results

MISSING = "–"
Mark = Literal["", "best", "second"]
# By benchmark and name of a task or an aggregate: what one judge reached.
Numbers = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Column:
    """A heading, the heading of the group of neighbours that it belongs to, and where its number comes from."""

    heading: str
    of: Callable[[Numbers], float | None]
    group: str = ""


@dataclass(frozen=True)
class Layout:
    """A table's columns; those that no judge has a number in are left out."""

    title: str
    columns: tuple[Column, ...]
    digits: int = 2


@dataclass(frozen=True)
class Cell:
    """A number as text, or that there is none."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True)
class Table:
    """Cells by row and column under headings of two lines; the first column names the judges."""

    title: str
    groups: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_markdown(self) -> str:
        """A heading and a table, as documents have them."""
        names = [f"{group} {name}".strip() for group, name in zip(self.groups, self.header, strict=True)]
        rules = [":--", *["--:"] * (len(names) - 1)]
        styles = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}
        rows = [[styles[cell.mark].format(cell.text.replace("|", "\\|")) for cell in row] for row in self.rows]
        return "\n".join(
            [f"### {self.title}", "", *(f"| {' | '.join(cells)} |" for cells in (names, rules, *rows)), ""]
        )

    def to_latex(self) -> str:
        """A `table` with booktabs' rules."""
        styles = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
        lines = [
            r"\begin{table}",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(self.header[1:])}}}",
        ]
        lines.append(r"\toprule")
        if any(self.groups):
            lines.append(" & ".join(_latex_groups(self.groups)) + r" \\")
        lines += [" & ".join(map(_latex, self.header)) + r" \\", r"\midrule"]
        for row in self.rows:
            lines.append(" & ".join(styles[cell.mark].format(_latex(cell.text)) for cell in row) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def to_rich(self) -> RichTable:
        """The same for a terminal."""
        styles = {"": "", "best": "bold", "second": "underline"}
        table = RichTable(title=self.title, title_justify="left")
        groups = [
            group if group != before else "" for before, group in zip(("", *self.groups), self.groups, strict=False)
        ]
        for place, (group, name) in enumerate(zip(groups, self.header, strict=True)):
            table.add_column(f"{group}\n{name}" if any(self.groups) else name, justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*(Text(cell.text, styles[cell.mark]) for cell in row))
        return table


def numbers_of(results: Sequence[Result]) -> dict[str, Numbers]:
    """By judge and benchmark: scores and what they come to."""
    numbers: dict[str, dict[str, Mapping[str, float]]] = {}
    for result in merge_results(results):
        own = {**result.scores, **aggregates(result.benchmark, result.scores, result.sizes)}
        numbers.setdefault(result.judge, {})[result.benchmark] = own
    return dict(numbers)


def make_tables(results: Sequence[Result]) -> list[Table]:
    """Every table that the results have a number for, a row for each judge."""
    numbers = numbers_of(results)
    benchmarks = dict.fromkeys(result.benchmark for result in results)
    layouts = [*LAYOUTS, *(_layout(name, results) for name in benchmarks if name not in LAID_OUT)]
    return [table for layout in layouts for table in _made(layout, numbers)]


def print_tables(results: Sequence[Result], console: Console) -> None:
    """On a terminal."""
    for table in make_tables(results):
        console.print(table.to_rich())


def _number(benchmark: str, name: str) -> Callable[[Numbers], float | None]:
    return lambda numbers: numbers.get(benchmark, {}).get(name)


def _comp(numbers: Numbers) -> float | None:
    try:
        return comp({benchmark: numbers[benchmark][AVERAGE] for benchmark in COMP})
    except KeyError:
        return None


def _valse_group(tasks: tuple[str, ...]) -> Callable[[Numbers], float | None]:
    def mean(numbers: Numbers) -> float | None:
        scores = numbers.get("valse", {})
        return mean_of(scores, tasks) if scores.keys() >= set(tasks) else None

    return mean


_PARTS = {"obj": "Object", "att": "Attribute", "rel": "Relation"}
_COMP_HEADINGS = (
    *("ARO", "CREPE", "EqBen", "ImageCoDe", "SugarCrepe", "SVO Probes", "VALSE", "VL-Checklist", "WhatsUp"),
    *("Winoground", "SPEC"),
)

LAYOUTS = (
    Layout(
        "Table 4.6: SugarCrepe (accuracy)",
        (
            *(
                Column(_PARTS[task[-3:]], _number("sugarcrepe", task), task.split("_")[0].upper())
                for task in SUGARCREPE_SIZES
            ),
            Column("Average", _number("sugarcrepe", MACRO)),
        ),
    ),
    Layout(
        "Tables 4.5 and C.4: by form of hard negatives (accuracy)",
        (
            *(
                Column(form.upper(), _number("aro+crepe", form), "ARO+CREPE")
                for form in ("replace", "swap", "negate", "shuffle")
            ),
            *(Column(form, _number("sugarcrepe", form), "SugarCrepe") for form in SUGARCREPE_FORMS),
        ),
    ),
    Layout(
        "VALSE: by phenomenon (accuracy)",
        (
            *(Column(name.capitalize(), _valse_group(tasks)) for name, tasks in VALSE_GROUPS.items()),
            Column("Average", _number("valse", AVERAGE)),
        ),
    ),
    Layout(
        "Table 1 of FSC-CLIP: averages of sub-tasks",
        (
            *(
                Column(heading, _number(benchmark, AVERAGE))
                for heading, benchmark in zip(_COMP_HEADINGS, COMP, strict=True)
            ),
            Column("Comp", _comp),
            Column("ZS", _number("elevater", AVERAGE)),
            Column("I2T Ret", _number("retrieval", "i2t")),
            Column("T2I Ret", _number("retrieval", "t2i")),
        ),
        digits=1,
    ),
)
# Benchmarks whose tasks have columns above.
LAID_OUT = frozenset({"sugarcrepe", "valse", "aro+crepe", "elevater", "retrieval"})


def _layout(benchmark: str, results: Sequence[Result]) -> Layout:
    """Of a benchmark that has none: a column for each score, and for what they come to."""
    names: dict[str, None] = {}
    for result in results:
        if result.benchmark == benchmark:
            names |= dict.fromkeys([*result.scores, *aggregates(benchmark, result.scores, result.sizes)])
    return Layout(f"{benchmark} (accuracy)", tuple(Column(name, _number(benchmark, name)) for name in names))


def _made(layout: Layout, numbers: Mapping[str, Numbers]) -> Iterator[Table]:
    """The table, or none where nobody has a number for it."""
    found = {column: [column.of(own) for own in numbers.values()] for column in layout.columns}
    columns = [column for column, values in found.items() if any(value is not None for value in values)]
    if columns:
        cells = [_cells(found[column], layout.digits) for column in columns]
        rows = zip(numbers, zip(*cells, strict=True), strict=True)
        yield Table(
            layout.title,
            ("", *(column.group for column in columns)),
            ("Model", *(column.heading for column in columns)),
            tuple((Cell(judge), *row) for judge, row in rows if any(cell.text != MISSING for cell in row)),
        )


def _cells(values: Sequence[float | None], digits: int) -> list[Cell]:
    """A column; of several different numbers, as they are shown, the best is marked and the second."""
    texts = [None if value is None else f"{value:.{digits}f}" for value in values]
    ranking = sorted({float(text) for text in texts if text is not None}, reverse=True)
    marks: dict[float, Mark] = {ranking[0]: "best", ranking[1]: "second"} if len(ranking) > 1 else {}
    return [Cell(MISSING) if text is None else Cell(text, marks.get(float(text), "")) for text in texts]


def _latex(text: str) -> str:
    """Text as LaTeX writes it."""
    return re.sub(r"[&%$#_{}]", lambda match: f"\\{match[0]}", text).replace(MISSING, "--")


def _latex_groups(groups: Sequence[str]) -> Iterator[str]:
    """Headings over several columns."""
    place = 0
    while place < len(groups):
        end = place + 1
        while end < len(groups) and groups[end] == groups[place] != "":
            end += 1
        name = _latex(groups[place])
        yield rf"\multicolumn{{{end - place}}}{{c}}{{{name}}}" if end - place > 1 else name
        place = end
