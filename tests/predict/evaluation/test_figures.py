"""Figures hold the means and standard errors of the results, where each belongs."""

import pytest

from services.jobs.plots import Curve, Panel, draw
from services.predict.evaluation.results import Result, figures
from tests.predict.evaluation.test_tables import BASE, LARGE, NEOX, PALM, SIZES, palm, result, teacher

BY_SHARE = [
    result(60.0, 62.0),
    result(50.0, fraction=0.5),
    result(64.0, 66.0, method="step-by-step", teacher=PALM),
    result(58.0, 62.0, method="step-by-step", teacher=PALM, fraction=0.5),
]


def panel_of(figure: str, *results: Result) -> Panel:
    (panel,) = figures(results)[figure]
    return panel


def points_of(curve: Curve) -> tuple[tuple[float, float], ...]:
    return tuple((x, round(y, 6)) for x, y in curve.points)


def errors_of(curve: Curve) -> tuple[float | None, ...]:
    return tuple(None if error is None else round(error, 6) for error in curve.errors)


def curve_of(panel: Panel, name: str) -> Curve:
    (curve,) = (curve for curve in panel.curves if curve.name == name)
    return curve


def test_figure_2_4_is_accuracy_over_the_share_of_human_labels() -> None:
    panel = panel_of("2.4", *BY_SHARE, palm(74.0))
    assert panel.title == "SVAMP, t5-base (248M)"
    standard = curve_of(panel, "Standard finetuning")
    assert points_of(standard) == ((50.0, 50.0), (100.0, 61.0))
    assert errors_of(standard) == (None, 1.0)
    assert errors_of(curve_of(panel, "Distilling step-by-step")) == (2.0, 1.0)
    level = curve_of(panel, "Few-shot CoT (PaLM 540B)")
    assert level.is_level
    assert points_of(level) == ((0.0, 74.0),)


def test_figure_2_5_is_the_same_with_a_teachers_labels() -> None:
    labelled = [result(40.0, labels="llm", teacher=PALM), result(30.0, labels="llm", teacher=PALM, fraction=0.5)]
    found = figures([*labelled, *BY_SHARE])
    assert [curve.name for curve in found["2.5"][0].curves] == ["Standard task distillation"]
    assert [curve.name for curve in found["2.4"][0].curves] == ["Standard finetuning", "Distilling step-by-step"]


def test_figures_2_6_and_2_7_are_accuracy_over_size_with_all_data() -> None:
    results = [
        *BY_SHARE,
        result(70.0, 72.0, model=LARGE),
        result(10.0, model=LARGE, fraction=0.5),
        result(68.0, method="explained", teacher=PALM),
        result(67.0, method="single-task", teacher=PALM),
    ]
    panel = panel_of("2.6", *results)
    assert panel.is_x_logarithmic
    # Whoever reads the teacher's rationales deploys the teacher, too.
    assert panel.x_names == {SIZES[BASE]: "248M", SIZES[LARGE]: "783M", 540_000_000_000: "540B"}
    standard = curve_of(panel, "Standard finetuning")
    assert points_of(standard) == ((SIZES[BASE], 61.0), (SIZES[LARGE], 71.0))
    assert points_of(curve_of(panel, "Rationale as input")) == ((540_000_000_000, 68.0),)
    unsized = panel_of("2.6", *results[:-2], result(68.0, method="explained", teacher="teacher"))
    assert points_of(curve_of(unsized, "Rationale as input (teacher)")) == ((SIZES[BASE], 68.0),)
    assert "Single-task training" not in [curve.name for curve in panel.curves]
    labelled = [
        result(1.0, labels="llm", teacher=PALM),
        result(2.0, labels="llm", teacher=PALM, model=LARGE),
        result(2.0, labels="llm", teacher=PALM, method="explained"),
    ]
    assert [curve.name for curve in panel_of("2.7", *labelled).curves] == ["Standard task distillation"]


def test_figures_2_8_and_2_9_show_the_least_that_beats_the_teacher_a_marks_area_its_size() -> None:
    results = [
        *BY_SHARE,
        result(75.0, 77.0, method="step-by-step", teacher=PALM, fraction=0.25),
        result(76.0, 78.0, model=LARGE, fraction=0.5),
        palm(74.0),
    ]
    panel = panel_of("2.8", *results)
    step_by_step = curve_of(panel, "Distilling step-by-step, t5-base (248M)")
    standard = curve_of(panel, "Standard finetuning, t5-large (783M)")
    assert points_of(step_by_step) == ((25.0, 76.0),)
    assert errors_of(step_by_step) == (1.0,)
    assert points_of(standard) == ((50.0, 77.0),)
    areas = step_by_step.mark_radius**2, standard.mark_radius**2
    assert areas[0] / areas[1] == pytest.approx(SIZES[BASE] / SIZES[LARGE])
    assert panel.x_range is not None
    assert panel.x_range[0] <= 0 < 100 <= panel.x_range[1]
    assert "Standard finetuning, t5-base (248M): not enough" in [
        curve.name for curve in panel_of("2.8", *BY_SHARE, palm(74.0)).curves
    ]


def test_each_teacher_is_a_level_and_has_a_panel_of_what_outperforms_it() -> None:
    found = figures([*BY_SHARE, palm(74.0), teacher("mine", 45.0, num_questions=20)])
    names = ["Few-shot CoT (PaLM 540B)", "Few-shot CoT (mine, 20 questions)"]
    assert [curve.name for curve in found["2.4"][0].curves if curve.is_level] == names
    assert [panel.title for panel in found["2.8"]] == ["SVAMP, PaLM 540B", "SVAMP, mine"]
    standard = ["Standard finetuning, t5-base (248M): not enough", "Standard finetuning, t5-base (248M)"]
    assert [panel.curves[0].name for panel in found["2.8"]] == standard
    assert [panel.curves[-1].name for panel in found["2.8"]] == names


def test_what_there_is_too_little_of_is_left_out() -> None:
    assert figures([result(60.0), result(61.0, method="step-by-step", teacher=PALM)]) == {}
    assert list(figures(BY_SHARE)) == ["2.4"]
    assert list(figures([result(60.0), palm(74.0)])) == ["2.8"]
    assert list(figures([result(60.0), result(60.0, model=LARGE)])) == ["2.6"]


def test_each_teacher_has_a_curve_where_there_are_several_and_each_data_set_and_model_a_panel() -> None:
    results = [
        result(accuracy, method="step-by-step", teacher=teacher, fraction=fraction, data=data, model=model)
        for accuracy, fraction in ((50.0, 0.5), (60.0, 1.0))
        for teacher in (PALM, NEOX)
        for data in ("svamp", "cqa")
        for model in (BASE, LARGE)
    ]
    panels = figures(results)["2.4"]
    assert [panel.title for panel in panels] == [
        "CQA, t5-base (248M)", "CQA, t5-large (783M)", "SVAMP, t5-base (248M)", "SVAMP, t5-large (783M)",
    ]  # fmt: skip
    names = ["Distilling step-by-step (GPT-NeoX 20B)", "Distilling step-by-step (PaLM 540B)"]
    assert all([curve.name for curve in panel.curves] == names for panel in panels)


def test_every_figure_can_be_drawn() -> None:
    results = [*BY_SHARE, result(70.0, 72.0, model=LARGE), palm(74.0)]
    found = figures(results)
    assert list(found) == ["2.4", "2.6", "2.8"]
    for panels in found.values():
        assert "Standard finetuning" in draw(panels)
