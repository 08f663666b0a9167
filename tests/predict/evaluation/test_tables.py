"""Results of sweeps come together, and stand in the dissertation's tables with their standard errors."""

import io
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.predict.data.rows import LabelSource
from services.predict.evaluation.results import (
    FEW_SHOT_COT,
    RESULT_FILES,
    Result,
    estimate,
    few_shot_cot,
    least_resources,
    make_tables,
    print_tables,
    size_name,
    sizes,
)

BASE, LARGE = "t5-base", "t5-large"
SIZES = {BASE: 247_577_856, LARGE: 783_150_080}
PALM, NEOX = "PaLM 540B", "GPT-NeoX 20B"


def result(
    *accuracies: float,
    data: str = "svamp",
    labels: LabelSource = "human",
    model: str = BASE,
    method: Any = "standard",
    fraction: float = 1.0,
    teacher: str | None = None,
    first_seed: int = 0,
    **settings: Any,
) -> Result:
    """Accuracies in percent, by seed."""
    scores = {
        str(seed): {
            "test_accuracy": accuracy / 100, "validation_accuracy": 0.5, "best_step": 250, "num_train": 720 * fraction,
            "num_parameters": SIZES[model], "seconds": 10.0,
        }
        for seed, accuracy in enumerate(accuracies, start=first_seed)
    }  # fmt: skip
    return Result(data, labels, model, method, fraction, teacher, scores, settings)


def palm(accuracy: float, data: str = "svamp") -> Result:
    return teacher(PALM, accuracy, data)


def teacher(name: str, accuracy: float, data: str = "svamp", **asked: float) -> Result:
    """A teacher itself, prompted with demonstrations."""
    return Result(data, "human", name, FEW_SHOT_COT, 0.0, name, {"-": {"test_accuracy": accuracy / 100, **asked}})


def rows_of(title: str, *results: Result) -> list[tuple[str, ...]]:
    (table,) = (table for table in make_tables(results) if table.title.startswith(title))
    return [table.header, *(tuple(cell.text for cell in row) for row in table.rows)]


def test_an_estimate_is_the_mean_and_the_samples_deviation_over_the_root_of_the_number_of_seeds() -> None:
    found = estimate(result(60.0, 62.0, 64.0, 66.0))
    # by hand: the mean is 63, the squares of the differences add up to 20, and √(20/3) / √4 = 1.2910
    assert found.mean == pytest.approx(63.0)
    assert found.error == pytest.approx(1.2909944)
    percents = [61.5, 59.0, 63.25]
    assert estimate(result(*percents)).error == pytest.approx(statistics.stdev(percents) / math.sqrt(3))


def test_one_seed_has_no_standard_error() -> None:
    assert estimate(result(62.5)).error is None
    assert rows_of("SVAMP", result(62.5))[1][-1] == "62.50"


def test_accuracies_stand_by_size_method_and_share_of_the_data() -> None:
    lines = rows_of(
        "SVAMP, human labels",
        result(70.0, 72.0, model=LARGE),
        result(60.0, 64.0, method="step-by-step", teacher=PALM),
        result(60.0, 62.0),
        result(50.0, 51.0, fraction=0.125),
    )
    assert lines == [
        ("Model", "Parameters", "Method", "12.5 %", "100 %"),
        ("t5-base", "248M", "Standard finetuning", "50.50 ± 0.50", "61.00 ± 1.00"),
        ("t5-base", "248M", "Distilling step-by-step", "–", "62.00 ± 2.00"),
        ("t5-large", "783M", "Standard finetuning", "–", "71.00 ± 1.00"),
    ]


def test_the_number_of_seeds_stands_in_the_title_and_where_another_number_was_run() -> None:
    results = (result(60.0, 62.0, 64.0), result(50.0, 52.0, fraction=0.5), result(40.0, fraction=0.25), palm(74.0))
    (table,) = make_tables([result for result in results if result.method != FEW_SHOT_COT])
    assert table.title.endswith("mean ± standard error over 3 seeds")
    assert tuple(cell.text for cell in table.rows[0][3:]) == ("40.00 (1)", "51.00 ± 1.00 (2)", "62.00 ± 1.15")
    assert "few-shot CoT of PaLM 540B: 74.00" in make_tables(results)[0].title


