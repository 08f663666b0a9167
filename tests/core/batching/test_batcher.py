import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import structlog
from prometheus_client import Histogram

from services.core.batching.batcher import Answer, Batcher, BatchLimits, Submission
from services.core.batching.batches import Request
from services.core.batching.compute_thread import ComputeThread
from services.core.errors import DeadlineExceeded, InternalError, InvalidRequest, Overloaded
from services.core.metrics import Metrics
from tests.core.compute_calls import run_on
from tests.core.cpu_time import cpu_s
from tests.core.engines import CollatingRecordingEngine, RecordingEngine, submission

ROOMY = BatchLimits(max_batch_cost=1000, max_batch_size=4, max_queue_cost=100_000)


class Bench:
    """A compute thread and what the tests need around the Batchers on it."""

    def __init__(self) -> None:
        self.thread = ComputeThread("compute-test")
        self.metrics = Metrics("test")
        self.engines: list[RecordingEngine] = []
        self.batchers: list[Batcher[str, str]] = []

    def batcher(self, engine: RecordingEngine, limits: BatchLimits = ROOMY) -> Batcher[str, str]:
        self.engines.append(engine)
        batcher: Batcher[str, str] = Batcher(
            engine, thread=self.thread, limits=limits, metrics=self.metrics, is_out_of_memory=is_out_of_memory
        )
        self.batchers.append(batcher)
        return batcher

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"fovea_{name}", labels) or 0.0

    async def close(self) -> None:
        for engine in self.engines:
            engine.gate.set()
        for batcher in self.batchers:
            await batcher.close()
        await self.thread.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.thread.start()
    yield bench
    await bench.close()


class OutOfDeviceMemory(RuntimeError):
    pass


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, OutOfDeviceMemory)


async def hold(engine: RecordingEngine, batcher: Batcher[str, str]) -> asyncio.Task[list[Answer[str]]]:
    """Keep the compute thread in a batch of one item, `held`, until the engine's gate opens."""
    engine.entered.clear()
    engine.gate.clear()
    task = asyncio.create_task(batcher.submit([submission("held")]))
    assert await asyncio.to_thread(engine.entered.wait, 60)
    return task


async def enqueue(
    batcher: Batcher[str, str], *requests: Sequence[Submission[str]], deadline: float | None = None
) -> list[asyncio.Task[list[Answer[str]]]]:
    """Submit the requests and return as soon as all their items are in the queue."""
    depth = batcher.queue_depth + sum(len(request) for request in requests)
    tasks = [asyncio.create_task(batcher.submit(request, deadline=deadline)) for request in requests]
    await asyncio.sleep(0)  # each task runs up to where it waits for its answer
    assert batcher.queue_depth == depth
    return tasks


def singles(*items: str) -> list[list[Submission[str]]]:
    return [[submission(item)] for item in items]


def results(answers: list[Answer[str]]) -> list[str]:
    return [answer.result for answer in answers]


def raise_for(culprit: str, error: Exception) -> Callable[[Sequence[str]], None]:
    """A fault of one item."""

    def fault(items: Sequence[str]) -> None:
        if culprit in items:
            raise error

    return fault


# Answers, and how batches are formed


async def test_answers_come_in_the_order_of_the_items_however_they_were_batched(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    request = [submission(f"item-{number}", cost=1 + number * 7 % 5) for number in range(11)]

    answers = await batcher.submit(request)

    assert results(answers) == [f"ITEM-{number}" for number in range(11)]
    assert len(engine.batches) > 2


async def test_each_of_many_concurrent_requests_gets_its_own_answer(bench: Bench) -> None:
    batcher = bench.batcher(RecordingEngine())

    answers = await asyncio.gather(*(batcher.submit([submission(f"client-{number}")]) for number in range(100)))

    assert [results(answer) for answer in answers] == [[f"CLIENT-{number}"] for number in range(100)]


async def test_no_items_have_no_answers(bench: Bench) -> None:
    assert await bench.batcher(RecordingEngine()).submit([]) == []


async def test_an_item_that_costs_nothing_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="cost is 0"):
        submission("free", cost=0)


