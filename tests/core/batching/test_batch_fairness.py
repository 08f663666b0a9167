"""Clients that share a Batcher: turns by cost, short batches, room in a full queue, and their deadlines."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from services.core.batching import compute_thread
from services.core.batching.batcher import Answer, Batcher, BatchLimits
from services.core.batching.batches import SLICE_S, BatchQueue, BatchTimes, QueuedItem, Request
from services.core.batching.compute_thread import ComputeThread
from services.core.errors import Overloaded
from services.core.exchange import Caller, set_caller
from services.core.metrics import Metrics
from tests.core.engines import RecordingEngine, submission

Asked = asyncio.Task[list[Answer[str]]]


class SlowEngine(RecordingEngine):
    """Takes 5 ms for each item."""

    def run_batch(self, items: Sequence[str]) -> list[str]:
        time.sleep(0.005 * len(items))
        return super().run_batch(items)


class Shared:
    """A Batcher whose compute thread is held until `release`, so that everything asked before waits together."""

    def __init__(self, engine: RecordingEngine, limits: BatchLimits) -> None:
        self.engine = engine
        self.metrics = Metrics("test")
        self.thread = ComputeThread("compute-test")
        self.thread.start()
        self.batcher: Batcher[str, str] = Batcher(engine, thread=self.thread, limits=limits, metrics=self.metrics)
        self.asked: list[Asked] = []

    async def hold(self, num_items: int = 1) -> None:
        self.engine.gate.clear()
        await self.ask("one", *["held"] * num_items)
        assert await asyncio.to_thread(self.engine.entered.wait, 60)

    async def ask(self, client: str, *items: str, cost: int = 1, deadline: float | None = None) -> Asked:
        """One request, which waits or is refused when this returns."""

        async def submit() -> list[Answer[str]]:
            set_caller(Caller(client))
            return await self.batcher.submit([submission(item, cost) for item in items], deadline=deadline)

        task = asyncio.create_task(submit())
        self.asked.append(task)
        await asyncio.sleep(0)
        return task

    async def release(self) -> list[list[str]]:
        """The batches after the held one, as they were computed."""
        self.engine.gate.set()
        await asyncio.wait(self.asked)
        return self.engine.batches[1:]

    async def close(self) -> None:
        self.engine.gate.set()
        await asyncio.gather(*self.asked, return_exceptions=True)
        await self.batcher.close()
        await self.thread.close()


@pytest.fixture
async def shared() -> AsyncIterator[Shared]:
    shared = Shared(RecordingEngine(), BatchLimits(max_batch_cost=1000, max_batch_size=4, max_queue_cost=40))
    await shared.hold()
    yield shared
    await shared.close()


async def test_a_client_that_comes_after_thirty_items_of_another_is_in_the_next_batch(shared: Shared) -> None:
    await shared.ask("hog", *(f"hog-{number}" for number in range(30)))
    await shared.ask("honest", "honest")
    batches = await shared.release()
    assert "honest" in batches[0]
    assert sum(map(len, batches)) == 31


async def test_clients_share_batches_by_cost_not_by_items_or_requests(shared: Shared) -> None:
    for number in range(5):
        await shared.ask("dear", f"dear-{number}", cost=4)
    for number in range(16):
        await shared.ask("cheap", f"cheap-{number}")
    batches = await shared.release()
    computed = [item for batch in batches[:4] for item in batch]
    assert sum(item.startswith("cheap") for item in computed) >= 3 * sum(item.startswith("dear") for item in computed)


async def test_each_clients_own_items_stay_in_order(shared: Shared) -> None:
    for number in range(6):
        await shared.ask("a", f"a-{number}")
        await shared.ask("b", f"b-{number}")
    computed = [item for batch in await shared.release() for item in batch]
    for client in "ab":
        assert [item for item in computed if item.startswith(client)] == [f"{client}-{number}" for number in range(6)]


async def test_a_full_queue_refuses_the_newest_request_of_the_client_with_the_largest_share(shared: Shared) -> None:
    old, new = await shared.ask("hog", *["old"] * 20), await shared.ask("hog", *["new"] * 20)
    honest = await shared.ask("honest", *["honest"] * 5)
    with pytest.raises(Overloaded) as refused:
        await new
    assert refused.value.code == "queue_full"
    await shared.release()
    assert len(await old) == 20
    assert len(await honest) == 5


async def test_a_client_with_the_largest_share_gets_no_room_in_a_full_queue(shared: Shared) -> None:
    await shared.ask("hog", *["hog"] * 30)
    await shared.ask("honest", *["honest"] * 10)
    late = await shared.ask("hog", "hog")
    with pytest.raises(Overloaded, match="Too many requests are waiting"):
        await late
    assert shared.batcher.queue_depth == 40


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expects a client again for a minute, since a busy machine takes longer than the usual second."""
    monkeypatch.setattr(compute_thread, "SHARED_S", 60.0)


