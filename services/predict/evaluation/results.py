"""Test accuracies of students by their training, stored as JSON so that several sweeps can be combined."""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from rich.console import Console

from services.jobs.plots import MARK_RADIUS, Curve, Panel
from services.jobs.result_files import ResultFiles
from services.jobs.tables import MISSING, Table, with_error
from services.predict.data.rows import LabelSource
from services.predict.tasks import ANLI1, CQA, ESNLI, SVAMP
from services.predict.training.recipe import Method
from services.predict.training.sources import AUGMENTED

# The teacher itself, prompted with demonstrations, on the test split: the baseline of the students.
FEW_SHOT_COT: Literal["few-shot-cot"] = "few-shot-cot"

DATA_NAMES = {ESNLI.name: "e-SNLI", ANLI1.name: "ANLI", CQA.name: "CQA", SVAMP.name: "SVAMP"}  # in published order
METHOD_NAMES = {
    "standard": "Standard finetuning",
    "single-task": "Single-task training",
    "explained": "Rationale as input",
    "step-by-step": "Distilling step-by-step",
    FEW_SHOT_COT: "Few-shot CoT",
}
STANDARD_DISTILLATION = "Standard task distillation"  # name of "standard" with a teacher's labels


@dataclass(frozen=True)
class Result:
    """Students of one model trained by one method on a share of one data set, or a teacher itself.

    `teacher` is the author of the rationales or labels that they learnt from, None if they learnt from neither.
    `scores` are by seed: `test_accuracy` and `validation_accuracy` (shares of 1), `best_step`, `num_train`,
    `num_parameters`, `seconds`; FEW_SHOT_COT has only the test accuracy, and `num_questions` if it was not asked all of
    the test's. `settings` are the other hyper-parameters.
    """

    data: str
    labels: LabelSource
    model: str
    method: Method | Literal["few-shot-cot"]
    fraction: float
    teacher: str | None
    scores: dict[str, dict[str, float]]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def series(self) -> tuple[str, str | None]:
        """Method and teacher, which are constant where the model or the share of the data varies."""
        return self.method, self.teacher

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return round(statistics.fmean(scores["num_train"] for scores in self.scores.values()))


@dataclass(frozen=True)
class Estimate:
    """Accuracy in percent: the mean over seeds and its standard error s / √n, s from the sample; None for one seed."""

    mean: float
    error: float | None
    num_seeds: int


def _combine(earlier: Result, later: Result) -> Result:
    """Merge the seeds in order; a seed that was run again replaces its earlier run."""
    scores = {**earlier.scores, **later.scores}
    order = sorted(scores, key=lambda seed: (int(seed) if seed.isdigit() else -1, seed))
    return replace(later, scores={seed: scores[seed] for seed in order})


RESULT_FILES = ResultFiles(Result, attrgetter("data", "labels", "model", "method", "fraction", "teacher"), _combine)


def estimate(result: Result) -> Estimate:
    """The test accuracy over a result's seeds."""
    percents = [100 * scores["test_accuracy"] for scores in result.scores.values()]
    error = statistics.stdev(percents) / math.sqrt(len(percents)) if len(percents) > 1 else None
    return Estimate(statistics.fmean(percents), error, len(percents))


def sizes(results: Iterable[Result]) -> dict[str, int]:
    """The number of parameters of each student's model, the smallest model first.

    If students of one model differ, as with tokenizers learnt from their own texts, the largest number counts.
    """
    found: dict[str, int] = {}
    for result in students(results):
        for scores in result.scores.values():
            found[result.model] = max(found.get(result.model, 0), round(scores["num_parameters"]))
    return dict(sorted(found.items(), key=lambda entry: (entry[1], entry[0])))


def size_name(num_parameters: int) -> str:
    """Write a number with three digits: 247,577,856 as `248M`, 11.1 billion as `11.1B`."""
    for unit, letter in ((1, ""), (10**3, "k"), (10**6, "M")):
        if num_parameters < 999.5 * unit:
            return f"{num_parameters / unit:.3g}{letter}"
    return f"{num_parameters / 10**9:.3g}B"


def students(results: Iterable[Result]) -> list[Result]:
    """The results without those of the teachers themselves."""
    return [result for result in results if result.method != FEW_SHOT_COT]