@pytest.mark.parametrize("seed", range(5))
async def test_no_batch_exceeds_the_size_or_the_padded_cost_and_the_oldest_item_is_in_the_next(
    bench: Bench, seed: int
) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=100, max_batch_size=8, max_queue_cost=100_000))
    chance = random.Random(seed)
    costs = {f"{number}": chance.choice([1, 5, 9, 30, 60, 100]) for number in range(300)}
    # lengths that say little of the cost: the limits hold whatever an engine sorts by
    requests = [[Submission(item, cost, length=chance.randrange(100))] for item, cost in costs.items()]
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *requests)
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    waiting = list(costs)
    for batch in engine.batches[1:]:
        assert len(batch) <= 8
        assert len(batch) * max(costs[item] for item in batch) <= 100
        assert waiting[0] in batch
        waiting = [item for item in waiting if item not in batch]
    assert waiting == []


async def test_an_item_over_the_budget_runs_alone(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=10, max_batch_size=8, max_queue_cost=1000))
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, [submission("huge", cost=50)], *singles("a", "b"))
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.batches[1:] == [["huge"], ["a", "b"]]


async def test_items_of_equal_length_are_computed_in_the_order_of_their_arrival(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles(*"abcdefghij"))
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.batches[1:] == [list("abcd"), list("efgh"), list("ij")]


async def test_items_of_like_length_share_a_batch(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    short, long = [f"short-{n}" for n in range(4)], [f"long-{n}" for n in range(4)]
    mixed = [item for pair in zip(short, long, strict=True) for item in pair]
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *([submission(item, cost=90 if item in long else 10)] for item in mixed))
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.batches[1:] == [short, long]


async def test_a_batch_is_filled_with_shorter_items_before_longer_ones(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=80, max_batch_size=4, max_queue_cost=1000))
    arrivals = {"oldest": 20, "long-0": 25, "short-0": 10, "short-1": 10, "long-1": 25, "short-2": 10}
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *([submission(item, cost)] for item, cost in arrivals.items()))
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.batches[1:] == [["short-0", "short-1", "short-2", "oldest"], ["long-0", "long-1"]]


async def test_a_batch_is_sorted_by_length(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *([submission(item, cost)] for item, cost in [("c", 3), ("a", 1), ("b", 2)]))
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.batches[1:] == [["a", "b", "c"]]