@pytest.fixture
async def slow(remembered: None) -> AsyncIterator[Shared]:
    async with measured((1, 8, 2, 16, 4, 32)) as shared:
        yield shared


@pytest.fixture
async def even(remembered: None) -> AsyncIterator[Shared]:
    async with measured((64, 64, 64)) as shared:
        yield shared


@asynccontextmanager
async def measured(sizes: Sequence[int]) -> AsyncIterator[Shared]:
    """A Batcher that has computed batches of these sizes."""
    shared = Shared(SlowEngine(), BatchLimits(max_batch_cost=1000, max_batch_size=64, max_queue_cost=10_000))
    for size in sizes:
        await shared.ask("one", *["a"] * size)
        await asyncio.gather(*shared.asked)
    shared.asked.clear()
    shared.engine.batches.clear()
    await shared.hold(sizes[0])  # of a size that was faster before, so that the time it is held tells nothing
    yield shared
    for task in shared.asked:
        task.cancel()
    await shared.close()


@pytest.mark.slow
async def test_a_client_that_is_alone_has_full_batches(slow: Shared) -> None:
    await slow.ask("one", *["a"] * 64)
    assert await slow.release() == [["a"] * 64]


@pytest.mark.slow
async def test_while_several_clients_come_batches_are_no_larger_than_makes_them_faster(slow: Shared) -> None:
    """This engine computes two small batches as fast as a large one."""
    await slow.ask("one", *["a"] * 64)
    await slow.ask("other", "b")
    batches = await slow.release()
    assert sum(map(len, batches)) == 65
    assert max(map(len, batches)) < 64


@pytest.mark.slow
async def test_another_client_waits_for_no_full_batch_though_all_batches_before_had_the_same_size(
    even: Shared,
) -> None:
    await even.ask("one", *["a"] * 128)
    await even.ask("other", "b")
    batches = await even.release()
    assert sum(map(len, batches)) == 129
    assert max(map(len, batches)) <= 10  # a slice's time if each item takes the 5 ms that it sleeps at least


class MostlyFixedEngine(RecordingEngine):
    """Takes 20 ms for each batch and 1 ms for each item."""

    def run_batch(self, items: Sequence[str]) -> list[str]:
        time.sleep(0.02 + 0.001 * len(items))
        return super().run_batch(items)


@pytest.mark.slow
async def test_items_of_many_clients_are_computed_together_though_all_cost_the_same() -> None:
    """A batch of one item takes nearly a slice, and many such batches do not tell how long one of two would take."""
    shared = Shared(MostlyFixedEngine(), BatchLimits(max_batch_cost=10_000, max_batch_size=64, max_queue_cost=100_000))
    for number in range(5):
        await shared.ask(f"client-{number}", "a", cost=92)
        await asyncio.gather(*shared.asked)
    await shared.hold()
    for number in range(300):
        await shared.ask(f"client-{number % 20}", "a", cost=92)
    batches = await shared.release()
    await shared.close()
    assert max(map(len, batches)) >= 10