def few_shot_cot(results: Iterable[Result], data: str) -> list[Result]:
    """The results of teachers themselves on the data, or on the data before augmentation."""
    base = data.removesuffix(AUGMENTED)
    return [result for result in results if result.method == FEW_SHOT_COT and result.data == base]


def teacher_name(teacher: Result) -> str:
    """Name a teacher, with the number of questions if it was not asked all of the test's."""
    asked = (scores["num_questions"] for scores in teacher.scores.values() if "num_questions" in scores)
    return teacher.model + "".join(f", {number:g} questions" for number in asked)


def sets_of(results: Iterable[Result]) -> list[tuple[str, LabelSource]]:
    """The students' data sets and sources of labels: human labels first, published data sets in their order."""
    rank = {data: number for number, data in enumerate(DATA_NAMES)}
    found = {(result.data, result.labels) for result in students(results)}
    return sorted(
        found, key=lambda pair: (pair[1] != "human", rank.get(pair[0].removesuffix(AUGMENTED), len(rank)), pair[0])
    )


def data_name(data: str) -> str:
    """Write a data set's name as the dissertation does: `svamp+asdiv` → SVAMP + ASDiv."""
    base = data.removesuffix(AUGMENTED)
    return DATA_NAMES.get(base, base) + (" + ASDiv" if base != data else "")


def method_name(method: str, labels: LabelSource) -> str:
    """Name a method as the dissertation does: finetuning with a teacher's labels is distillation."""
    return STANDARD_DISTILLATION if method == "standard" and labels == "llm" else METHOD_NAMES[method]


def series_names(results: Sequence[Result]) -> dict[tuple[str, str | None], str]:
    """The names of the series of students with the same source of labels, in the order of METHOD_NAMES.

    A name includes the teacher if there are several.
    """
    found = students(results)
    has_several = len({result.teacher for result in found} - {None}) > 1
    order = [*METHOD_NAMES]
    names = {}
    for result in sorted(found, key=lambda one: (order.index(one.method), one.teacher or "")):
        teacher = f" ({result.teacher})" if result.teacher and has_several else ""
        names[result.series] = method_name(result.method, result.labels) + teacher
    return names


LABELS = {"human": "human labels", "llm": "the teacher's labels"}
NO_TEACHER = "N/A"
LEAST_HEADER = (
    "Data", "Method", "Model", "Parameters", "Share", "Examples", "Accuracy", "Teacher", "Few-shot CoT", "Better",
)  # fmt: skip
# Figures
ACCURACY = "Accuracy (%)"
SHARE = "Training data (%)"
SIZE = "Parameters"
COMPARED = ("standard", "step-by-step")
# "explained" students are PINTO tuning in the figure of human labels
COMPARED_BY_SIZE = {"human": ("standard", "explained", "step-by-step"), "llm": COMPARED}
SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?) ?([MB])\b")  # of a teacher
UNITS = {"M": 10**6, "B": 10**9}
LARGEST_RADIUS = 21.0
SHARE_AXIS = -10.0, 110.0  # with room for the large marks at both ends


@dataclass(frozen=True)
class Least:
    """The smallest model, and for it the smallest share of the data, that outperforms the teacher itself.

    If none does, `is_enough` is False and this is the best result.
    """

    result: Result
    is_enough: bool


def make_tables(results: Sequence[Result]) -> list[Table]:
    """Make every table for which there are results."""
    merged = RESULT_FILES.merge(results)
    return [
        *(_accuracies(merged, data, labels) for data, labels in sets_of(merged)),
        *_teachers(merged),
        *_single_task(merged),
        *_least_resources(merged),
    ]


def print_tables(results: Sequence[Result], console: Console) -> None:
    """Print every table on a terminal."""
    for table in make_tables(results):
        console.print(table.to_rich())


def least_resources(results: Sequence[Result], teacher: Result) -> dict[tuple[str, str | None], Least]:
    """Find for each series of students of a data set what it needs to outperform `teacher`, by the mean over seeds."""
    model_sizes = sizes(results)
    to_beat = estimate(teacher).mean
    found = {}
    for series in series_names(results):
        own = [result for result in students(results) if result.series == series]
        enough = [result for result in own if estimate(result).mean > to_beat]
        if enough:
            least = min(enough, key=lambda result: (model_sizes[result.model], result.model, result.fraction))
        else:
            least = max(own, key=lambda result: estimate(result).mean)
        found[series] = Least(least, bool(enough))
    return found


