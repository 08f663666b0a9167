"""Line plots with error bars as SVG text. Lengths are in pixels.

SVG by hand, because a few lines on axes are worth no plotting library among the services' dependencies.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 22, 36, 46
LEGEND_LINE = 18
MAX_TICKS = 6
MARK_RADIUS = 4.0
CAP_WIDTH = 8  # of an error bar
DASHES = 'stroke-dasharray="6 4"'  # of what is level

PAPER, INK, PALE_INK, GRID = "#ffffff", "#1c1e22", "#70757d", "#dee1e6"
# Okabe and Ito's, told apart with every kind of colour vision; marks tell the curves apart in grey as well
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Curve:
    """Points (x, y) in the order in which they are joined.

    `errors` holds, for each point, how far its error bar reaches up and down; None, or no `errors` at all, for none. A
    curve that `is_level` has one point, whose x does not count, and crosses the whole panel. Marks of
    another than the usual radius let others shine through.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    errors: tuple[float | None, ...] = ()
    is_level: bool = False
    mark_radius: float = MARK_RADIUS

    def bars(self) -> Iterator[tuple[float, float, float]]:
        """The error bars, (x, lower y, upper y) each."""
        for (x, y), error in zip(self.points, self.errors, strict=bool(self.errors)):
            if error is not None:
                yield x, y - error, y + error


