"""The dissertation's result tables: columns, averages and order; the best score is bold, the second underlined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from services.embed.evaluation.instructions import CELEBA_ATTRIBUTES, MMVP, SUGARCREPE
from services.embed.evaluation.linear_probe import ProbeOptions
from services.embed.evaluation.results import DEVIATION, RESULT_FILES, Result
from services.jobs.tables import Cell, Table, ranked, with_error


@dataclass(frozen=True)
class Group:
    """Adjacent columns for one benchmark: headings and their scores, then the average of all its tasks.

    The average is shown only if all `num_tasks` scores exist.
    """

    benchmark: str
    heading: str
    columns: Mapping[str, str]
    average: str | None = None
    num_tasks: int = 0

    def headings(self) -> list[str]:
        names = [*self.columns, *([] if self.average is None else [self.average])]
        return [f"{self.heading}\n{names[0]}", *names[1:]] if self.heading else names

    def values(self, scores: Mapping[str, float]) -> list[tuple[float, float | None] | None]:
        """Return a score and its deviation for each column; None if there is none."""
        values = [
            (scores[key], scores.get(key + DEVIATION)) if key in scores else None for key in self.columns.values()
        ]
        if self.average is None:
            return values
        mean = average(scores, self.num_tasks)
        return [*values, None if mean is None else (mean, None)]


@dataclass(frozen=True)
class Layout:
    """A table."""

    title: str
    groups: tuple[Group, ...]


def average(scores: Mapping[str, float], num_tasks: int) -> float | None:
    """Compute the unweighted mean over a benchmark's tasks; None if one is missing."""
    return sum(scores.values()) / num_tasks if len(scores) == num_tasks else None


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
        (
            Group(
                "sugarcrepe",
                "",
                {kind.capitalize().replace("_", "-"): kind for kind in SUGARCREPE},
                "Avg.",
                len(SUGARCREPE),
            ),
        ),
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
    """Print every table for which the results have a score, with a row for each embedder."""
    scores: dict[str, dict[str, Mapping[str, float]]] = {}
    for result in RESULT_FILES.merge(results):
        scores.setdefault(result.embedder, {})[result.benchmark] = result.scores
    for layout in layouts:
        values = {
            embedder: [
                value for group in layout.groups for value in group.values(by_benchmark.get(group.benchmark, {}))
            ]
            for embedder, by_benchmark in scores.items()
        }
        rows = {embedder: row for embedder, row in values.items() if any(value is not None for value in row)}
        if rows:
            console.print(_table(layout, rows).to_rich("center"))


def _table(layout: Layout, rows: Mapping[str, Sequence[tuple[float, float | None] | None]]) -> Table:
    header = ("Model", *(heading for group in layout.groups for heading in group.headings()))
    columns = [
        ranked(
            [None if value is None else value[0] for value in column],
            ["" if value is None else with_error(*value) for value in column],
        )
        for column in zip(*rows.values(), strict=True)
    ]
    cells = zip(*columns, strict=True)
    return Table(layout.title, header, tuple((Cell(name), *row) for name, row in zip(rows, cells, strict=True)))
