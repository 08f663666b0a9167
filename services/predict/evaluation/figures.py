"""The dissertation's Figures 2.4 to 2.9 from results, as panels to draw."""

import math
from collections.abc import Callable, Iterable, Sequence

from services.jobs.plots import MARK_RADIUS, Curve, Panel
from services.predict.data.rows import LabelSource
from services.predict.evaluation.results import (
    RESULT_FILES,
    Result,
    data_name,
    estimate,
    few_shot_cot,
    method_name,
    series_names,
    sets_of,
    size_name,
    sizes,
    students,
)
from services.predict.evaluation.tables import least_resources

ACCURACY = "Accuracy (%)"
SHARE = "Training data (%)"
SIZE = "Parameters"
COMPARED = ("standard", "step-by-step")
# "explained" students are PINTO tuning in the figure of human labels
COMPARED_BY_SIZE = {"human": ("standard", "explained", "step-by-step"), "llm": COMPARED}
LARGEST_RADIUS = 21.0
SHARE_AXIS = -10.0, 110.0  # with room for the large marks at both ends


def figures(results: Sequence[Result]) -> dict[str, list[Panel]]:
    """Make the panels of each figure (`2.4` to `2.9`), one per data set and, in figures over shares, per model.

    A panel needs two points of a curve or, in Figures 2.8 and 2.9, the accuracy of the teacher itself; otherwise it is
    left out. Bars are standard errors over seeds.
    """
    merged = RESULT_FILES.merge(results)
    found: dict[str, list[Panel]] = {}
    for data, labels in sets_of(merged):
        own = [result for result in students(merged) if (result.data, result.labels) == (data, labels)]
        teacher = few_shot_cot(merged, data)
        by_share, by_size, least = ("2.4", "2.6", "2.8") if labels == "human" else ("2.5", "2.7", "2.9")
        found.setdefault(by_share, []).extend(_over_shares(own, teacher))
        found.setdefault(by_size, []).extend(_over_sizes(own, teacher, COMPARED_BY_SIZE[labels]))
        if teacher is not None:
            found.setdefault(least, []).append(_least(own, teacher))
    return {figure: found[figure] for figure in sorted(found) if found[figure]}


def _over_shares(own: Sequence[Result], teacher: Result | None) -> Iterable[Panel]:
    for model, size in sizes(own).items():
        some = [result for result in own if result.model == model]
        curves = _curves(some, COMPARED, lambda result: 100 * result.fraction)
        if any(len(curve.points) > 1 for curve in curves):
            title = f"{data_name(own[0].data)}, {model} ({size_name(size)})"
            yield Panel(title, SHARE, ACCURACY, (*curves, *_level(teacher)), has_zero=False)


def _over_sizes(own: Sequence[Result], teacher: Result | None, methods: Sequence[str]) -> Iterable[Panel]:
    model_sizes = sizes(own)
    curves = _curves([r for r in own if r.fraction == 1], methods, lambda result: model_sizes[result.model])
    if any(len(curve.points) > 1 for curve in curves):
        yield Panel(
            data_name(own[0].data), SIZE, ACCURACY, (*curves, *_level(teacher)), has_zero=False,
            x_names={size: size_name(size) for size in model_sizes.values()}, is_x_logarithmic=True,
        )  # fmt: skip


def _least(own: Sequence[Result], teacher: Result) -> Panel:
    """Show what each method needs to outperform the teacher; the area of a mark is the size of the model."""
    model_sizes, names = sizes(own), series_names(own)
    largest = max(model_sizes.values())
    curves = []
    for series, least in least_resources(own, teacher).items():
        if series[0] not in COMPARED:
            continue
        best = least.result
        size = model_sizes[best.model]
        found = estimate(best)
        name = f"{names[series]}, {best.model} ({size_name(size)})" + ("" if least.is_enough else ": not enough")
        radius = max(LARGEST_RADIUS * math.sqrt(size / largest), MARK_RADIUS + 1)
        curves.append(Curve(name, ((100 * best.fraction, found.mean),), (found.error,), mark_radius=radius))
    return Panel(
        data_name(own[0].data),
        SHARE,
        ACCURACY,
        (*curves, *_level(teacher)),
        has_zero=False,
        x_range=SHARE_AXIS,
    )


def _curves(own: Sequence[Result], methods: Sequence[str], x_of: Callable[[Result], float]) -> list[Curve]:
    """Make a curve for each series of these methods, with its points from left to right."""
    curves = []
    for series, name in series_names(own).items():
        if series[0] not in methods:
            continue
        results = sorted((result for result in own if result.series == series), key=x_of)
        found = [estimate(result) for result in results]
        points = tuple((x_of(result), one.mean) for result, one in zip(results, found, strict=True))
        curves.append(Curve(name, points, tuple(one.error for one in found)))
    return curves


def _level(teacher: Result | None) -> list[Curve]:
    if teacher is None:
        return []
    labels: LabelSource = "human"
    name = f"{method_name(teacher.method, labels)} ({teacher.model})"
    return [Curve(name, ((0.0, estimate(teacher).mean),), is_level=True)]