def test_table_2_1_compares_teachers_on_all_data_sets_in_published_order() -> None:
    published = {"esnli": (88.38, 89.12, 89.51), "svamp": (62.63, 63.00, 65.50), "cqa": (62.19, 63.25, 63.29)}
    results = []
    for data, (standard, neox, palm_540b) in published.items():
        results += [
            result(standard, data=data),
            result(neox, data=data, method="step-by-step", teacher=NEOX),
            result(palm_540b, data=data, method="step-by-step", teacher=PALM),
            result(1.0, data=data, fraction=0.5),
            result(1.0, data=data, labels="llm", teacher=PALM),
        ]
    assert rows_of("Table 2.1: t5-base", *results) == [
        ("Method", "LLM", "e-SNLI", "CQA", "SVAMP"),
        ("Standard finetuning", "N/A", "88.38", "62.19", "62.63"),
        ("Distilling step-by-step", "GPT-NeoX 20B", "89.12", "63.25", "63.00"),
        ("Distilling step-by-step", "PaLM 540B", "89.51", "63.29", "65.50"),
    ]


def test_table_2_2_compares_one_task_with_two() -> None:
    results = [
        result(62.63),
        result(63.00, method="single-task", teacher=PALM),
        result(65.50, method="step-by-step", teacher=PALM),
        result(43.58, data="anli1"),
        result(49.58, data="anli1", method="step-by-step", teacher=PALM),
    ]
    assert rows_of("Table 2.2: t5-base", *results) == [
        ("Method", "ANLI", "SVAMP"),
        ("Standard finetuning", "43.58", "62.63"),
        ("Single-task training", "–", "63.00"),
        ("Multi-task training", "49.58", "65.50"),
    ]


def test_a_table_is_only_there_for_what_was_run() -> None:
    titles = [table.title for table in make_tables([result(60.0), result(61.0, method="step-by-step", teacher=PALM)])]
    assert len(titles) == 1
    assert titles[0].startswith("SVAMP, human labels")


def test_with_a_teachers_labels_finetuning_is_distillation_and_teachers_are_named_where_there_are_several() -> None:
    lines = rows_of(
        "SVAMP, the teacher's labels",
        result(50.0, labels="llm", teacher=PALM),
        result(40.0, labels="llm", teacher=NEOX),
        result(55.0, labels="llm", method="step-by-step", teacher=PALM),
    )
    assert [line[2] for line in lines[1:]] == [
        "Standard task distillation (GPT-NeoX 20B)",
        "Standard task distillation (PaLM 540B)",
        "Distilling step-by-step (PaLM 540B)",
    ]


def test_the_least_resources_are_the_smallest_model_and_then_the_least_data_that_beat_the_teacher() -> None:
    results = [
        result(73.0, 74.0, method="step-by-step", teacher=PALM),
        result(75.0, 75.0, method="step-by-step", teacher=PALM, fraction=0.5),
        result(76.0, 73.0, method="step-by-step", teacher=PALM, fraction=0.25),
        result(90.0, 90.0, method="step-by-step", teacher=PALM, model=LARGE, fraction=0.125),
        result(70.0, 72.0),
        result(74.0, 74.0, model=LARGE),  # as good is not better
    ]
    least = least_resources(results, palm(74.0))
    step_by_step, standard = least["step-by-step", PALM], least["standard", None]
    assert (step_by_step.result.model, step_by_step.result.fraction, step_by_step.is_enough) == (BASE, 0.25, True)
    assert (standard.result.model, standard.result.fraction, standard.is_enough) == (LARGE, 1.0, False)
    assert rows_of("Figure 2.8", *results, palm(74.0))[1:] == [
        ("SVAMP", "Standard finetuning", "t5-large", "783M", "100 %", "720", "74.00 ± 0.00", PALM, "74.00", "no"),
        ("SVAMP", "Distilling step-by-step", "t5-base", "248M", "25 %", "180", "74.50 ± 1.50", PALM, "74.00", "yes"),
    ]


