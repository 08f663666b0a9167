"""Confidences: calibrated on the rows that they are fitted to, and never decreasing in the probability."""

import random
from itertools import pairwise

import pytest

from services.predict.confidence import Calibration, fit_calibration


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
    found = fit_calibration([0.9] * 20 + [1.0, 0.0], [is_right] * 22)
    assert 0 <= found.confidence(0.0) <= found.confidence(1.0) <= 1
    assert (found.confidence(0.9) > 0.9) is is_right


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        fit_calibration([], [])
