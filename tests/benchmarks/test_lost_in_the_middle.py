"""Ways to answer are summarised in percent of questions, and compared on the same ones."""

import numpy as np
import pytest

from benchmarks.lost_in_the_middle import TRIED, Choice, scores

# positions × questions
PLAIN = np.array([[True, True, True, False], [True, False, False, False]])
CALIBRATED = np.array([[True, True, True, True], [True, True, False, False]])


def test_answers_are_summarised_by_position_on_average_and_at_the_worst_place() -> None:
    found = scores(CALIBRATED, PLAIN, CALIBRATED)
    assert found["by_position"] == [100, 50]
    assert (found["mean"], found["worst"], found["worst_place"]) == (75, 50, 1)
    # the questions' own means are 100, 100, 50 and 50
    low, high = found["mean_interval"]
    assert 50 <= low < 75 < high <= 100


def test_differences_are_of_the_same_questions() -> None:
    found = scores(CALIBRATED, PLAIN, CALIBRATED)
    assert found["over_plain"] == pytest.approx(25)
    assert (found["over_calibrated"], found["over_calibrated_interval"]) == (0, [0, 0])
    # no question is lost at either position, so that no resample is below 0
    assert [low for low, _ in found["over_plain_by_position"]] == [0, 0]


def test_the_ratios_with_most_right_answers_are_chosen_whatever_none_gets_and_the_first_of_equal_ones() -> None:
    shares = [50.0] * len(TRIED)
    assert Choice((90.0, *shares)).best == TRIED[0]
    shares[2] = shares[5] = 60.0
    assert Choice((90.0, *shares)).best == TRIED[2]