@dataclass(frozen=True)
class Panel:
    """One pair of axes. With `has_zero` the vertical one starts at 0; it always says where it starts.

    The horizontal axis reaches over `x_range`, else from the first point to the last, and names the x of every point,
    by `x_names` where that knows it. With `is_x_logarithmic`, equal ratios of x are equally far apart.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    has_zero: bool = True
    x_range: tuple[float, float] | None = None
    x_names: Mapping[float, str] = field(default_factory=dict)
    is_x_logarithmic: bool = False


def draw(panels: Sequence[Panel], *, columns: int = 2) -> str:
    """The panels as one SVG document, `columns` in a row. Raises ValueError without panels and without points."""
    if not panels:
        raise ValueError("there is nothing to draw")
    columns = min(columns, len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    heights = [PANEL_HEIGHT + LEGEND_LINE * max(len(panel.curves) for panel in row) for row in rows]
    width, height = columns * PANEL_WIDTH, sum(heights)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    top = 0
    for row, row_height in zip(rows, heights, strict=True):
        for column, panel in enumerate(row):
            parts.append(f'<g transform="translate({column * PANEL_WIDTH} {top})">')
            parts.extend(_panel(panel))
            parts.append("</g>")
        top += row_height
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True)
class _Axes:
    """The range of both axes, and from values to pixels; downwards is positive."""

    x: tuple[float, float]
    y: tuple[float, float]
    is_x_logarithmic: bool

    @classmethod
    def around(cls, panel: Panel) -> "_Axes":
        xs = _positions(panel)
        ys = [y for curve in panel.curves for _, y in curve.points]
        if not ys:
            raise ValueError(f"{panel.title!r} has no points")
        ys += [end for curve in panel.curves for _, *ends in curve.bars() for end in ends]
        ticks = _ticks(min([*ys, 0.0]) if panel.has_zero else min(ys), max(ys))
        x_range = panel.x_range or ((xs[0], xs[-1]) if xs else (0.0, 1.0))
        return cls(x_range, (ticks[0], ticks[-1]), panel.is_x_logarithmic)

    def place(self, x: float, y: float) -> tuple[float, float]:
        start, end, at = (math.log(value) if self.is_x_logarithmic else value for value in (*self.x, x))
        across = (at - start) / (end - start) if end > start else 0.5  # a single x stands in the middle
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        width, height = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM
        return round(LEFT + across * width, 2), round(TOP + (1 - up) * height, 2)


def _panel(panel: Panel) -> Iterator[str]:
    axes = _Axes.around(panel)
    yield _text(PANEL_WIDTH / 2, 20, panel.title, anchor="middle", color=INK)
    for value in _ticks(*axes.y):
        _, y = axes.place(axes.x[0], value)
        yield f'<line x1="{LEFT}" y1="{y}" x2="{PANEL_WIDTH - RIGHT}" y2="{y}" stroke="{GRID}"/>'
        yield _text(LEFT - 6, y + 4, f"{value:g}", anchor="end")
    for x in _positions(panel):
        across, bottom = axes.place(x, axes.y[0])
        yield _text(across, bottom + 16, panel.x_names.get(x, f"{x:g}"), anchor="middle")
    middle = TOP + (PANEL_HEIGHT - TOP - BOTTOM) / 2
    yield _text(PANEL_WIDTH / 2, PANEL_HEIGHT - 12, panel.x_label, anchor="middle")
    yield _text(14, middle, panel.y_label, anchor="middle", turned=True)
    for number, curve in enumerate(panel.curves):
        yield from _curve(curve, number, axes)
        yield from _legend(curve, number)


def _curve(curve: Curve, number: int, axes: _Axes) -> Iterator[str]:
    color = COLORS[number % len(COLORS)]
    if curve.is_level:
        _, y = axes.place(axes.x[0], curve.points[0][1])
        yield _line([(LEFT, y), (PANEL_WIDTH - RIGHT, y)], color, DASHES)
        return
    for x, low, high in curve.bars():
        yield _bar(axes.place(x, low), axes.place(x, high), color)
    places = [axes.place(x, y) for x, y in curve.points]
    if len(places) > 1:
        yield _line(places, color, "")
    for place in places:
        yield _mark(MARKS[number % len(MARKS)], place, color, curve.mark_radius)


def _legend(curve: Curve, number: int) -> Iterator[str]:
    y = PANEL_HEIGHT + LEGEND_LINE * number
    color = COLORS[number % len(COLORS)]
    dashes = f" {DASHES}" if curve.is_level else ""
    yield f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + 24}" y2="{y}" stroke="{color}" stroke-width="2"{dashes}/>'
    if not curve.is_level:
        yield _mark(MARKS[number % len(MARKS)], (LEFT + 12, y), color)
    yield _text(LEFT + 32, y + 4, curve.name, color=INK)


def _bar(lower: tuple[float, float], upper: tuple[float, float], color: str) -> str:
    """An error bar, with a cap at either end."""
    (x, low), (_, high) = lower, upper
    left, right = round(x - CAP_WIDTH / 2, 2), round(x + CAP_WIDTH / 2, 2)
    path = f"M{left} {low}H{right}M{x} {low}V{high}M{left} {high}H{right}"
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def _line(places: Sequence[tuple[float, float]], color: str, style: str) -> str:
    points = " ".join(f"{x},{y}" for x, y in places)
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2" {style}/>'


def _mark(kind: str, place: tuple[float, float], color: str, radius: float = MARK_RADIUS) -> str:
    x, y = place
    scale = radius / MARK_RADIUS
    look = f'fill="{color}"' if scale == 1 else f'fill="{color}" fill-opacity="0.5"'
    if kind == "circle":
        return f'<circle cx="{x}" cy="{y}" r="{radius:g}" {look}/>'
    corners = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "triangle": ((0, -5), (5, 4), (-5, 4)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    }[kind]
    points = " ".join(f"{x + dx * scale:g},{y + dy * scale:g}" for dx, dy in corners)
    return f'<polygon points="{points}" {look}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", color: str = PALE_INK, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}"{turn}>{escape(text)}</text>'


def _positions(panel: Panel) -> list[float]:
    """Every x that has a point: they are few, and none of them may be guessed at."""
    return sorted({x for curve in panel.curves if not curve.is_level for x, _ in curve.points})


def _ticks(low: float, high: float) -> list[float]:
    """Round values from not above `low` to not below `high`, at most MAX_TICKS or one more."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / MAX_TICKS))
    step = next(step for factor in (1, 2, 5, 10, 20) if span / (step := factor * magnitude) <= MAX_TICKS)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]
