"""States are given up where reading them takes longer than encoding the image again."""

import pytest

from services.embed.collections.indexes import MIN_IMAGES, StateTiming


@pytest.mark.parametrize(("seconds_from_states", "do_pay"), [(0.9, True), (1.1, False)])
def test_states_pay_as_long_as_they_are_faster(seconds_from_states: float, do_pay: bool) -> None:
    pace = StateTiming()
    pace.note(MIN_IMAGES, 1.0, from_states=False)
    pace.note(MIN_IMAGES, seconds_from_states, from_states=True)
    assert pace.states_pay is do_pay


def test_a_few_images_say_nothing() -> None:
    pace = StateTiming()
    pace.note(MIN_IMAGES, 1.0, from_states=False)
    pace.note(MIN_IMAGES - 1, 100.0, from_states=True)
    assert pace.states_pay
    pace.note(1, 0.0, from_states=True)
    assert not pace.states_pay
