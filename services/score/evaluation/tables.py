"""Comparison of judges, in the layouts of the dissertation's Tables 4.5, 4.6, C.2 and C.4 and of FSC-CLIP's tables.

Other benchmarks get a table of their own. The best value of a column is bold, the second underlined. Rows whose names
end with `#SEED` are trainings of one method (Table 7), those with `, α = SHARE` are interpolated weights (Figure 3).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rich.console import Console

from services.jobs.plots import Curve, Panel, draw
from services.jobs.tables import MISSING, Cell, Table, ranked
from services.score.evaluation.aggregates import (
    ARO_ORDERS,
    ARO_VISUAL_GENOME,
    AVERAGE,
    COMP,
    CREPE,
    ELEVATER,
    MACRO,
    RETRIEVAL,
    SUGARCREPE_FORMS,
    SUGARCREPE_SIZES,
    VALSE_GROUPS,
    VL_CHECKLIST,
    aggregates,
    comp,
    mean_of,
)
from services.score.evaluation.judges import RESULT_FILES, Result

# One judge's numbers, by benchmark and name of a task or an aggregate.
Numbers = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Column:
    """A heading, the heading of its group of adjacent columns, and the source of its number."""

    heading: str
    of: Callable[[Numbers], float | None]
    group: str = ""


@dataclass(frozen=True)
class Layout:
    """A table's columns; those without any number are left out."""

    title: str
    columns: tuple[Column, ...]
    digits: int = 2


def numbers_of(results: Sequence[Result]) -> dict[str, Numbers]:
    """Collect scores and aggregates, by judge and benchmark."""
    numbers: dict[str, dict[str, Mapping[str, float]]] = {}
    for result in RESULT_FILES.merge(results):
        own = {**result.scores, **aggregates(result.benchmark, result.scores, result.sizes)}
        numbers.setdefault(result.judge, {})[result.benchmark] = own
    return dict(numbers)


def make_tables(results: Sequence[Result]) -> list[Table]:
    """Make every table for which the results have a number, with a row for each judge or, in Table 7, each method."""
    numbers = numbers_of(results)
    benchmarks = dict.fromkeys(result.benchmark for result in results)
    layouts = [*LAYOUTS, *(_layout(name, results) for name in benchmarks if name not in LAID_OUT)]
    of_rows = [table for layout in layouts for table in _made(layout, numbers)]
    return [*of_rows, *_table_of_seeds(numbers), *_table_of_shares(numbers)]


def print_tables(results: Sequence[Result], console: Console) -> None:
    """Print every table on a terminal."""
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

AVERAGES = (
    Column("Comp", _comp),
    Column("ZS", _number("elevater", AVERAGE)),
    Column("I2T Ret", _number("retrieval", "i2t")),
    Column("T2I Ret", _number("retrieval", "t2i")),
)
_TABLE_1 = (
    *(Column(heading, _number(benchmark, AVERAGE)) for heading, benchmark in zip(_COMP_HEADINGS, COMP, strict=True)),
    *AVERAGES,
)
_TABLE_C2 = (
    *(
        Column(heading, _number("crepe", task), "CREPE")
        for heading, task in zip(("Atomic", "Swap", "Negate"), CREPE, strict=True)
    ),
    *(Column(task.replace("_", "-"), _number("aro", task), "ARO") for task in (*ARO_VISUAL_GENOME, *ARO_ORDERS[::-1])),
    *(Column(group, _number("vl_checklist", group), "VL-CheckList") for group in VL_CHECKLIST),
)
_RETRIEVAL_HEADINGS = ("COCO", "Flickr30k", "COCO-CounterFactuals")

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
    Layout("Table C.2: existing benchmarks (accuracy)", _TABLE_C2),
    Layout(
        "VALSE: by phenomenon (accuracy)",
        (
            *(Column(name.capitalize(), _valse_group(tasks)) for name, tasks in VALSE_GROUPS.items()),
            Column("Average", _number("valse", AVERAGE)),
        ),
    ),
    Layout("Table 1 of FSC-CLIP: averages of sub-tasks", _TABLE_1, digits=1),
    Layout("Tables 2 to 5 of FSC-CLIP: averages over benchmarks", AVERAGES, digits=1),
    Layout(
        "Table 8 of FSC-CLIP: zero-shot classification",
        (
            *(Column(name, _number("elevater", name)) for name in ELEVATER),
            Column("Average", _number("elevater", AVERAGE)),
        ),
        digits=1,
    ),
    Layout(
        "Table 9 of FSC-CLIP: zero-shot retrieval",
        (
            *(
                Column(f"{way.upper()} R@{k}", _number("retrieval", f"{name}::{way}/R@{k}"), heading)
                for heading, name in zip(_RETRIEVAL_HEADINGS, RETRIEVAL, strict=True)
                for way in ("i2t", "t2i")
                for k in (1, 5, 10)
            ),
            *(Column(f"{way.upper()} R@1", _number("retrieval", way), "Avg.") for way in ("i2t", "t2i")),
        ),
        digits=1,
    ),
)
# Benchmarks whose tasks have columns in a layout above.
LAID_OUT = frozenset({"sugarcrepe", "valse", "aro+crepe", "elevater", "retrieval"})


