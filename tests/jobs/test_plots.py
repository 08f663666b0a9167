"""Plots put every point where its value is, and say where their axes begin."""

import re
import xml.etree.ElementTree as ET

import pytest

from services.jobs.plots import Curve, Panel, draw

NAMESPACE = "{http://www.w3.org/2000/svg}"
VANILLA = Curve("Vanilla <attention>", ((1, 80.0), (5, 40.0), (10, 60.0)))
LEVEL = Curve("LongLLMLingua-r_k", ((0, 70.0),), is_level=True)


def panel_with(*curves: Curve, has_zero: bool = True) -> Panel:
    return Panel("K = 10", "Gold position", "Accuracy (%)", curves, has_zero)


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in line.attrib["points"].split())]
        for line in ET.fromstring(svg).iter(f"{NAMESPACE}polyline")
    ]


def texts_of(svg: str) -> list[str]:
    return [str(text.text) for text in ET.fromstring(svg).iter(f"{NAMESPACE}text")]


def test_points_lie_in_proportion_to_their_values() -> None:
    ((first, middle, last), _) = lines_of(draw([panel_with(VANILLA, LEVEL)]))
    assert first[0] < middle[0] < last[0]
    assert (middle[0] - first[0]) / (last[0] - first[0]) == pytest.approx(4 / 9, abs=1e-3)
    # downwards is positive: 80 is highest, and 60 half way between 80 and 40
    assert first[1] < last[1] < middle[1]
    assert last[1] == pytest.approx((first[1] + middle[1]) / 2, abs=0.02)


def test_a_level_curve_crosses_the_panel_at_its_height() -> None:
    (points, (left, right)) = lines_of(draw([panel_with(VANILLA, LEVEL)]))
    assert left[1] == right[1] == pytest.approx(points[0][1] * 3 / 4 + points[1][1] / 4, abs=0.02)
    assert left[0] == points[0][0]


def test_the_axis_starts_at_zero_or_says_where_else() -> None:
    assert "0" in texts_of(draw([panel_with(VANILLA)]))
    near = texts_of(draw([panel_with(VANILLA, has_zero=False)]))
    assert "0" not in near
    assert {"40", "80"} <= set(near)


def test_every_position_and_every_curve_is_named() -> None:
    texts = texts_of(draw([panel_with(VANILLA, LEVEL)]))
    assert {"1", "5", "10", "Gold position", "Accuracy (%)", "K = 10"} <= set(texts)
    assert {"Vanilla <attention>", "LongLLMLingua-r_k"} <= set(texts)


@pytest.mark.parametrize("values", [(0.0, 0.0), (5e-5, 2e-4), (-1.0, 1.0), (3.0, 3.0), (1e6, 2e6)])
def test_any_range_of_values_stays_inside_its_panel(values: tuple[float, float]) -> None:
    svg = draw([panel_with(Curve("some", ((1, values[0]), (2, values[1]))))])
    for x, y in lines_of(svg)[0]:
        assert 0 <= x <= 420
        assert 36 <= y <= 254
    assert len([text for text in texts_of(svg) if text.replace(".", "").replace("-", "").isdigit()]) >= 2


def test_panels_stand_beside_and_below_one_another_without_overlap() -> None:
    panels = [panel_with(VANILLA), panel_with(VANILLA, LEVEL), panel_with(LEVEL)]
    groups = [group.attrib["transform"] for group in ET.fromstring(draw(panels)).iter(f"{NAMESPACE}g")]
    assert groups == ["translate(0 0)", "translate(420 0)", "translate(0 336)"]
    assert ET.fromstring(draw(panels)).attrib["height"] == str(336 + 318)


def paths_of(svg: str) -> list[str]:
    return [path.attrib["d"] for path in ET.fromstring(svg).iter(f"{NAMESPACE}path")]


def test_an_error_bar_reaches_as_far_as_its_error_up_and_down() -> None:
    svg = draw([panel_with(Curve("some", ((1, 20.0), (2, 40.0), (3, 60.0)), errors=(10.0, None, 20.0)))])
    (places,) = lines_of(svg)
    per_unit = (places[0][1] - places[2][1]) / 40  # pixels, downwards is positive
    first, third = ([float(number) for number in re.findall(r"[\d.]+", path)] for path in paths_of(svg))
    for (left, low, right, x, _, high, *_), place, error in ((first, places[0], 10), (third, places[2], 20)):
        assert x == place[0] == (left + right) / 2
        assert low - place[1] == place[1] - high == pytest.approx(error * per_unit, abs=0.02)
    # 80 is the highest value that is drawn, and so the end of the axis
    assert third[5] == 36
    assert "80" in texts_of(svg)


def test_errors_must_be_as_many_as_points() -> None:
    with pytest.raises(ValueError, match="zip"):
        draw([panel_with(Curve("some", ((1, 20.0), (2, 40.0)), errors=(1.0,)))])


def test_on_a_logarithmic_axis_equal_ratios_are_equally_far_apart() -> None:
    sizes = Curve("some", ((220, 50.0), (770, 60.0), (220 * 3.5**4, 70.0)))
    panel = Panel("sizes", "Parameters", "%", (sizes,), x_names={220: "220M", 770: "770M"}, is_x_logarithmic=True)
    ((first, second, third),) = lines_of(draw([panel]))
    assert (second[0] - first[0]) * 4 == pytest.approx(third[0] - first[0], abs=0.05)
    assert {"220M", "770M"} <= set(texts_of(draw([panel])))


def test_a_single_point_is_a_mark_of_its_size_where_the_axis_says() -> None:
    panel = Panel("K", "%", "%", (Curve("some", ((25, 50.0),), mark_radius=16.0),), x_range=(0, 100))
    svg = draw([panel])
    assert lines_of(svg) == []
    mark, in_legend = ET.fromstring(svg).iter(f"{NAMESPACE}circle")
    assert (mark.attrib["r"], in_legend.attrib["r"]) == ("16", "4")
    assert float(mark.attrib["cx"]) == 64 + (420 - 64 - 22) / 4


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([])
    with pytest.raises(ValueError, match="K = 10"):
        draw([panel_with()])
