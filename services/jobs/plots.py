"""Line plots with error bars, scatter plots, and flows, as SVG, drawn by matplotlib."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_SIZE = 4.4, 3.2  # inches, without the legend
LEGEND_LINE = 0.22
FLOW_STEP_WIDTH = 2.2
FLOW_POINTS = 40  # of a bent edge
FLOW_END = 0.3  # length of the whole band before the first step, and of what remains after the last
MARK_RADIUS = 3.0  # points, like all radii
# Okabe and Ito's palette, suitable for all kinds of color vision; marks distinguish the curves in grey as well
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = ("o", "s", "^", "D")
# Reproducible files: text stays text, and identifiers are not random.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fovea",
    "font.sans-serif": ["DejaVu Sans"],  # included with matplotlib
    "font.size": 9,
    "text.parse_math": False,
    "axes.grid.axis": "y",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.edgecolor": "#70757d",
    "axes.labelcolor": "#1c1e22",
    "grid.color": "#dee1e6",
    "xtick.color": "#70757d",
    "ytick.color": "#70757d",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Curve:
    """Points (x, y) in the order in which they are joined, unless not `is_joined`.

    `errors` holds the lengths of each point's error bar, up and down; None, or no `errors` at all, for no bars. A curve
    that `is_level` has one point, whose x is ignored, and spans the whole panel. Marks with another radius than the
    usual one are translucent.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    errors: tuple[float | None, ...] = ()
    is_level: bool = False
    mark_radius: float = MARK_RADIUS
    is_joined: bool = True


@dataclass(frozen=True)
class Panel:
    """A pair of axes. With `has_zero` the vertical axis starts at 0.

    The horizontal axis spans `x_range`, or else the range of the points, and labels every point's x, with `x_names`
    where they have an entry; without `labels_points` it labels round numbers. With `is_x_logarithmic`, equal ratios of
    x are equally far apart.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    has_zero: bool = True
    x_range: tuple[float, float] | None = None
    x_names: Mapping[float, str] = field(default_factory=dict)
    is_x_logarithmic: bool = False
    labels_points: bool = True


def draw(panels: Sequence[Panel], *, columns: int = 2) -> str:
    """Draw the panels as one SVG document, `columns` in a row.

    Raises ValueError without panels, without points, and if the numbers of errors and points differ.
    """
    # imported here because only this function needs matplotlib, which takes long to import
    from matplotlib import style
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("there are no panels to draw")
    columns = min(columns, len(panels))
    num_rows = -(-len(panels) // columns)
    width, height = PANEL_SIZE
    height += LEGEND_LINE * max(len(panel.curves) for panel in panels)
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(columns * width, num_rows * height), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            _draw_panel(figure.add_subplot(num_rows, columns, place), panel)
        return _svg(figure)


def _svg(figure: "Figure") -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return text.getvalue()[text.getvalue().index("<svg") :]  # without a DOCTYPE that viewers would fetch


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    if not any(curve.points for curve in panel.curves):
        raise ValueError(f"{panel.title!r} has no points")
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.is_x_logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, COLORS[number % len(COLORS)], MARKS[number % len(MARKS)])
    if panel.labels_points:
        positions = sorted({x for curve in panel.curves if not curve.is_level for x, _ in curve.points})
        axes.set_xticks(positions, [panel.x_names.get(x, f"{x:g}") for x in positions])
    if panel.x_range is not None:
        axes.set_xlim(*panel.x_range)
    if panel.has_zero and axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2))
    for line in legend.get_lines():
        line.set_markersize(2 * MARK_RADIUS)


def _draw_curve(axes: "Axes", curve: Curve, color: str, mark: str) -> None:
    if curve.is_level:
        axes.axhline(curve.points[0][1], color=color, linestyle="dashed", label=curve.name)
        return
    xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
    alpha = 1.0 if curve.mark_radius == MARK_RADIUS else 0.5
    axes.plot(
        xs, ys, color=color, marker=mark, markersize=2 * curve.mark_radius, alpha=alpha, label=curve.name,
        linestyle="solid" if curve.is_joined else "none",
    )  # fmt: skip
    if curve.errors:
        errors = [math.nan if error is None else error for error in curve.errors]
        axes.errorbar(xs, ys, errors, fmt="none", ecolor=color, capsize=3)


@dataclass(frozen=True)
class FlowStep:
    """A step of a process at which some items are lost, and the label of those."""

    lost_label: str
    num_lost: int


def draw_flow(first: str, total: int, steps: Sequence[FlowStep], last: str) -> str:
    """Draw what remains of `total` items after each step as one SVG document, in the manner of a Sankey diagram.

    The band of the remaining items is as high as their number; what a step takes bends down from it. Raises ValueError
    without items, and if more are lost than there are.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    if total <= 0 or sum(step.num_lost for step in steps) > total:
        raise ValueError(f"{total} items can't lose {sum(step.num_lost for step in steps)}")
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(FLOW_STEP_WIDTH * (len(steps) + 2), 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        remaining = total
        _fill_band(axes, [-FLOW_END, 0], [0, 0], [total, total], COLORS[0])
        _label_band(axes, -FLOW_END, total, f"{first}\n{total:,}")
        for place, step in enumerate(steps):
            _draw_step(axes, place, total, remaining, step)
            remaining -= step.num_lost
        end = len(steps) + FLOW_END
        _fill_band(axes, [len(steps), end], [total - remaining] * 2, [total, total], COLORS[0])
        _label_band(axes, end, total, f"{last}\n{remaining:,}")
        axes.set(xlim=(-FLOW_END - 0.1, end + 0.1), ylim=(-0.45 * total, 1.25 * total))
        return _svg(figure)


def _draw_step(axes: "Axes", place: int, total: int, remaining: int, step: FlowStep) -> None:
    """Draw the band of the items that remain after a step, and that of those lost, which ends below."""
    bottom = total - remaining
    _fill_band(axes, [place, place + 1], [bottom + step.num_lost] * 2, [total, total], COLORS[0])
    xs = [place + i / FLOW_POINTS for i in range(FLOW_POINTS + 1)]
    drops = [(3 * t**2 - 2 * t**3) * (bottom + 0.2 * total) for t in (x - place for x in xs)]
    lower = [bottom - drop for drop in drops]
    upper = [bottom + step.num_lost - drop for drop in drops]
    _fill_band(axes, xs, lower, upper, COLORS[1 + place % (len(COLORS) - 1)])
    axes.text(place + 1, lower[-1] - 0.03 * total, f"{step.lost_label}\n{step.num_lost:,}", ha="center", va="top")


def _fill_band(axes: "Axes", xs: Sequence[float], lower: Sequence[float], upper: Sequence[float], color: str) -> None:
    axes.fill([*xs, *reversed(xs)], [*lower, *reversed(upper)], color=color, alpha=0.7, lw=0)


def _label_band(axes: "Axes", x: float, total: int, text: str) -> None:
    axes.text(x, 1.03 * total, text, ha="left" if x < 0 else "right", va="bottom")
