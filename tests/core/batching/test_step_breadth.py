"""Items run side by side as far as that pays: figures are those of an engine whose times are known."""

import pytest

from services.core.batching.step_runner import FIRST_BREADTH, MIN_BREADTH, Breadth


def run(breadth: Breadth, *, num_turns: int, prefill_s: float, num_steps: int, step_s: float, row_s: float) -> float:
    """Turns in which as many wait as there are places, up to 64; returns items answered in a second at the end.

    Items take `prefill_s` to be admitted and `num_steps` steps, which take `step_s` and `row_s` an item each.
    """
    rate = 0.0
    for _ in range(num_turns):
        num_running = min(64.0, breadth.limit)
        admit_s = num_running / num_steps * prefill_s  # as many leave at each step
        steps_s = step_s + num_running * row_s
        breadth.note(int(num_running), admit_s, steps_s)
        rate = num_running / num_steps / (admit_s + steps_s)
    return rate


def test_where_prompts_take_the_time_few_run_and_next_to_nothing_is_lost() -> None:
    breadth = Breadth()
    breadth.limit = 64
    times = {"prefill_s": 0.15, "num_steps": 16, "step_s": 0.005, "row_s": 0.0003}
    rate = run(breadth, num_turns=500, **times)  # type: ignore[arg-type]
    assert breadth.limit < 20
    unlimited = 64 / 16 / (64 / 16 * 0.15 + 0.005 + 64 * 0.0003)
    assert rate > 0.9 * unlimited


def test_where_steps_take_the_time_as_many_run_as_may() -> None:
    breadth = Breadth()
    breadth.limit = MIN_BREADTH
    run(breadth, num_turns=5000, prefill_s=0.02, num_steps=500, step_s=0.02, row_s=0.0001)
    assert 64 <= breadth.limit <= 128


def test_it_is_as_wide_again_soon_once_answers_are_long() -> None:
    breadth = Breadth()
    run(breadth, num_turns=100, prefill_s=0.5, num_steps=2, step_s=0.001, row_s=0.0)
    assert breadth.limit == MIN_BREADTH < FIRST_BREADTH
    run(breadth, num_turns=200, prefill_s=0.02, num_steps=500, step_s=0.02, row_s=0.0001)
    assert breadth.limit > FIRST_BREADTH


@pytest.mark.parametrize("step_s", [0.0, 1e-6])
def test_it_never_gets_narrower_than_a_few(step_s: float) -> None:
    breadth = Breadth()
    run(breadth, num_turns=1000, prefill_s=1.0, num_steps=1, step_s=step_s, row_s=0.0)
    assert breadth.limit == MIN_BREADTH
