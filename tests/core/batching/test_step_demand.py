"""The demand that an autoscaler reads: the share of a batch's room that running and waiting items need together."""

from collections.abc import AsyncIterator

import pytest

from services.core.batching import step_runner
from services.core.batching.step_runner import FIRST_BREADTH
from tests.core.batching.test_stepper import Bench, ask, submit
from tests.core.stepping_engines import CountingEngine, Item

# A test waits until it shows what it should, or fails by the time that tests have.
DEMAND = "room_demand_ratio"
# Events that an engine which only counts never comes to the end of in a test.
ENDLESS = 10**9


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(step_runner, "DEMAND_EVERY_S", 0.0)
    bench = Bench()
    bench.thread.start()
    yield bench
    await bench.close()


async def test_what_waits_behind_as_many_as_may_run_side_by_side_asks_for_another_process(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine(room=10**6))
    streams = [submit(stepper, Item(str(number), ENDLESS)) for number in range(int(FIRST_BREADTH) + 1)]
    while bench.sample(DEMAND) <= 1:
        await bench.next_turn()
    for stream in streams:
        await stream.aclose()
    while bench.sample(DEMAND):
        await bench.next_turn()


async def test_memory_that_is_lacking_asks_for_another_process_however_few_items_there_are(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine(room=10))
    streams = [submit(stepper, Item(name, ENDLESS, size=8)) for name in "ab"]
    while bench.sample(DEMAND) != 1.6:
        await bench.next_turn()
    for stream in streams:
        await stream.aclose()


async def test_nothing_is_asked_for_once_everything_is_answered(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine())
    await ask(stepper, Item("a", num_events=5))
    await bench.next_turn()
    assert bench.sample(DEMAND) == 0


async def test_two_checkpoints_that_run_at_a_time_ask_together(bench: Bench) -> None:
    """As while one replaces another."""
    streams = [submit(bench.stepper(CountingEngine(room=10)), Item("a", ENDLESS, size=size)) for size in (4, 6)]
    while bench.sample(DEMAND) < 1:
        await bench.next_turn()
    await streams[0].aclose()
    while bench.sample(DEMAND) > 0.7:
        await bench.next_turn()
    await streams[1].aclose()