async def test_while_a_batch_runs_later_requests_join_those_that_wait(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    first = await enqueue(batcher, *singles("a", "b"))
    second = await enqueue(batcher, *singles("c", "d"))
    engine.gate.set()
    await asyncio.gather(held, *first, *second)

    assert engine.batches[1:] == [["a", "b", "c", "d"]]


async def test_a_lone_request_is_computed_at_once_without_waiting_for_company(bench: Bench) -> None:
    engine = RecordingEngine()
    await bench.batcher(engine).submit([submission("alone")])

    assert engine.batches == [["alone"]]


@pytest.mark.slow
async def test_an_idle_batcher_uses_no_cpu(bench: Bench) -> None:
    batcher = bench.batcher(RecordingEngine())
    await batcher.submit([submission("warm")])
    threads = ("compute-test", threading.current_thread().name)
    before = cpu_s(*threads)
    await asyncio.sleep(0.5)  # idling is what is measured, in CPU time
    assert cpu_s(*threads) - before < 0.02


async def test_two_batchers_on_one_thread_take_turns(bench: Bench) -> None:
    order: list[str] = []

    def note_turn_of(name: str) -> Callable[[Sequence[str]], None]:
        return lambda items: order.append(name)

    engines = {name: RecordingEngine(note_turn_of(name)) for name in ("old", "new")}
    limits = BatchLimits(max_batch_cost=100, max_batch_size=1, max_queue_cost=1000)
    batchers = {name: bench.batcher(engine, limits) for name, engine in engines.items()}
    held = await hold(engines["old"], batchers["old"])
    tasks = [task for batcher in batchers.values() for task in await enqueue(batcher, *singles("a", "b", "c"))]
    engines["old"].gate.set()
    await asyncio.gather(held, *tasks)

    assert order[1:] == ["new", "old", "new", "old", "new", "old"]


async def test_an_answer_says_how_long_its_item_waited_and_was_computed(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    began = time.monotonic()
    held = await hold(engine, batcher)
    [task] = await enqueue(batcher, *singles("a"))
    queued = time.monotonic()
    engine.gate.set()
    [answer] = await task
    elapsed = time.monotonic() - began

    [held_answer] = await held
    assert held_answer.infer_s > 0
    assert 0 < answer.queue_s < elapsed
    assert answer.queue_s >= held_answer.queue_s + held_answer.infer_s - (queued - began)
    assert 0 < answer.infer_s < elapsed - answer.queue_s


async def test_nothing_of_an_answered_request_stays_in_memory(bench: Bench) -> None:
    class Image(str):
        pass

    batcher = bench.batcher(RecordingEngine())
    bench.engines[0].batches = Forgetful()
    image = Image("pixels")
    reference = weakref.ref(image)
    await batcher.submit([submission(image)], deadline=time.monotonic() + 60)
    del image
    await run_on(bench.thread, lambda: None)

    assert reference() is None


class Forgetful(list[list[str]]):
    """Keeps nothing that is appended to it."""

    def append(self, batch: list[str]) -> None:
        pass


# The bounds of the queue


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=10, max_batch_size=4, max_queue_cost=10))
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, [submission("a", cost=6)], [submission("b", cost=4)])

    with pytest.raises(Overloaded) as refused:  # while the compute thread is held: nothing was waited for
        await batcher.submit([submission("c")])

    assert refused.value.code == "queue_full"
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s <= 30
    assert bench.sample("rejected_total", reason="queue_full") == 1
    engine.gate.set()
    await asyncio.gather(held, *tasks)
    assert results(await batcher.submit([submission("c")])) == ["C"]
    assert engine.computed.count("c") == 1


async def test_the_time_to_come_back_grows_with_the_queue_and_is_capped(bench: Bench) -> None:
    engine = RecordingEngine()
    limits = BatchLimits(max_batch_cost=10, max_batch_size=4, max_queue_cost=10**12)
    batcher = bench.batcher(engine, limits)
    await batcher.submit([submission("measured", cost=10_000)])
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, [submission("short", cost=1000)])
    retry_after_s = []
    for cost in (1000, 10**12 - 2000):
        with pytest.raises(Overloaded) as refused:
            await batcher.submit([submission("over", cost=10**12)])
        retry_after_s.append(refused.value.retry_after_s)
        tasks += await enqueue(batcher, [submission("long", cost=cost)])
    with pytest.raises(Overloaded) as refused:
        await batcher.submit([submission("over", cost=10**12)])
    retry_after_s.append(refused.value.retry_after_s)
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert retry_after_s[1] == pytest.approx(2 * (retry_after_s[0] or 0))
    assert retry_after_s[2] == 30


async def test_all_items_of_a_request_are_admitted_or_none(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=10, max_batch_size=4, max_queue_cost=10))
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, [submission("a", cost=6)])
    with pytest.raises(Overloaded):
        await batcher.submit([submission("fits", cost=2), submission("does-not", cost=3)])
    assert (batcher.queue_depth, batcher.queue_cost) == (1, 6)
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.computed == ["held", "a"]


async def test_a_request_larger_than_the_whole_queue_is_taken_by_an_empty_queue_only(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=10, max_batch_size=4, max_queue_cost=10))
    large = [submission(f"{number}") for number in range(2048)]

    assert results(await batcher.submit(large)) == [f"{number}" for number in range(2048)]

    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a"))
    with pytest.raises(Overloaded):
        await batcher.submit(large)
    engine.gate.set()
    await asyncio.gather(held, *tasks)


# Faults


