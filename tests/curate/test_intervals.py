"""Intervals of shares and correlations."""

import pytest

from services.curate.intervals import correlation_interval, wilson


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    # Brown, Cai and DasGupta 2001 compute with z = 1.96; values by hand from the formula
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)


def test_more_items_make_it_narrower_and_none_leave_everything_open() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    few, many = wilson(5, 10), wilson(500, 1000)
    assert few[0] < many[0] < 0.5 < many[1] < few[1]


def test_fishers_interval_is_that_of_the_textbook() -> None:
    # Fisher's z of 0.6 is 0.6931, its standard error with 28 rows 0.2
    assert correlation_interval(0.6, 28) == pytest.approx((0.2924, 0.7951), abs=1e-4)
    assert correlation_interval(0.9, 3) == (-1.0, 1.0)
    assert correlation_interval(1.0, 10) == (1.0, 1.0)
