"""Confidences: calibrated on the rows that they are fitted to, and never decreasing in the probability."""

import random
from itertools import pairwise

import pytest

from services.predict.confidence import (
    Calibration,
    calibration_error,
    error_interval,
    fit_calibration,
    hand_over_below,
)


def test_temperature_1_and_offset_0_change_nothing() -> None:
    for probability in (0.001, 0.3, 0.5, 0.99):
        assert Calibration(1.0, 0.0).confidence(probability) == pytest.approx(probability)


def test_overconfident_probabilities_become_the_share_that_is_right() -> None:
    generator = random.Random(0)
    probabilities = [generator.choice((0.9, 0.999)) for _ in range(2000)]
    is_right = [generator.random() < (0.4 if probability == 0.9 else 0.7) for probability in probabilities]
    found = fit_calibration(probabilities, is_right)
    assert found.confidence(0.9) == pytest.approx(0.4, abs=0.03)
    assert found.confidence(0.999) == pytest.approx(0.7, abs=0.03)


def test_a_greater_probability_never_means_a_smaller_confidence() -> None:
    generator = random.Random(1)
    probabilities = [generator.random() for _ in range(300)]
    found = fit_calibration(probabilities, [probability < 0.5 for probability in probabilities])
    confidences = [found.confidence(step / 20) for step in range(21)]
    assert all(lower <= higher for lower, higher in pairwise(confidences))


@pytest.mark.parametrize("is_right", [True, False])
def test_rows_that_are_all_right_or_all_wrong_leave_finite_values(is_right: bool) -> None:
    found = fit_calibration([0.9] * 200 + [1.0, 0.0], [is_right] * 202)
    assert 0 <= found.confidence(0.0) <= found.confidence(1.0) <= 1
    assert (found.confidence(0.9) > 0.9) is is_right


@pytest.mark.parametrize(
    "probabilities", [[0.999] * 32, [0.6] * 32, [0.6 + 0.01 * place for place in range(40)], [0.999], [0.7]]
)
def test_few_rows_that_are_all_right_make_no_answer_surer(probabilities: list[float]) -> None:
    found = fit_calibration(probabilities, [True] * len(probabilities))
    for probability in (0.6, 0.9, 0.99, 0.999, 1.0):
        assert found.confidence(probability) <= probability


def test_few_rows_make_a_sure_student_no_surer_than_they_show() -> None:
    # Platt's targets of 32 right rows are 33/34, and of one right row 2/3, which counts as much as the student's own
    assert fit_calibration([0.999] * 32, [True] * 32).confidence(0.999) == pytest.approx(33 / 34, abs=0.005)
    assert fit_calibration([0.999], [True]).confidence(0.999) < 0.8


def test_enough_rows_make_an_underconfident_student_surer() -> None:
    assert fit_calibration([0.6] * 100, [True] * 90 + [False] * 10).confidence(0.6) == pytest.approx(0.9, abs=0.03)


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        fit_calibration([], [])


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    assert calibration_error([0.9, 0.9, 0.2, 0.2], [True, False, False, False]) == pytest.approx(0.3)
    assert calibration_error([1.0, 0.0], [True, False]) == 0
    assert calibration_error([], []) == 0


def test_a_threshold_needs_as_many_right_rows_as_show_the_error() -> None:
    # 0.95^58 = 0.0510 and 0.95^59 = 0.0485: 59 rows without an error show that at most 5% are wrong, 58 do not
    assert hand_over_below([0.9] * 58, [True] * 58, 0.05) is None
    assert hand_over_below([0.9] * 59, [True] * 59, 0.05) == 0.9


def test_a_threshold_is_as_low_as_the_errors_allow() -> None:
    # 1 - 0.05^(1/4) = 0.527 after four right answers, 1 - 0.05^(1/5) = 0.451 after five; with two wrong ones, 0.659
    confidences = [0.8, 0.9, 0.7, 0.6, 0.5, 0.4, 0.3]
    is_right = [True, True, True, True, True, False, False]
    assert hand_over_below(confidences, is_right, 0.52) == 0.5
    assert hand_over_below(confidences, is_right, 0.59) == 0.4  # one of six wrong: at most 0.582, two of seven: 0.659
    assert hand_over_below(confidences[:4], is_right[:4], 0.52) is None


def test_answers_of_one_confidence_are_handed_over_together() -> None:
    confidences, is_right = [0.9] * 5 + [0.5] * 6, [True] * 5 + [True] + [False] * 5
    assert hand_over_below(confidences, is_right, 0.46) == 0.9


def test_wrong_answers_alone_leave_no_threshold() -> None:
    assert hand_over_below([0.9, 0.8], [False, False], 0.9) is None


def test_the_interval_of_an_error_is_exact() -> None:
    # without an error, the upper end u has (1 - u)^n = 0.025
    low, high = error_interval(0, 20)
    assert low == 0 and high == pytest.approx(1 - 0.025 ** (1 / 20))
    low, high = error_interval(10, 10)
    assert low == pytest.approx(0.025 ** (1 / 10)) and high == 1
