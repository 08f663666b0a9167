import asyncio
import math
import threading
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest
import structlog

from services.core.batching.compute_thread import ComputeThread
from tests.core.compute_calls import run_on


@pytest.fixture
async def thread() -> AsyncIterator[ComputeThread]:
    thread = ComputeThread("compute-test")
    thread.start()
    yield thread
    await thread.close()


class Hold:
    """A call that runs until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.let_go.wait(60), "the test never let go"
        return "held"

    async def is_running(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 60)


async def until_idle(thread: ComputeThread) -> None:
    while thread.stalled_for_s():  # noqa: ASYNC110 - a call is answered a moment before it has ended
        await asyncio.sleep(0.001)


def end_thread() -> None:
    raise SystemExit


async def test_a_call_returns_to_its_caller_and_ran_on_the_one_thread(thread: ComputeThread) -> None:
    names = {await run_on(thread, lambda: threading.current_thread().name) for _ in range(3)}

    assert names == {"compute-test"}


async def test_calls_run_one_after_the_other_in_the_order_given(thread: ComputeThread) -> None:
    order: list[int] = []

    await asyncio.gather(*(run_on(thread, partial(order.append, number)) for number in range(20)))

    assert order == list(range(20))


async def test_stalled_for_is_zero_while_idle_and_grows_from_the_start_of_a_call(thread: ComputeThread) -> None:
    assert thread.stalled_for_s() == 0
    hold = Hold()
    holding = asyncio.create_task(run_on(thread, hold))
    await hold.is_running()
    first = thread.stalled_for_s()
    second = thread.stalled_for_s()
    hold.let_go.set()
    await holding

    assert 0 < first < second
    await until_idle(thread)


async def test_an_idle_thread_keeps_nothing_of_its_last_call(thread: ComputeThread) -> None:
    hold = Hold()
    hold.let_go.set()
    reference = weakref.ref(hold)
    await run_on(thread, hold)
    await until_idle(thread)
    del hold

    assert reference() is None


async def test_the_heartbeat_is_renewed_by_every_call(thread: ComputeThread) -> None:
    before = thread.heartbeat
    during = await run_on(thread, lambda: thread.heartbeat)

    assert before < during <= thread.heartbeat


async def test_a_thread_that_was_not_started_or_has_ended_is_not_alive() -> None:
    thread = ComputeThread()
    assert (thread.is_alive, thread.stalled_for_s()) == (False, math.inf)
    await thread.close()  # nothing to end

    thread.start()
    assert (thread.is_alive, thread.stalled_for_s()) == (True, 0)
    await thread.close()
    assert (thread.is_alive, thread.stalled_for_s()) == (False, math.inf)


async def test_closing_finishes_the_calls_given_before() -> None:
    thread = ComputeThread("compute-closing")
    thread.start()
    hold = Hold()
    calls = [asyncio.create_task(run_on(thread, hold)), asyncio.create_task(run_on(thread, lambda: "queued"))]
    await hold.is_running()
    closings = [asyncio.create_task(thread.close()) for _ in range(2)]
    hold.let_go.set()

    assert await asyncio.gather(*calls) == ["held", "queued"]
    await asyncio.gather(*closings)
    assert "compute-closing" not in {running.name for running in threading.enumerate()}


async def test_a_thread_that_dies_says_so_and_is_not_alive() -> None:
    thread = ComputeThread()
    thread.start()
    with structlog.testing.capture_logs() as logs:
        thread.post(end_thread)
        await thread.close()

    assert (thread.is_alive, thread.stalled_for_s()) == (False, math.inf)
    assert [log["event"] for log in logs] == ["compute thread died"]
