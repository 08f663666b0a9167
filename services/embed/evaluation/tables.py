"""The dissertation's result tables: which columns, which averages, in which order; best bold, second underlined."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from services.embed.evaluation.instructions import CELEBA_ATTRIBUTES, MMVP, SUGARCREPE
from services.embed.evaluation.linear_probe import ProbeOptions
from services.embed.evaluation.results import DEVIATION, Result, merge_results

MISSING = "–"


class Cell(NamedTuple):
    """A score in points and, where there is one, its standard deviation."""

    score: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.score:.2f}" if self.deviation is None else f"{self.score:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class Group:
    """Neighbouring columns about one benchmark: headings and the scores under them, then the average of all its tasks.

    The average stands only where all `num_tasks` scores are there.
    """

    benchmark: str
    heading: str
    columns: Mapping[str, str]
    average: str | None = None
    num_tasks: int = 0

    def cells(self, scores: Mapping[str, float]) -> list[Cell | None]:
        cells = [
            Cell(scores[key], scores.get(key + DEVIATION)) if key in scores else None for key in self.columns.values()
        ]
        if self.average is None:
            return cells
        mean = average(scores, self.num_tasks)
        return [*cells, None if mean is None else Cell(mean)]

    def headings(self) -> list[str]:
        return [*self.columns, *([] if self.average is None else [self.average])]


@dataclass(frozen=True)
class Layout:
    """A table."""

    title: str
    groups: tuple[Group, ...]


def average(scores: Mapping[str, float], num_tasks: int) -> float | None:
    """The unweighted mean over a benchmark's tasks; None where one is missing."""
    return sum(scores.values()) / num_tasks if len(scores) == num_tasks else None


def _heading(kind: str) -> str:
    return kind.capitalize().replace("_", "-")


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


CELEBA = tuple(CELEBA_ATTRIBUTES)
IMAGENET = (
    *("Bag", "Ball", "Beetle", "Bird", "Car", "Cat", "Dog"),
    *("Fruit", "Fish", "Monkey", "Music Instrument", "Piano", "Snake", "Spider"),
)
FINE_GRAINED = ("Flower", "Car", "Aircraft", "Food")

LAYOUTS = (
    Layout(
        "Table 5.2: CelebA-Attribute (scaled mAP) and GeneCIS (Recall@3)",
        (
            Group(
                "celeba",
                "CelebA-Attribute",
                {**_same("Blond Hair", "Smiling", "Wavy Hair"), "Lipstick": "Wearing Lipstick"},
                "Avg. 29 tasks",
                len(CELEBA),
            ),
            Group("genecis", "GeneCIS", _same("Attribute", "Object"), "Avg.", 2),
        ),
    ),
    Layout(
        "Table 5.3: ImageNet-Subset and fine-grained classification datasets (mAP)",
        (
            Group("imagenet", "ImageNet-Subset", _same("Ball", "Cat", "Dog", "Fish"), "Avg. 14 tasks", len(IMAGENET)),
            Group("fine-grained", "Fine-grained classification", _same(*FINE_GRAINED), "Avg.", len(FINE_GRAINED)),
        ),
    ),
    Layout("Table 5.4: CelebA-Identity (mAP)", (Group("celeba-identity", "", _same("CelebA-Identity")),)),
    Layout(
        "Table 5.5: SugarCrepe (accuracy)",
        (Group("sugarcrepe", "", {_heading(kind): kind for kind in SUGARCREPE}, "Avg.", len(SUGARCREPE)),),
    ),
    Layout("Table 5.6: MMVP-VLM (pairs that are right)", (Group("mmvp", "", _same(*MMVP), "Avg.", len(MMVP)),)),
    Layout(
        "Figure 5.4: linear probe with k images of each class (top-1 accuracy)",
        (Group("linear-probe", "", {f"k = {shots}": str(shots) for shots in ProbeOptions.shots}),),
    ),
    *(
        Layout("Table D.4: CelebA-Attribute (scaled mAP)", (Group("celeba", "", _same(*CELEBA[start : start + 10])),))
        for start in range(0, len(CELEBA), 10)
    ),
    *(
        Layout("Table D.5: ImageNet-Subset (mAP)", (Group("imagenet", "", _same(*IMAGENET[start : start + 7])),))
        for start in range(0, len(IMAGENET), 7)
    ),
)


def print_tables(results: Sequence[Result], console: Console, layouts: Sequence[Layout] = LAYOUTS) -> None:
    """Every table that the results have a score for, a row for each embedder."""
    scores: dict[str, dict[str, Mapping[str, float]]] = {}
    for result in merge_results(results):
        scores.setdefault(result.embedder, {})[result.benchmark] = result.scores
    for layout in layouts:
        cells = {
            embedder: [cell for group in layout.groups for cell in group.cells(by_benchmark.get(group.benchmark, {}))]
            for embedder, by_benchmark in scores.items()
        }
        rows = {embedder: row for embedder, row in cells.items() if any(cell is not None for cell in row)}
        if rows:
            console.print(_table(layout, rows))


def _table(layout: Layout, rows: Mapping[str, Sequence[Cell | None]]) -> Table:
    table = Table(title=layout.title)
    table.add_column("Model")
    for group in layout.groups:
        for place, heading in enumerate(group.headings()):
            table.add_column(f"{group.heading if place == 0 else ''}\n{heading}".lstrip(), justify="right")
    columns = [list(_styled(column)) for column in zip(*rows.values(), strict=True)]
    for embedder, row in zip(rows, zip(*columns, strict=True), strict=True):
        table.add_row(embedder, *row)
    return table


def _styled(column: Sequence[Cell | None]) -> Iterator[str]:
    """A column's cells as text; of several the best is bold and the second underlined."""
    ranking = sorted({cell.score for cell in column if cell is not None}, reverse=True)
    styles = dict(zip(ranking, ("bold", "underline"), strict=False)) if len(ranking) > 1 else {}
    for cell in column:
        if cell is None:
            yield MISSING
        else:
            yield f"[{styles[cell.score]}]{cell}[/]" if cell.score in styles else str(cell)