def percent(share: float) -> str:
    """Write a share of the data: 0.125 → 12.5 %."""
    return f"{100 * share:g} %"


def accuracy(result: Result | None, usual_seeds: int) -> str:
    """Write mean ± standard error, with the number of seeds in parentheses if it is not the usual one."""
    if result is None:
        return MISSING
    found = estimate(result)
    seeds = "" if found.num_seeds == usual_seeds else f" ({found.num_seeds})"
    return with_error(found.mean, found.error) + seeds


def _accuracies(results: Sequence[Result], data: str, labels: LabelSource) -> Table:
    """Make the table of size × method × share of the data, for one data set."""
    own = [result for result in students(results) if (result.data, result.labels) == (data, labels)]
    fractions = sorted({result.fraction for result in own})
    usual = _usual_seeds(own)
    known = "".join(
        f"; few-shot CoT of {teacher_name(teacher)}: {estimate(teacher).mean:.2f}"
        for teacher in few_shot_cot(results, data)
    )
    rows = []
    for model, size in sizes(own).items():
        for series, name in series_names(own).items():
            by_fraction = {
                result.fraction: result for result in own if (result.model, result.series) == (model, series)
            }
            if by_fraction:
                cells = [accuracy(by_fraction.get(fraction), usual) for fraction in fractions]
                rows.append((model, size_name(size), name, *cells))
    return Table.of_texts(
        f"{data_name(data)}, {LABELS[labels]}: accuracy by share of the training data{_over(usual)}{known}",
        ("Model", "Parameters", "Method", *map(percent, fractions)),
        rows,
        3,
    )


def _teachers(results: Sequence[Result]) -> Iterator[Table]:
    """Table 2.1: students of several teachers."""
    for model, own in _whole_data(results):
        teachers = sorted({r.teacher for r in own if r.method == "step-by-step" and r.teacher})
        if len(teachers) > 1:
            rows = [("standard", None), *(("step-by-step", teacher) for teacher in teachers)]
            yield _by_data(f"Table 2.1: {model}", own, rows, has_teacher=True)


def _single_task(results: Sequence[Result]) -> Iterator[Table]:
    """Table 2.2: rationale and label as one task or as two, with the teacher of the single-task students."""
    for model, own in _whole_data(results):
        for teacher in dict.fromkeys(result.teacher for result in own if result.method == "single-task"):
            rows = [("standard", None), ("single-task", teacher), ("step-by-step", teacher)]
            yield _by_data(f"Table 2.2: {model}", own, rows, has_teacher=False)


