"""The gains and costs of shares α of tuned weights, and the choice of one (WiSE-FT; FSC-CLIP's Figure 3).

Some parts of the suite are to gain, others are to be kept. A benchmark counts once, whatever the number of its parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from services.jobs.plots import Curve, Panel, draw
from services.jobs.tables import Cell, Table
from services.score.evaluation.aggregates import AVERAGE, COMP, ELEVATER, aggregates
from services.score.evaluation.results import Result
from services.score.evaluation.suite.parts import PARTS

# By default, FSC-CLIP's Comp is to gain and its ZS is to be kept.
COMP_PARTS = tuple(name for name, part in PARTS.items() if part.benchmark in COMP)
ZERO_SHOT_PARTS = ELEVATER


@dataclass(frozen=True)
class Point:
    """A share α with the numbers of what is to gain and of what is to be kept, in percent, by benchmark."""

    alpha: float
    gains: Mapping[str, float]
    keeps: Mapping[str, float]

    @property
    def gained(self) -> float:
        """The mean over benchmarks."""
        return fmean(self.gains.values())

    @property
    def kept(self) -> float:
        """The mean over benchmarks."""
        return fmean(self.keeps.values())


def values_of(names: Sequence[str], results: Sequence[Result]) -> dict[str, float]:
    """Compute one number for each benchmark of some parts; for retrieval two, recall at 1 both ways.

    It is the average in FSC-CLIP's Table 1 if the parts are all of the benchmark, otherwise the mean of their tasks.
    Raises KeyError for a score that is not there.
    """
    scores = {result.benchmark: result.scores for result in results}
    sizes = {result.benchmark: result.sizes for result in results}
    values = {}
    for benchmark in dict.fromkeys(PARTS[name].benchmark for name in names):
        tasks = [task for name in names if PARTS[name].benchmark == benchmark for task in PARTS[name].scores]
        own = {task: scores[benchmark][task] for task in tasks}
        if benchmark == "retrieval":
            for way in ("i2t", "t2i"):
                values[f"{way.upper()} R@1"] = fmean(own[task] for task in tasks if task.endswith(f"::{way}/R@1"))
        else:
            values[benchmark] = aggregates(benchmark, own, sizes[benchmark]).get(AVERAGE, fmean(own.values()))
    return values


def choose(points: Sequence[Point], margin: float) -> Point:
    """Choose the share that gains most among those that lose at most `margin` points of each number to be kept,
    compared with the share 0, which is the model before tuning and the first of the points."""
    base = points[0]
    allowed = [
        point for point in points if all(point.keeps[name] >= value - margin for name, value in base.keeps.items())
    ]
    return max(allowed, key=lambda point: point.gained)


def make_table(points: Sequence[Point], chosen: Point) -> Table:
    """Make the table of a model's shares: the means, and each number that they are means of."""
    columns = [("gained", "Mean"), *(("gained", name) for name in points[0].gains)]
    columns += [("kept", "Mean"), *(("kept", name) for name in points[0].keeps)]
    rows = [
        (
            Cell(f"{point.alpha:g}" + (", chosen" if point == chosen else "")),
            *(Cell(f"{value:.1f}") for value in (point.gained, *point.gains.values())),
            *(Cell(f"{value:.1f}") for value in (point.kept, *point.keeps.values())),
        )
        for point in points
    ]
    header = ("\nα", *(f"{group}\n{name}" for group, name in columns))
    return Table("WiSE-FT: shares α of the tuned weights, percent", header, tuple(rows))


def plot(curves: Mapping[str, Sequence[Point]], labels: tuple[str, str]) -> str:
    """Plot what models gain over what they keep, with a mark for each α, as SVG (Figure 3)."""
    drawn = tuple(Curve(name, tuple((point.kept, point.gained) for point in points)) for name, points in curves.items())
    axes = Panel("WiSE-FT, α from 0 to 1", *labels, drawn, has_zero=False, labels_points=False)
    return draw([axes], columns=1)