async def test_only_the_item_at_fault_fails_and_the_cause_is_logged_once_and_never_told(bench: Bench) -> None:
    engine = RecordingEngine(raise_for("bad", RuntimeError("the secret of row 3")))
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=100, max_batch_size=8, max_queue_cost=1000))
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b", "c", "bad", "e", "f", "g", "h"))
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        outcomes = await asyncio.gather(held, *tasks, return_exceptions=True)

    failed = outcomes.pop(4)
    assert isinstance(failed, InternalError)
    assert "secret" not in str(failed.body())
    assert [results(answer) for answer in outcomes if isinstance(answer, list)] == [["HELD"], *[[c] for c in "ABCEFGH"]]
    assert [(log["event"], str(log["exc_info"])) for log in logs] == [("batch failed", "the secret of row 3")]


async def test_waiters_of_one_failing_batch_get_an_exception_each(bench: Bench) -> None:
    def fail(items: Sequence[str]) -> None:
        if "held" not in items:
            raise RuntimeError("no item can be computed")

    engine = RecordingEngine(fail)
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b", "c"))
    engine.gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    await held
    assert [type(outcome) for outcome in outcomes] == [InternalError] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3


async def test_after_a_failing_batch_the_next_is_served(bench: Bench) -> None:
    batcher = bench.batcher(RecordingEngine(raise_for("bad", RuntimeError())))
    with pytest.raises(InternalError):
        await batcher.submit([submission("bad")])

    assert results(await batcher.submit([submission("good")])) == ["GOOD"]
    assert batcher.is_alive


async def test_a_request_fails_as_a_whole_and_what_it_still_had_in_the_queue_is_dropped(bench: Bench) -> None:
    engine = RecordingEngine(raise_for("bad", RuntimeError()))
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=100, max_batch_size=1, max_queue_cost=1000))
    held = await hold(engine, batcher)
    [task] = await enqueue(batcher, [submission("bad"), *(submission(f"{number}") for number in range(200))])
    engine.gate.set()
    with pytest.raises(InternalError):
        await task

    await held
    assert (batcher.queue_depth, batcher.queue_cost) == (0, 0)
    dropped = bench.sample("dropped_items_total", reason="failed")
    await run_on(bench.thread, lambda: None)
    # one more may have left the queue before the request had failed, and not run after it had
    assert 201 <= len(engine.computed) + dropped <= 202


async def test_an_error_meant_for_the_client_passes_as_it_is_to_the_item_at_fault(bench: Bench) -> None:
    error = InvalidRequest("the image has no pixels")
    engine = RecordingEngine(raise_for("bad", error))
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "bad", "c"))
    engine.gate.set()
    outcomes = await asyncio.gather(held, *tasks, return_exceptions=True)

    assert outcomes[2] is error
    assert [type(outcome) for outcome in outcomes] == [list, list, InvalidRequest, list]


async def test_a_wrong_number_of_results_fails_its_batch_and_the_next_is_served(bench: Bench) -> None:
    class Miscounting(RecordingEngine):
        def run_batch(self, items: Sequence[str]) -> list[str]:
            computed = super().run_batch(items)
            return computed[:-1] if "odd" in items else computed

    engine = Miscounting()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "odd", "c"))
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await held
    assert [type(outcome) for outcome in outcomes] == [InternalError] * 3
    assert engine.batches[1:] == [["a", "odd", "c"]]
    assert [(log["event"], log["num_items"], log["num_results"]) for log in logs] == [("wrong number of results", 3, 2)]
    assert results(await batcher.submit([submission("next")])) == ["NEXT"]


class SmallDevice(RecordingEngine):
    """Has memory for this many items."""

    def __init__(self, num_items: int) -> None:
        super().__init__(self._allocate)
        self.num_items = num_items

    def _allocate(self, items: Sequence[str]) -> None:
        if len(items) > self.num_items or "huge" in items:
            raise OutOfDeviceMemory(f"no room for {len(items)} items")


async def test_running_out_of_memory_halves_the_budget_and_everything_is_still_answered(bench: Bench) -> None:
    engine = SmallDevice(num_items=5)
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=1600, max_batch_size=16, max_queue_cost=10_000))
    items = [submission(f"{number}", cost=100) for number in range(48)]
    held = await hold(engine, batcher)
    [task] = await enqueue(batcher, items)
    engine.gate.set()
    answers = await task

    await held
    assert results(answers) == [f"{number}" for number in range(48)]
    # 16 items fail and leave 8 to try; they fail and leave 4, and so do the other 8; later ones are cut to fit
    assert [len(batch) for batch in engine.batches[1:5]] == [16, 8, 4, 4]
    assert [len(batch) for batch in engine.batches[5:]] == [8, 4, 4] + [4] * 8
    assert bench.sample("out_of_memory_total") == 3
    assert 400 <= bench.sample("batch_cost_budget") < 500


