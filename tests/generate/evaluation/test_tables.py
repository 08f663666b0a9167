"""Scores are kept, come together and stand in the dissertation's tables with its rounding."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from services.generate.evaluation.results import (
    MOST_USED,
    RESULT_FILES,
    Result,
    average_of,
    ordinal,
    print_tables,
    truncated,
)

VANILLA, CALIBRATED, SORTED = "Vanilla attention", "Calibrated attention", "LongLLMLingua-r_k"
# the dissertation's, Table B.2: NaturalQuestions, Vicuna
TEN = Result(
    "vicuna",
    "accuracy",
    "NaturalQuestions",
    10,
    {
        VANILLA: {"0": 74.35, "4": 54.83, "9": 52.01},
        CALIBRATED: {"0": 70.84, "4": 62.61, "9": 55.78},
        SORTED: {"Avg.": 63.95},
    },
    {"seed": 0},
)
TWENTY = Result("vicuna", "accuracy", "NaturalQuestions", 20, {VANILLA: {"0": 71.93, "9": 47.34, "19": 50.65}})


def printed(*results: Result) -> list[list[str]]:
    """The cells of each line of all tables."""
    output = io.StringIO()
    print_tables(results, Console(file=output, width=200))
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in output.getvalue().splitlines()
    ]


def test_accuracies_stand_by_position_and_the_average_is_truncated_as_the_dissertation_does() -> None:
    lines = printed(TWENTY, TEN)
    # (71.93 + 47.34 + 50.65) / 3 = 56.64, (74.35 + 54.83 + 52.01) / 3 = 60.396…, (70.84 + 62.61 + 55.78) / 3 = 63.076…
    assert [VANILLA, "74.35", "54.83", "52.01", "60.39", "71.93", "47.34", "50.65", "56.64"] in lines
    assert [CALIBRATED, "70.84", "62.61", "55.78", "63.07", "–", "–", "–", "–"] in lines
    assert [SORTED, "–", "–", "–", "63.95", "–", "–", "–", "–"] in lines
    assert ["Method", "1st", "5th", "10th", "Avg.", "1st", "10th", "20th", "Avg."] in lines


def test_a_row_without_numbers_has_no_average() -> None:
    assert math.isnan(average_of({}))


@pytest.mark.parametrize(
    ("percent", "cell"),
    [(60.3966, "60.39"), (0.57 * 100, "57.00"), (29 / 50 * 100, "58.00"), (0.0, "0.00"), (100.0, "100.00")],
)
def test_percentages_are_cut_off_and_not_rounded(percent: float, cell: str) -> None:
    assert truncated(percent) == cell


def test_the_other_tables_have_the_dissertations_numbers_in_its_form() -> None:
    halves = {"Highest": 526.0, "Lowest": 186.0}
    lines = printed(
        Result("vicuna", "attention", "NaturalQuestions", 20, {MOST_USED: halves}),
        Result(
            "vicuna",
            "hypotheses",
            "NaturalQuestions",
            20,
            {
                "Condition 1": {"share": 0.83},
                "Condition 2": {"share": 0.719},
                "Linear": {"spearman": 0.76},
                "Log-linear": {"spearman": 0.75},
            },
        ),
        Result("vicuna", "recall", "NaturalQuestions", 20, {"Calibrated attention": {"recall_at_3": 0.6832}}),
        Result("vicuna", "recall", "NaturalQuestions", 10, {"Calibrated attention": {"recall_at_3": 0.74274}}),
        Result("s", "estimates", "generated", 10, {"tree": {"rel_spearman": 0.891, "average": 74.1, "prefills": 2.31}}),
    )
    for line in (
        ["Highest half attention", "526", "74%"],
        ["Lowest half attention", "186", "26%"],
        ["Condition 1", "83%"],
        ["Condition 2", "72%"],
        ["Linear", "0.76"],
        ["Log-linear", "0.75"],
        ["Method", "K = 10", "K = 20"],
        ["Calibrated attention", "0.7427", "0.6832"],
        ["tree", "–", "0.891", "–", "74.10", "–", "–", "–", "2.310"],
    ):
        assert line in lines


def test_no_wrong_answers_make_no_percentages() -> None:
    lines = printed(Result("m", "attention", "generated", 20, {MOST_USED: {"Highest": 0.0, "Lowest": 0.0}}))
    assert ["Highest half attention", "0", "–"] in lines


@pytest.mark.parametrize(
    ("position", "name"), [(0, "1st"), (1, "2nd"), (2, "3rd"), (3, "4th"), (10, "11th"), (12, "13th"), (20, "21st")]
)
def test_positions_are_called_as_the_dissertation_calls_them(position: int, name: str) -> None:
    assert ordinal(position) == name


def test_results_of_several_runs_come_together_and_other_settings_replace(tmp_path: Path) -> None:
    path = tmp_path / "results" / "litm.json"
    RESULT_FILES.save([TEN], path)
    more = Result("vicuna", "accuracy", "NaturalQuestions", 10, {VANILLA: {"2": 60.0}}, {"seed": 0})
    RESULT_FILES.save([more, TWENTY], path)
    ten, twenty = RESULT_FILES.load([path])
    assert ten.scores[VANILLA] == {"0": 74.35, "4": 54.83, "9": 52.01, "2": 60.0}
    assert ten.scores[SORTED] == {"Avg.": 63.95}
    assert twenty == TWENTY
    other = Result("vicuna", "accuracy", "NaturalQuestions", 10, {VANILLA: {"0": 1.0}}, {"seed": 1})
    assert RESULT_FILES.merge([TEN, other]) == [other]


def test_a_file_without_results_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('[{"colour": "red"}]')
    with pytest.raises(ValueError, match=r"other\.json does not contain results"):
        RESULT_FILES.load([path])