def test_each_teacher_is_one_to_outperform_by_the_questions_that_it_was_asked() -> None:
    results = [result(60.0, 62.0, 64.0, model=LARGE), result(50.0, 52.0, 54.0)]
    few = teacher("mine", 45.0, num_questions=20)
    standard = ("SVAMP", "Standard finetuning")
    assert rows_of("Figure 2.8", *results, palm(74.0), few)[1:] == [
        (*standard, "t5-large", "783M", "100 %", "720", "62.00 ± 1.15", PALM, "74.00", "no"),
        (*standard, "t5-base", "248M", "100 %", "720", "52.00 ± 1.15", "mine, 20 questions", "45.00", "yes"),
    ]
    title = make_tables([*results, palm(74.0), few])[0].title
    assert title.endswith("; few-shot CoT of PaLM 540B: 74.00; few-shot CoT of mine, 20 questions: 45.00")


def test_augmented_data_is_compared_with_what_the_teacher_does_without() -> None:
    assert few_shot_cot([palm(77.0, "cqa"), palm(74.0)], "svamp+asdiv") == [palm(74.0)]
    assert few_shot_cot([palm(77.0, "cqa")], "svamp") == []
    assert rows_of("SVAMP + ASDiv", result(60.0, data="svamp+asdiv"))


def test_seeds_of_equal_settings_come_together_and_those_of_others_take_their_place() -> None:
    first, second = result(60.0, 61.0, steps=10), result(70.0, 71.0, first_seed=1, steps=10)
    (merged,) = RESULT_FILES.merge([second, first])
    assert [round(100 * scores["test_accuracy"]) for scores in merged.scores.values()] == [60, 61, 71]
    other = result(80.0, steps=20)
    assert RESULT_FILES.merge([first, other]) == [other]
    assert RESULT_FILES.merge([first, result(1.0, fraction=0.5)]) == [first, result(1.0, fraction=0.5)]


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = [result(60.0, 61.0, label_prefix="predict: "), palm(74.0)]
    RESULT_FILES.save(results, tmp_path / "results.json")
    RESULT_FILES.save([result(62.0, first_seed=2, label_prefix="predict: ")], tmp_path / "results.json")
    assert RESULT_FILES.load([tmp_path / "results.json"]) == [
        result(60.0, 61.0, 62.0, label_prefix="predict: "),
        palm(74.0),
    ]


def test_a_model_is_as_large_as_its_largest_student() -> None:
    smaller = result(60.0, fraction=0.5)
    smaller.scores["0"]["num_parameters"] = 240_000_000
    assert sizes([smaller, result(60.0), result(60.0, model=LARGE), palm(74.0)]) == SIZES


@pytest.mark.parametrize(
    ("number", "name"),
    [(999, "999"), (282_688, "283k"), (999_600, "1M"), (247_577_856, "248M"), (11_135_332_352, "11.1B")],
)
def test_sizes_have_three_digits(number: int, name: str) -> None:
    assert size_name(number) == name


def test_tables_are_the_same_in_markdown_and_on_a_terminal() -> None:
    results = [result(60.0, 62.0), palm(74.0)]
    markdown = make_tables(results)[0].to_markdown()
    assert markdown.startswith("### SVAMP, human labels")
    assert "| Model | Parameters | Method | 100 % |\n| :-- | :-- | :-- | --: |\n" in markdown
    assert "| t5-base | 248M | Standard finetuning | 61.00 ± 1.00 |\n" in markdown
    output = io.StringIO()
    print_tables(results, Console(file=output, width=200))
    assert "│ t5-base │ 248M       │ Standard finetuning │ 61.00 ± 1.00 │" in output.getvalue()