async def test_the_budget_recovers_slowly_while_batches_fit(bench: Bench) -> None:
    engine = SmallDevice(num_items=4)
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=800, max_batch_size=8, max_queue_cost=100_000))
    full = [submission(f"{number}", cost=100) for number in range(8)]
    await batcher.submit(full)
    assert 400 <= bench.sample("batch_cost_budget") < 420
    engine.num_items = 8

    for _ in range(10):
        await batcher.submit(full[:1])
    assert bench.sample("batch_cost_budget") < 420, "a batch far below the budget proves nothing"
    for _ in range(100):
        await batcher.submit(full)
    assert bench.sample("batch_cost_budget") == 800
    assert len(engine.batches[-1]) == 8


async def test_an_item_too_large_for_the_device_fails_alone_and_costs_the_others_nothing(bench: Bench) -> None:
    batcher = bench.batcher(SmallDevice(num_items=5))
    with pytest.raises(Overloaded) as refused:
        await batcher.submit([submission("huge", cost=900)])

    assert refused.value.code == "out_of_memory"
    assert bench.sample("batch_cost_budget") == ROOMY.max_batch_cost
    assert bench.sample("out_of_memory_total") == 1


async def test_a_dead_thread_fails_all_that_wait_and_the_batcher_is_not_alive(bench: Bench) -> None:
    def die(items: Sequence[str]) -> None:
        raise SystemExit

    engine = RecordingEngine(die)
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b"))
    with structlog.testing.capture_logs():
        engine.gate.set()
        outcomes = await asyncio.gather(held, *tasks, return_exceptions=True)

    # the first was in the batch that killed the thread: told to try again, it would kill the next one
    assert [type(outcome) for outcome in outcomes] == [InternalError, Overloaded, Overloaded]
    assert not batcher.is_alive
    with pytest.raises(Overloaded):
        await batcher.submit([submission("late")])
    assert (batcher.queue_depth, batcher.queue_cost) == (0, 0)


async def test_nothing_is_taken_for_a_thread_that_does_not_run(bench: Bench) -> None:
    limits, metrics = ROOMY, bench.metrics
    batcher: Batcher[str, str] = Batcher(RecordingEngine(), thread=ComputeThread(), limits=limits, metrics=metrics)

    assert not batcher.is_alive
    with pytest.raises(Overloaded):
        await batcher.submit([submission("a")])
    assert bench.sample("rejected_total", reason="broken") == 1


async def test_a_broken_delivery_fails_all_that_wait_and_the_batcher_is_not_alive(bench: Bench) -> None:
    class BrokenHistogram(Histogram):
        def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
            raise RuntimeError("no room for another sample")

    bench.metrics.batch_size = BrokenHistogram("broken", "Fails.", registry=None)
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b"))
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        outcomes = await asyncio.gather(held, *tasks, return_exceptions=True)
        with pytest.raises(Overloaded):
            await batcher.submit([submission("late")])

    assert all(isinstance(outcome, Overloaded | InternalError) for outcome in outcomes)
    assert not batcher.is_alive
    assert "delivery failed" in [log["event"] for log in logs]


# Work that nobody waits for any more


async def test_cancelled_work_is_never_computed_and_leaves_the_queue_at_once(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=100, max_batch_size=4, max_queue_cost=6))
    held = await hold(engine, batcher)
    kept, cancelled = await enqueue(batcher, [submission("kept")], [submission(f"gone-{n}") for n in range(5)])
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled

    assert (batcher.queue_depth, batcher.queue_cost) == (1, 1)
    assert bench.sample("dropped_items_total", reason="cancelled") == 5
    [next_task] = await enqueue(batcher, [submission("next", cost=5)])  # there is room again
    engine.gate.set()
    await asyncio.gather(held, kept, next_task)
    assert sorted(engine.computed) == ["held", "kept", "next"]


