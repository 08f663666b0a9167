"""Plots put every point where its value is, and are the same file from the same values."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from services.jobs.plots import COLORS, MARK_RADIUS, Curve, FlowStep, Panel, draw, draw_flow

pytestmark = pytest.mark.process

NAMESPACE = "{http://www.w3.org/2000/svg}"
VANILLA = Curve("Vanilla <attention>", ((1, 80.0), (5, 40.0), (10, 60.0)))
LEVEL = Curve("LongLLMLingua-r_k", ((0, 70.0),), is_level=True)


def panel_with(*curves: Curve, has_zero: bool = True) -> Panel:
    return Panel("K = 10", "Gold position", "Accuracy (%)", curves, has_zero)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def lines_of(svg: str, color: str = COLORS[0]) -> list[list[tuple[float, float]]]:
    """The lines of a colour inside the axes, from point to point; downwards is positive."""
    found = []
    for path in ET.fromstring(svg).iter(f"{NAMESPACE}path"):
        if "clip-path" in path.attrib and f"stroke: {color}" in path.attrib.get("style", ""):
            flat = numbers(path.attrib.get("d", ""))
            found.append(list(zip(flat[::2], flat[1::2], strict=True)))
    return found


def marks_of(svg: str, color: str = COLORS[0]) -> list[tuple[float, float]]:
    """The marks of a colour inside the axes and in the legend."""
    uses = ET.fromstring(svg).iter(f"{NAMESPACE}use")
    return [
        (float(use.attrib["x"]), float(use.attrib["y"]))
        for use in uses
        if f"fill: {color}" in use.attrib.get("style", "")
    ]


def texts_of(svg: str) -> list[str]:
    return [str(text.text) for text in ET.fromstring(svg).iter(f"{NAMESPACE}text")]


def test_points_lie_in_proportion_to_their_values() -> None:
    ((first, middle, last),) = lines_of(draw([panel_with(VANILLA, LEVEL)]))
    assert first[0] < middle[0] < last[0]
    assert (middle[0] - first[0]) / (last[0] - first[0]) == pytest.approx(4 / 9, abs=1e-3)
    # 80 is highest, and 60 half way between 80 and 40
    assert first[1] < last[1] < middle[1]
    assert last[1] == pytest.approx((first[1] + middle[1]) / 2, abs=0.02)


def test_a_level_curve_crosses_the_panel_at_its_height() -> None:
    svg = draw([panel_with(VANILLA, LEVEL)])
    (points,), ((left, right),) = lines_of(svg), lines_of(svg, COLORS[1])
    assert left[1] == right[1] == pytest.approx(points[0][1] * 3 / 4 + points[1][1] / 4, abs=0.02)
    assert left[0] < points[0][0] < points[-1][0] < right[0]


def test_the_axis_starts_at_zero_or_says_where_else() -> None:
    assert "0" in texts_of(draw([panel_with(VANILLA)]))
    near = texts_of(draw([panel_with(VANILLA, has_zero=False)]))
    assert "0" not in near
    assert {"40", "80"} <= set(near)


def test_every_position_and_every_curve_is_named() -> None:
    texts = texts_of(draw([panel_with(VANILLA, LEVEL)]))
    assert {"1", "5", "10", "Gold position", "Accuracy (%)", "K = 10"} <= set(texts)
    assert {"Vanilla <attention>", "LongLLMLingua-r_k"} <= set(texts)


def test_a_name_with_dollar_signs_is_no_formula() -> None:
    assert "$x_1$" in texts_of(draw([panel_with(Curve("$x_1$", VANILLA.points))]))


@pytest.mark.parametrize("values", [(0.0, 0.0), (5e-5, 2e-4), (-1.0, 1.0), (3.0, 3.0), (1e6, 2e6)])
def test_any_range_of_values_stays_inside_its_panel(values: tuple[float, float]) -> None:
    svg = draw([panel_with(Curve("some", ((1, values[0]), (2, values[1]))))])
    (clip,) = ET.fromstring(svg).iter(f"{NAMESPACE}clipPath")
    left, top, width, height = (float(clip[0].attrib[name]) for name in ("x", "y", "width", "height"))
    for x, y in lines_of(svg)[0]:
        assert left <= x <= left + width
        assert top <= y <= top + height


def test_each_panel_has_axes_of_its_own_two_in_a_row() -> None:
    svg = draw([panel_with(VANILLA), panel_with(VANILLA, LEVEL), panel_with(LEVEL)])
    corners = [
        (float(c[0].attrib["x"]), float(c[0].attrib["y"])) for c in ET.fromstring(svg).iter(f"{NAMESPACE}clipPath")
    ]
    assert len(corners) == 3
    xs, ys = sorted({round(x) for x, _ in corners}), sorted({round(y) for _, y in corners})
    assert len(xs) == len(ys) == 2


def test_an_error_bar_reaches_as_far_as_its_error_up_and_down() -> None:
    svg = draw([panel_with(Curve("some", ((1, 20.0), (2, 40.0), (3, 60.0)), errors=(10.0, None, 20.0)))])
    lines = lines_of(svg)
    (places,) = (line for line in lines if len(line) == 3)
    per_unit = (places[0][1] - places[2][1]) / 40
    first, third = (line for line in lines if len(line) == 2)
    for bar, place, error in ((first, places[0], 10), (third, places[2], 20)):
        (x, low), (_, high) = sorted(bar, key=lambda end: -end[1])
        assert x == pytest.approx(place[0])
        assert low - place[1] == pytest.approx(error * per_unit, abs=0.02)
        assert place[1] - high == pytest.approx(error * per_unit, abs=0.02)


def test_points_that_are_not_joined_have_marks_alone_and_round_numbers_below() -> None:
    points = tuple((x, 2 * x) for x in (61.3, 74.9, 88.2))
    svg = draw([Panel("models", "x", "y", (Curve("one each", points, is_joined=False),), labels_points=False)])
    assert lines_of(svg) == []
    assert len(marks_of(svg)) == 3 + 1  # and one in the legend
    assert "61.3" not in texts_of(svg)


def test_errors_must_be_as_many_as_points() -> None:
    with pytest.raises(ValueError, match="yerr"):
        draw([panel_with(Curve("some", ((1, 20.0), (2, 40.0), (3, 60.0)), errors=(1.0, 2.0)))])


def test_on_a_logarithmic_axis_equal_ratios_are_equally_far_apart() -> None:
    sizes = Curve("some", ((220, 50.0), (770, 60.0), (220 * 3.5**4, 70.0)))
    panel = Panel("sizes", "Parameters", "%", (sizes,), x_names={220: "220M", 770: "770M"}, is_x_logarithmic=True)
    ((first, second, third),) = lines_of(draw([panel]))
    assert (second[0] - first[0]) * 4 == pytest.approx(third[0] - first[0], abs=0.05)
    assert {"220M", "770M"} <= set(texts_of(draw([panel])))


def test_a_single_point_is_a_mark_where_the_axis_says_and_the_legend_shows_it_small() -> None:
    def svg(radius: float) -> str:
        return draw([Panel("K", "%", "%", (Curve("some", ((25, 50.0),), mark_radius=radius),), x_range=(0, 100))])

    large = svg(4 * MARK_RADIUS)
    (mark, _) = marks_of(large)
    (clip,) = ET.fromstring(large).iter(f"{NAMESPACE}clipPath")
    assert mark[0] == pytest.approx(float(clip[0].attrib["x"]) + float(clip[0].attrib["width"]) / 4, abs=0.01)

    def widths(text: str) -> list[float]:
        defined = [
            numbers(path.attrib["d"])[::2] for path in ET.fromstring(text).iter(f"{NAMESPACE}path")
            if f"stroke: {COLORS[0]}" in path.attrib.get("style", "") and "C" in path.attrib["d"]
        ]  # fmt: skip
        return [max(xs) - min(xs) for xs in defined]

    in_axes, in_legend = widths(large)
    assert in_axes == pytest.approx(4 * in_legend)


def test_the_same_values_give_the_same_file() -> None:
    assert draw([panel_with(VANILLA, LEVEL)]) == draw([panel_with(VANILLA, LEVEL)])
    assert "metadata" not in draw([panel_with(VANILLA)])


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, services.jobs.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="no panels to draw"):
        draw([])
    with pytest.raises(ValueError, match="K = 10"):
        draw([panel_with()])


def heights(svg: str, color: str) -> list[float]:
    """Heights of the filled areas of a colour, from left to right."""
    found = []
    for group in ET.fromstring(svg).iter(f"{NAMESPACE}path"):
        if f"fill: {color}" in group.attrib.get("style", ""):
            ys = numbers(group.attrib["d"])[1::2]
            found.append(max(ys) - min(ys))
    return found


def test_a_flows_bands_are_as_high_as_the_numbers_of_items() -> None:
    svg = draw_flow("made", 200, [FlowStep("rejected", 50), FlowStep("refused", 100)], "kept")
    whole, after_first, after_second, last = heights(svg, COLORS[0])
    assert [after_first / whole, after_second / whole, last / whole] == pytest.approx([0.75, 0.25, 0.25], abs=1e-3)
    assert all(text in svg for text in ("made", "rejected", "refused", "kept", ">200<", ">50<", ">100<"))


def test_a_flow_in_which_nothing_remains_or_is_lost_is_drawn_and_one_of_nothing_is_not() -> None:
    assert heights(draw_flow("made", 3, [FlowStep("lost", 3)], "kept"), COLORS[0])[-1] == 0
    assert heights(draw_flow("made", 3, [FlowStep("lost", 0)], "kept"), COLORS[0])[0] > 0
    for total, lost in ((0, 0), (3, 4)):
        with pytest.raises(ValueError, match=f"{total} items can't lose {lost}"):
            draw_flow("made", total, [FlowStep("lost", lost)], "kept")