@pytest.mark.slow
async def test_another_client_waits_for_no_full_batch_of_another_queue_of_the_thread(even: Shared) -> None:
    engine = SlowEngine()
    others: Batcher[str, str] = Batcher(
        engine, thread=even.thread, limits=BatchLimits(1000, 64, 10_000), metrics=Metrics("test")
    )

    async def ask_others() -> None:
        set_caller(Caller("other"))
        await others.submit([submission("b", 1)])

    await even.ask("one", *["a"] * 128)
    asked = asyncio.create_task(ask_others())
    await asyncio.sleep(0)
    batches = await even.release()
    await asked
    await others.close()
    assert sum(map(len, batches)) == 128
    assert len(batches[0]) <= 10  # a slice's time if each item takes the 5 ms that it sleeps at least


async def test_a_request_that_would_wait_past_its_deadline_is_refused_at_once_and_others_are_not(slow: Shared) -> None:
    await slow.ask("one", *["a"] * 5000)  # about 25 s
    hurried = await slow.ask("one", "hurried", deadline=time.monotonic() + 2)
    with pytest.raises(Overloaded, match="longer than the request's deadline") as refused:
        await hurried
    assert refused.value.code == "deadline_too_near"
    assert (refused.value.retry_after_s or 0) > 0
    assert slow.metrics.registry.get_sample_value("fovea_rejected_total", {"reason": "deadline_too_near"}) == 1
    patient = await slow.ask("one", "patient", deadline=time.monotonic() + 600)
    other = await slow.ask("other", "other", deadline=time.monotonic() + 60)
    await asyncio.sleep(0)
    assert not patient.done()
    assert not other.done()


class FixedEngine(RecordingEngine):
    """Takes 10 ms for each batch and 1 ms for each item."""

    def run_batch(self, items: Sequence[str]) -> list[str]:
        time.sleep(0.01 + 0.001 * len(items))
        return super().run_batch(items)


async def test_while_clients_share_the_expected_wait_is_that_of_the_smaller_batches() -> None:
    shared = Shared(FixedEngine(), BatchLimits(100_000, 1000, 10**6))
    try:
        for size in (1, 8, 64, 256):
            await (await shared.ask("one", *["a"] * size))
        await shared.hold()
        await shared.ask("one", *["a"] * 1000)  # a second in full batches, two in those of 10 items
        await shared.ask("other", "b")
        late = await shared.ask("one", "late", deadline=time.monotonic() + 1.5)
        with pytest.raises(Overloaded, match="longer than the request's deadline"):
            await late
    finally:
        await shared.close()


def test_a_line_through_batches_tells_what_is_fixed_and_what_each_unit_costs() -> None:
    times = BatchTimes()
    for cost in (1, 10, 100, 30, 3):
        times.add(cost, 0.5 + 0.01 * cost)
    assert times.s_per_cost == pytest.approx(0.01)
    assert times.fixed_s == pytest.approx(0.5)
    assert times.s_per_cost_in(100) == pytest.approx(0.01 + 0.5 / 100)


@pytest.mark.parametrize(
    ("fixed_s", "expected"),
    [
        pytest.param(0.001, 9 * 0.001 / 0.0001, id="a tenth of the time is fixed"),
        pytest.param(0.004, (SLICE_S - 0.004) / 0.0001, id="the whole takes a slice"),
        pytest.param(0.5, 0.5 / 0.0001, id="half the time is fixed"),
    ],
)
def test_a_shared_batch_takes_a_slice_at_most_unless_its_fixed_part_alone_takes_long(
    fixed_s: float, expected: float
) -> None:
    times = BatchTimes()
    for cost in (1, 10, 100, 3000, 3):
        times.add(cost, fixed_s + 0.0001 * cost)
    assert times.max_shared_cost == pytest.approx(expected)