def _whole_data(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """Yield the students of each model that learnt from all rows with human labels, for both tables."""
    for model in sizes(results):
        yield model, [r for r in students(results) if (r.model, r.labels, r.fraction) == (model, "human", 1)]


def _by_data(title: str, own: Sequence[Result], rows: Sequence[tuple[str, str | None]], *, has_teacher: bool) -> Table:
    found = {(result.series, result.data): result for result in own}
    sets = [data for data, _ in sets_of(own)]
    usual = _usual_seeds(own)
    lines = []
    for method, teacher in rows:
        name = "Multi-task training" if method == "step-by-step" and not has_teacher else method_name(method, "human")
        names = (name, teacher or NO_TEACHER) if has_teacher else (name,)
        lines.append((*names, *(accuracy(found.get(((method, teacher), data)), usual) for data in sets)))
    header = ("Method", "LLM") if has_teacher else ("Method",)
    return Table.of_texts(f"{title}, all data{_over(usual)}", (*header, *map(data_name, sets)), lines, len(header))


def _least_resources(results: Sequence[Result]) -> Iterator[Table]:
    """Make tables of the data of Figures 2.8 and 2.9, one for each source of labels."""
    for figure, labels in (("2.8", "human"), ("2.9", "llm")):
        rows = []
        usual = _usual_seeds([result for result in students(results) if result.labels == labels])
        for data, _ in (one for one in sets_of(results) if one[1] == labels):
            own = [result for result in students(results) if (result.data, result.labels) == (data, labels)]
            model_sizes, names = sizes(own), series_names(own)
            for teacher in few_shot_cot(results, data):
                for series, least in least_resources(own, teacher).items():
                    best = least.result
                    rows.append((
                        data_name(data), names[series], best.model, size_name(model_sizes[best.model]),
                        percent(best.fraction), f"{best.num_train:,}", accuracy(best, usual), teacher_name(teacher),
                        f"{estimate(teacher).mean:.2f}", "yes" if least.is_enough else "no",
                    ))  # fmt: skip
        if rows:
            title = f"Figure {figure}: the least that is better than few-shot CoT, {LABELS[labels]}{_over(usual)}"
            yield Table.of_texts(title, LEAST_HEADER, rows, 3)


def _usual_seeds(results: Sequence[Result]) -> int:
    """The greatest number of seeds, which most results have unless a sweep is unfinished; 0 without results."""
    return max((len(result.scores) for result in results), default=0)


def _over(num_seeds: int) -> str:
    return ", one seed" if num_seeds == 1 else f", mean ± standard error over {num_seeds} seeds"


def figures(results: Sequence[Result]) -> dict[str, list[Panel]]:
    """Make the panels of each figure (`2.4` to `2.9`), one per data set and, in figures over shares, per model.

    A panel needs two points of a curve; otherwise it is left out. Figures 2.8 and 2.9 have one for each teacher whose
    own accuracy is known. Bars are standard errors over seeds.
    """
    merged = RESULT_FILES.merge(results)
    found: dict[str, list[Panel]] = {}
    for data, labels in sets_of(merged):
        own = [result for result in students(merged) if (result.data, result.labels) == (data, labels)]
        teachers = few_shot_cot(merged, data)
        by_share, by_size, least = ("2.4", "2.6", "2.8") if labels == "human" else ("2.5", "2.7", "2.9")
        found.setdefault(by_share, []).extend(_over_shares(own, teachers))
        found.setdefault(by_size, []).extend(_over_sizes(own, teachers, COMPARED_BY_SIZE[labels]))
        found.setdefault(least, []).extend(_least(own, teacher, is_only=len(teachers) == 1) for teacher in teachers)
    return {figure: found[figure] for figure in sorted(found) if found[figure]}


def _over_shares(own: Sequence[Result], teachers: Sequence[Result]) -> Iterable[Panel]:
    for model, size in sizes(own).items():
        some = [result for result in own if result.model == model]
        curves = _curves(some, COMPARED, lambda result: 100 * result.fraction)
        if any(len(curve.points) > 1 for curve in curves):
            title = f"{data_name(own[0].data)}, {model} ({size_name(size)})"
            yield Panel(title, SHARE, ACCURACY, (*curves, *map(_level, teachers)), has_zero=False)


def _over_sizes(own: Sequence[Result], teachers: Sequence[Result], methods: Sequence[str]) -> Iterable[Panel]:
    model_sizes = sizes(own)

    def deployed(result: Result) -> int:
        """Return the size of what predicts: students that read rationales need their teacher, by whose name it is."""
        found = SIZE_IN_NAME.search(result.teacher or "") if result.method == "explained" else None
        return round(float(found[1]) * UNITS[found[2]]) if found else model_sizes[result.model]

    compared = [r for r in own if r.fraction == 1 and r.method in methods]
    curves = _curves(compared, methods, deployed)
    if any(len(curve.points) > 1 for curve in curves):
        yield Panel(
            data_name(own[0].data), SIZE, ACCURACY, (*curves, *map(_level, teachers)), has_zero=False,
            x_names={size: size_name(size) for size in map(deployed, compared)}, is_x_logarithmic=True,
        )  # fmt: skip


def _least(own: Sequence[Result], teacher: Result, *, is_only: bool) -> Panel:
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
    title = data_name(own[0].data) + ("" if is_only else f", {teacher.model}")
    return Panel(title, SHARE, ACCURACY, (*curves, _level(teacher)), has_zero=False, x_range=SHARE_AXIS)


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


def _level(teacher: Result) -> Curve:
    name = f"{METHOD_NAMES[teacher.method]} ({teacher_name(teacher)})"
    return Curve(name, ((0.0, estimate(teacher).mean),), is_level=True)
