"""Test accuracies of students by their training, stored as JSON so that several sweeps can be combined."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from services.jobs.result_files import ResultFiles
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
    `num_parameters`, `seconds`; FEW_SHOT_COT has only the test accuracy. `settings` are the other hyper-parameters.
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
    return replace(later, scores=dict(sorted({**earlier.scores, **later.scores}.items(), key=_by_number)))


def _by_number(entry: tuple[str, Any]) -> tuple[int, str]:
    return (int(entry[0]) if entry[0].isdigit() else -1), entry[0]


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


def few_shot_cot(results: Iterable[Result], data: str) -> Result | None:
    """The result of the teacher itself on the data, or on the data before augmentation; None without one."""
    base = data.removesuffix(AUGMENTED)
    return next((result for result in results if result.method == FEW_SHOT_COT and result.data == base), None)


def sets_of(results: Iterable[Result]) -> list[tuple[str, LabelSource]]:
    """The students' data sets and sources of labels: human labels first, published data sets in their order."""
    order = [*DATA_NAMES]

    def place(data: str) -> int:
        base = data.removesuffix(AUGMENTED)
        return order.index(base) if base in order else len(order)

    found = {(result.data, result.labels) for result in students(results)}
    return sorted(found, key=lambda pair: (pair[1] != "human", place(pair[0]), pair[0]))


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
