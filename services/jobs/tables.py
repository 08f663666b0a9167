"""Tables of results, for a terminal and as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.console import JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

MISSING = "–"
Mark = Literal["", "best", "second"]
TERMINAL = {"": "", "best": "bold", "second": "underline"}
MARKDOWN = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}


class Cell(NamedTuple):
    """Text, and whether it is the best or second best of its column."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True)
class Table:
    """Cells by row and column; `num_names` columns from the left are names, the others numbers.

    A heading `group\\nname` has two lines; adjacent columns of one group share its heading.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_names: int = 1

    @classmethod
    def of_texts(cls, title: str, header: Iterable[str], rows: Iterable[Iterable[str]], num_names: int = 1) -> "Table":
        """Make a table without marks."""
        return cls(title, tuple(header), tuple(tuple(map(Cell, row)) for row in rows), num_names)

    def to_markdown(self) -> str:
        """Write a heading, unless the title is empty, and the table below it."""
        names = [heading.replace("\n", " ").strip() for heading in self.header]
        rules = [":--" if column < self.num_names else "--:" for column in range(len(names))]
        rows = [[MARKDOWN[cell.mark].format(cell.text.replace("|", "\\|")) for cell in row] for row in self.rows]
        lines = [
            "|" + "|".join(f" {text} " if text else " " for text in texts) + "|" for texts in (names, rules, *rows)
        ]
        return "\n".join([*([f"### {self.title}", ""] if self.title else []), *lines, ""])

    def to_rich(self, title_justify: JustifyMethod = "left") -> RichTable:
        """Make the table for a terminal."""
        table = RichTable(title=self.title, title_justify=title_justify)
        before = ""
        for column, heading in enumerate(self.header):
            group, line_break, name = heading.rpartition("\n")
            shown = "" if group == before else group
            table.add_column(f"{shown}{line_break}{name}", justify="left" if column < self.num_names else "right")
            before = group
        for row in self.rows:
            table.add_row(*(Text.assemble((cell.text, TERMINAL[cell.mark])) for cell in row))
        return table


def ranked(values: Sequence[float | None], texts: Sequence[str]) -> list[Cell]:
    """Mark the best and second best of a column's values unless all are equal; None means no value."""
    ranking = sorted({value for value in values if value is not None}, reverse=True)
    marks: dict[float, Mark] = {ranking[0]: "best", ranking[1]: "second"} if len(ranking) > 1 else {}
    return [
        Cell(MISSING) if value is None else Cell(text, marks.get(value, ""))
        for value, text in zip(values, texts, strict=True)
    ]


def with_error(value: float, error: float | None, digits: int = 2) -> str:
    """Format a number and, if known, its error: `61.00 ± 1.25`."""
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