async def test_cancelling_what_is_being_computed_harms_nobody_else(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    tasks = await enqueue(batcher, *singles("a"))
    engine.gate.set()

    assert results(await tasks[0]) == ["A"]
    assert bench.sample("stage_seconds_count", stage="queue") == 1


@pytest.mark.slow
async def test_a_request_that_expires_and_is_cancelled_at_once_leaves_no_error_behind(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: complaints.append(context))
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    [task] = await enqueue(batcher, *singles("a"), deadline=time.monotonic() + 0.01)
    loop.call_later(0.02, task.cancel)
    time.sleep(0.03)  # noqa: ASYNC251 - both are due when the loop next looks
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()

    assert complaints == []
    assert bench.sample("cancelled_total", reason="deadline") == 0, "whoever cancelled it counts it"
    engine.gate.set()
    await held


async def test_what_is_cancelled_while_its_batch_is_retried_is_not_computed_again(bench: Bench) -> None:
    engine = RecordingEngine()
    loop = asyncio.get_running_loop()

    def fail_whole_batch(items: Sequence[str]) -> None:
        if len(items) == 4:
            asyncio.run_coroutine_threadsafe(cancel("b"), loop).result()
            raise RuntimeError("too many at once")

    async def cancel(item: str) -> None:
        tasks[item].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[item]

    engine.fault = fail_whole_batch
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = dict(zip("abcd", await enqueue(batcher, *singles(*"abcd")), strict=True))
    with structlog.testing.capture_logs():
        engine.gate.set()
        await asyncio.gather(held, tasks["a"], tasks["c"], tasks["d"])

    assert engine.batches[1:] == [["a", "b", "c", "d"], ["a"], ["c", "d"]]


async def test_at_the_deadline_the_waiter_is_told_though_a_batch_runs_and_its_work_is_never_computed(
    bench: Bench,
) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    now = time.monotonic()
    later = await enqueue(batcher, [submission("later")], deadline=now + 60)
    expiring = await enqueue(batcher, [submission("a")], [submission("b"), submission("c")], deadline=now + 0.02)
    outcomes = await asyncio.gather(*expiring, return_exceptions=True)  # while the compute thread is held

    assert [type(outcome) for outcome in outcomes] == [DeadlineExceeded, DeadlineExceeded]
    assert batcher.queue_depth == 1
    assert bench.sample("cancelled_total", reason="deadline") == 2
    assert bench.sample("dropped_items_total", reason="deadline") == 3
    engine.gate.set()
    await asyncio.gather(held, *later)
    assert engine.computed == ["held", "later"]


async def test_what_expires_while_the_event_loop_is_busy_is_not_computed(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    [expiring] = await enqueue(batcher, *singles("expired"), deadline=time.monotonic() + 0.01)
    [kept] = await enqueue(batcher, *singles("kept"))
    time.sleep(0.02)  # noqa: ASYNC251 - the loop is to miss the deadline; the compute thread looks at the clock itself
    engine.gate.set()
    outcome, *_ = await asyncio.gather(expiring, held, kept, return_exceptions=True)

    assert isinstance(outcome, DeadlineExceeded)
    assert engine.computed == ["held", "kept"]


async def test_a_deadline_that_has_passed_is_not_computed(bench: Bench) -> None:
    engine = RecordingEngine()
    with pytest.raises(DeadlineExceeded):
        await bench.batcher(engine).submit([submission("late")], deadline=time.monotonic() - 1)

    await run_on(bench.thread, lambda: None)
    assert engine.computed == []


async def test_deadlines_are_kept_in_any_order_and_among_thousands_already_answered(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=1000, max_batch_size=256, max_queue_cost=100_000))
    now = time.monotonic()
    for _ in range(20):
        await asyncio.gather(*(batcher.submit([submission("fast")], deadline=now + 60) for _ in range(200)))
    held = await hold(engine, batcher)
    now = time.monotonic()
    tasks = [
        asyncio.create_task(batcher.submit([submission(f"{delay_s}")], deadline=now + delay_s))
        for delay_s in (0.06, 0.02, 60.0, 0.04)
    ]
    expired = await asyncio.gather(tasks[0], tasks[1], tasks[3], return_exceptions=True)
    engine.gate.set()

    assert [type(outcome) for outcome in expired] == [DeadlineExceeded] * 3
    assert results(await tasks[2]) == ["60.0"]
    await held


@pytest.mark.slow
async def test_thousands_of_deadlines_that_came_to_nothing_are_forgotten_and_the_others_kept(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    requests = singles(*map(str, range(500)))
    now = time.monotonic()
    [waiting] = await enqueue(batcher, *singles("waiting"), deadline=now + 0.3)
    for _ in range(8):
        tasks = [asyncio.create_task(batcher.submit(request, deadline=now + 60)) for request in requests]
        await asyncio.sleep(0)  # each runs up to where it waits for its answer
        for task in tasks:
            task.cancel()
        del task, tasks
        await asyncio.sleep(0)  # the tasks hear of it
    num_requests = sum(type(found) is Request for found in gc.get_objects())
    with pytest.raises(DeadlineExceeded):
        await waiting

    assert num_requests < 2000
    engine.gate.set()
    await held


# Draining and closing


async def test_draining_finishes_what_waits_and_refuses_what_comes(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b", "c", "d", "e"))
    draining = asyncio.create_task(batcher.drain())
    await asyncio.sleep(0)  # draining has begun
    with pytest.raises(Overloaded):
        await batcher.submit([submission("late")])
    assert not draining.done()
    engine.gate.set()
    await draining

    assert results(await held) == ["HELD"]
    assert [results(await task) for task in tasks] == [["A"], ["B"], ["C"], ["D"], ["E"]]
    assert bench.sample("rejected_total", reason="draining") == 1


async def test_closing_fails_what_waits_and_lets_the_running_batch_answer(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b"))
    closing = asyncio.create_task(batcher.close())
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)  # while the compute thread is held
    with pytest.raises(Overloaded):
        await batcher.submit([submission("late")])
    engine.gate.set()
    await closing

    assert [type(outcome) for outcome in outcomes] == [Overloaded, Overloaded]
    assert results(await held) == ["HELD"]
    assert engine.computed == ["held"]
    assert bench.thread.waiting == ()


async def test_a_closed_batcher_leaves_the_thread_to_others(bench: Bench) -> None:
    first, second = bench.batcher(RecordingEngine()), bench.batcher(RecordingEngine())
    await first.close()

    assert results(await second.submit([submission("a")])) == ["A"]


# What is measured


async def test_the_gauges_show_what_waits_for_the_thread_in_all_batchers(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher, other = bench.batcher(engine), bench.batcher(RecordingEngine())
    assert bench.sample("oldest_queued_seconds") == 0
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, [submission("a", cost=3)], [submission("b", cost=4)])
    tasks += await enqueue(other, [submission("c", cost=5)])

    assert bench.sample("queue_depth") == 3
    assert bench.sample("queue_cost") == 12
    assert 0 < other.oldest_queued_s < bench.sample("oldest_queued_seconds")
    assert bench.sample("worker_heartbeat_timestamp_seconds") == bench.thread.heartbeat
    engine.gate.set()
    await asyncio.gather(held, *tasks)
    assert (bench.sample("queue_depth"), bench.sample("queue_cost")) == (0, 0)
    assert bench.sample("oldest_queued_seconds") == 0


async def test_batches_and_stages_are_measured(bench: Bench) -> None:
    engine = RecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, [submission("a", cost=10), submission("b", cost=30)])
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert (bench.sample("batch_size_count"), bench.sample("batch_size_sum")) == (2, 3)
    assert bench.sample("batch_cost_sum") == 1 + 60
    assert bench.sample("batch_padding_ratio_sum") == pytest.approx(20 / 60)
    for stage in ("queue", "infer"):
        assert bench.sample("stage_seconds_count", stage=stage) == 2
        assert bench.sample("stage_seconds_sum", stage=stage) > 0


# Batches that are prepared while another runs


async def collation(engine: CollatingRecordingEngine) -> None:
    assert await asyncio.to_thread(engine.has_collated.wait, 60)
    engine.has_collated.clear()


async def test_a_full_batch_is_collated_off_the_compute_thread_while_another_runs(bench: Bench) -> None:
    engine = CollatingRecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b", "c", "d", "e"))
    await collation(engine)  # while the compute thread is held

    assert engine.collated == [["a", "b", "c", "d"]]
    assert (batcher.queue_depth, batcher.queue_cost) == (5, 5)
    assert batcher.oldest_queued_s > 0
    engine.gate.set()
    answers = await asyncio.gather(held, *tasks)
    assert [results(answer) for answer in answers] == [["HELD"], ["A"], ["B"], ["C"], ["D"], ["E"]]
    assert engine.ready_batches == [["a", "b", "c", "d"]]
    assert engine.batches == [["held"], ["a", "b", "c", "d"], ["e"]]
    assert engine.collating_threads == {"compute-test-collate_0"}


async def test_batch_after_batch_is_collated_while_the_one_before_runs(bench: Bench) -> None:
    engine = CollatingRecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    [task] = await enqueue(batcher, [submission(f"{number}") for number in range(12)])
    engine.gate.set()
    await asyncio.gather(held, task)

    assert engine.ready_batches == [[f"{n}" for n in range(start, start + 4)] for start in (0, 4, 8)]


async def test_a_batch_that_is_not_full_is_not_cut_early(bench: Bench) -> None:
    engine = CollatingRecordingEngine()
    batcher = bench.batcher(engine, BatchLimits(max_batch_cost=40, max_batch_size=4, max_queue_cost=1000))
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b"))
    assert engine.collated == []
    tasks += await enqueue(batcher, [submission("long", cost=38)])  # full by its cost
    await collation(engine)
    engine.gate.set()
    await asyncio.gather(held, *tasks)

    assert engine.ready_batches == [["a", "b"]]


@pytest.mark.slow
async def test_what_is_cancelled_or_expires_in_a_prepared_batch_is_dropped_before_it_runs(bench: Bench) -> None:
    engine = CollatingRecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    a, b = await enqueue(batcher, *singles("a", "b"))
    deadline = time.monotonic() + 1  # late enough for all four to be prepared before
    [expiring] = await enqueue(batcher, *singles("c"), deadline=deadline)
    [d] = await enqueue(batcher, *singles("d"))
    await collation(engine)
    b.cancel()
    await asyncio.sleep(0)  # b hears of it
    # the loop is to miss the deadline; the compute thread looks at the clock itself
    time.sleep(max(0, deadline - time.monotonic()))  # noqa: ASYNC251
    engine.gate.set()
    time.sleep(0.03)  # noqa: ASYNC251 - and to miss it until the batch has run
    outcome, *_ = await asyncio.gather(expiring, held, a, d, return_exceptions=True)

    assert isinstance(outcome, DeadlineExceeded)
    assert engine.collated == [["a", "b", "c", "d"]]
    assert engine.batches == [["held"], ["a", "d"]]


async def test_a_batch_that_can_not_be_collated_fails_only_the_item_at_fault(bench: Bench) -> None:
    engine = CollatingRecordingEngine()
    engine.collate_error = RuntimeError("row 2 has no columns")
    engine.fault = raise_for("bad", RuntimeError("row 2 has no columns"))
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "bad", "c", "d"))
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        outcomes = await asyncio.gather(held, *tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [list, list, InternalError, list, list]
    assert [log["event"] for log in logs] == ["batch failed"]


async def test_closing_fails_a_prepared_batch_as_well(bench: Bench) -> None:
    engine = CollatingRecordingEngine()
    batcher = bench.batcher(engine)
    held = await hold(engine, batcher)
    tasks = await enqueue(batcher, *singles("a", "b", "c", "d"))
    await collation(engine)
    closing = asyncio.create_task(batcher.close())
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    engine.gate.set()
    await asyncio.gather(held, closing)

    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 4
    assert engine.computed == ["held"]
