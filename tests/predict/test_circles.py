"""A reason that goes round in circles is cut where they begin."""

import pytest

from services.predict.engine import before_circles


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((), ()),
        ((1, 2, 3), (1, 2, 3)),
        ((5, 5), (5, 5)),
        ((1, 5, 5, 5, 5), (1, 5)),
        ((1, 2, 3, 2, 3, 2, 3, 2), (1, 2, 3)),
        ((1, 2, 3, 2, 3, 4), (1, 2, 3, 2, 3, 4)),
        ((9, *(1, 2, 3, 4, 5, 6, 7, 8) * 3), (9, 1, 2, 3, 4, 5, 6, 7, 8)),
        ((1, 2, 3, 4, 5, 6, 7, 8, 9) * 3, (1, 2, 3, 4, 5, 6, 7, 8, 9) * 3),
    ],
)
def test_a_block_that_is_said_three_times_in_a_row_ends_the_text(
    ids: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert before_circles(ids) == expected