def draw_blind(results: Sequence[Result]) -> str | None:
    """Draw the best judge that reads only captions and the best of the others as SVG, by column of Table C.2 (Figure
    4.2); None if no column has both."""
    numbers = numbers_of(results)
    blind = {one.judge for one in results if one.settings.get("reads") == "captions"}
    best: dict[str, tuple[float, float]] = {}
    for column in _TABLE_C2:
        values = {judge: value for judge, own in numbers.items() if (value := column.of(own)) is not None}
        if values.keys() & blind and values.keys() - blind:
            of_blind = max(value for judge, value in values.items() if judge in blind)
            name = f"{column.group}\n{column.heading.replace('-', f'-{chr(10)}')}"
            best[name] = of_blind, max(value for judge, value in values.items() if judge not in blind)
    if not best:
        return None
    curves = [
        Curve(name, tuple((float(place), pair[number]) for place, pair in enumerate(best.values())), is_joined=False)
        for number, name in enumerate(("best without images", "best with images"))
    ]
    x_names = {float(place): name for place, name in enumerate(best)}
    return draw([Panel("Figure 4.2: accuracy by task", "task", "%", tuple(curves), x_names=x_names)])


def _layout(benchmark: str, results: Sequence[Result]) -> Layout:
    """Make a layout for a benchmark that has none: a column for each score and each aggregate."""
    names: dict[str, None] = {}
    for result in results:
        if result.benchmark == benchmark:
            names |= dict.fromkeys([*result.scores, *aggregates(benchmark, result.scores, result.sizes)])
    return Layout(f"{benchmark} (accuracy)", tuple(Column(name, _number(benchmark, name)) for name in names))


def _made(layout: Layout, numbers: Mapping[str, Numbers]) -> Iterator[Table]:
    """Yield the table, unless no judge has a number for it."""
    found = {column: [column.of(own) for own in numbers.values()] for column in layout.columns}
    columns = [column for column, values in found.items() if any(value is not None for value in values)]
    if columns:
        line = "\n" if any(column.group for column in columns) else ""
        cells = [_cells(found[column], layout.digits) for column in columns]
        rows = zip(numbers, zip(*cells, strict=True), strict=True)
        yield Table(
            layout.title,
            (f"{line}Model", *(f"{column.group}{line}{column.heading}" for column in columns)),
            tuple((Cell(judge), *row) for judge, row in rows if any(cell.text != MISSING for cell in row)),
        )


SEED = re.compile(r"(?P<name>.+)#(?P<number>\d+)")
SHARE = re.compile(r"(?P<name>.+), α = (?P<number>[\d.]+)")


def name_of_share(name: str, alpha: float) -> str:
    """Name the row of the weights that are a share α of a tuned model."""
    return f"{name}, α = {alpha:g}"


def shares_of(numbers: Mapping[str, Numbers]) -> dict[str, dict[float, Numbers]]:
    """Collect the rows of interpolated weights, by the tuned model's name and the share of it in rising order."""
    return _numbered(SHARE, numbers)


def _numbered(pattern: re.Pattern[str], numbers: Mapping[str, Numbers]) -> dict[str, dict[float, Numbers]]:
    found: dict[str, dict[float, Numbers]] = {}
    for judge, own in numbers.items():
        if match := pattern.fullmatch(judge):
            found.setdefault(match["name"], {})[float(match["number"])] = own
    return {name: dict(sorted(rows.items())) for name, rows in found.items() if len(rows) > 1}


def _table_of_seeds(numbers: Mapping[str, Numbers]) -> Iterator[Table]:
    """Yield Table 7 unless no method has two seeds; a column's number needs a score of each of a method's seeds."""
    methods = _numbered(SEED, numbers)
    columns = [
        (
            column.heading,
            [_mean_and_deviation([column.of(own) for own in seeds.values()]) for seeds in methods.values()],
        )
        for column in _TABLE_1
    ]
    shown = [(heading, texts) for heading, texts in columns if any(texts)]
    if shown:
        rows = zip(*([text or MISSING for text in texts] for _, texts in shown), strict=True)
        names = [f"{name} ({len(seeds)} seeds)" for name, seeds in methods.items()]
        yield Table.of_texts(
            "Table 7 of FSC-CLIP: mean and standard deviation over seeds",
            ("Model", *(heading for heading, _ in shown)),
            ([name, *row] for name, row in zip(names, rows, strict=True)),
        )


def _mean_and_deviation(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.1f} ± {stdev(known):.2f}" if len(known) == len(values) else ""


def _table_of_shares(numbers: Mapping[str, Numbers]) -> Iterator[Table]:
    """Yield the points of Figure 3 unless no model has two shares."""
    rows = [(name, f"{alpha:g}", own) for name, some in shares_of(numbers).items() for alpha, own in some.items()]
    shown = [column for column in AVERAGES if any(column.of(own) is not None for _, _, own in rows)]
    if shown:
        texts = [
            [name, alpha, *(MISSING if (value := column.of(own)) is None else f"{value:.1f}" for column in shown)]
            for name, alpha, own in rows
        ]
        title = "Figure 3 of FSC-CLIP: averages by the share α of tuned weights"
        yield Table.of_texts(title, ("Model", "α", *(column.heading for column in shown)), texts, num_names=2)


def _cells(values: Sequence[float | None], digits: int) -> list[Cell]:
    """Make the cells of a column, whose numbers are compared after rounding."""
    texts = ["" if value is None else f"{value:.{digits}f}" for value in values]
    return ranked([float(text) if text else None for text in texts], texts)