def test_a_unit_of_cost_takes_as_long_in_batches_of_any_size_where_nothing_is_fixed() -> None:
    times = BatchTimes()
    for cost in (1, 10, 100):
        times.add(cost, 0.01 * cost)
    assert [times.s_per_cost_in(cost) for cost in (0, 1, 100)] == pytest.approx([0.01] * 3)


def test_batches_of_one_cost_alone_tell_only_what_that_cost_takes() -> None:
    times = BatchTimes()
    assert times.max_shared_cost == float("inf")
    for _ in range(10):
        times.add(7, 0.1)
    assert times.s_per_cost_in(100) == 0
    assert times.max_shared_cost == pytest.approx(7 * SLICE_S / 0.1)


def test_what_other_batches_took_is_known_after_any_number_that_cost_the_same() -> None:
    times = BatchTimes()
    for cost in (1, 8, *[64] * 500):
        times.add(cost, 0.01 + 0.001 * cost)
    assert times.s_per_cost == pytest.approx(0.001)
    assert times.fixed_s == pytest.approx(0.01)


def test_what_batches_take_is_told_by_those_that_nothing_else_slowed_down() -> None:
    times = BatchTimes()
    for number in range(200):
        cost = 2 ** (number % 7)
        times.add(cost, (0.01 + 0.001 * cost) * (1 if number % 3 else 5))
    assert times.s_per_cost == pytest.approx(0.001, rel=0.01)
    assert times.fixed_s == pytest.approx(0.01, rel=0.01)


def test_now_and_then_a_shared_batch_is_twice_as_large_as_what_is_known_to_be_right() -> None:
    times = BatchTimes()
    for cost in (1, 10, 100, 3000):
        times.add(cost, 0.004 + 0.0001 * cost)
    costs = [times.next_shared_cost(1) for _ in range(100)]
    assert set(costs) == {times.max_shared_cost, 2 * times.max_shared_cost}
    assert costs.count(times.max_shared_cost) > 90


def test_what_batches_take_follows_a_device_that_becomes_slower() -> None:
    times = BatchTimes()
    for factor in (1, 3):
        for number in range(400):
            times.add(1 + number % 10, factor * (0.5 + 0.01 * (1 + number % 10)))
    assert times.fixed_s == pytest.approx(1.5, rel=0.05)


def waiting(queue: BatchQueue[str], loop: asyncio.AbstractEventLoop, client: str, number: int) -> None:
    """Let a client wait for so many items of cost 1."""
    request: Request[str] = Request(loop.create_future(), number, math.inf, client)
    request.items = [QueuedItem(client, 1, 1, request, index) for index in range(number)]
    queue.add(request, number)


def cut(queue: BatchQueue[str]) -> Counter[str]:
    """Cut a batch of at most 10 items, and count each client's."""
    return Counter(item.item for item in queue.cut(10, time.monotonic()))


async def test_clients_with_little_waiting_share_a_batch_without_items_of_one_that_has_more_than_a_batch() -> None:
    queue: BatchQueue[str] = BatchQueue(64)
    loop = asyncio.get_running_loop()
    waiting(queue, loop, "large", 4096)
    waiting(queue, loop, "small", 2)
    waiting(queue, loop, "other", 1)
    assert cut(queue) == {"small": 2, "other": 1}
    assert cut(queue) == {"large": 10}
    waiting(queue, loop, "small", 1)
    assert cut(queue) == {"small": 1}


async def test_a_client_with_much_waiting_has_every_second_batch_at_least_however_many_others_come() -> None:
    queue: BatchQueue[str] = BatchQueue(64)
    loop = asyncio.get_running_loop()
    waiting(queue, loop, "large", 4096)
    batches = []
    for number in range(20):
        waiting(queue, loop, f"small {number}", 1)
        batches.append(cut(queue)["large"])
    assert batches[1::2] == [pytest.approx(9, abs=1)] * 10
