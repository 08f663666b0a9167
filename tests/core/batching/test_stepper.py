import asyncio
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

import pytest
import structlog
from prometheus_client import Histogram

from services.core.batching.compute_thread import ComputeThread
from services.core.batching.step_queue import Event, Stream
from services.core.batching.stepper import StepLimits, Stepper
from services.core.errors import DeadlineExceeded, FoveaError, InternalError, InvalidRequest, Overloaded, TooLarge
from services.core.exchange import Caller, set_caller
from services.core.metrics import Metrics
from tests.core.compute_calls import run_on
from tests.core.cpu_time import cpu_s
from tests.core.stepping_engines import CountingEngine, Item, events_of

ROOMY = StepLimits(max_admit_cost=1000, max_queue_cost=100_000, max_queue_size=10_000)


class OutOfDeviceMemory(RuntimeError):
    pass


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, OutOfDeviceMemory)


class Bench:
    """A compute thread and what the tests need around the Steppers on it."""

    def __init__(self) -> None:
        self.thread = ComputeThread("compute-test")
        self.metrics = Metrics("test")
        self.engines: list[CountingEngine] = []
        self.steppers: list[Stepper[Item, str]] = []

    def stepper(self, engine: CountingEngine, limits: StepLimits = ROOMY) -> Stepper[Item, str]:
        self.engines.append(engine)
        stepper: Stepper[Item, str] = Stepper(
            engine, thread=self.thread, limits=limits, metrics=self.metrics, is_out_of_memory=is_out_of_memory
        )
        self.steppers.append(stepper)
        return stepper

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"fovea_{name}", labels) or 0.0

    async def next_turn(self) -> None:
        """A turn that began after this call has been taken, if one was due, and what came of it delivered."""
        for _ in range(2):  # the first call may stand before the turn that a running one asks for
            await run_on(self.thread, lambda: None)
        await asyncio.sleep(0)

    async def close(self) -> None:
        for engine in self.engines:
            engine.fault = fail_at_end  # what a failed test has left running might have no end
            engine.gate.set()
        for stepper in self.steppers:
            await stepper.close()
        await self.thread.close()


def fail_at_end(what: str, items: Sequence[Item]) -> None:
    if what != "cancel":
        raise RuntimeError("the test has ended")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.thread.start()
    yield bench
    await bench.close()


def submit(stepper: Stepper[Item, str], item: Item, deadline: float | None = None) -> Stream[str]:
    return stepper.submit(item, cost=item.size, deadline=deadline)


async def read(stream: Stream[str]) -> list[str]:
    """All events to the end; the last one, and no other, must be flagged."""
    events = [event async for event in stream]
    assert [event.is_last for event in events] == [False] * (len(events) - 1) + [True]
    return [event.value for event in events]


async def outcome_of(stream: Stream[str]) -> list[str] | FoveaError:
    try:
        return await read(stream)
    except FoveaError as error:
        return error


async def ask(stepper: Stepper[Item, str], item: Item) -> list[str]:
    return await read(submit(stepper, item))


async def hold(
    engine: CountingEngine,
    stepper: Stepper[Item, str],
    *,
    size: int = 1,
    num_events: int = 3,
    deadline: float | None = None,
) -> Stream[str]:
    """Keep the compute thread where it admits the item `held`, until the engine's gate opens."""
    engine.entered.clear()
    engine.gate.clear()
    stream = submit(stepper, Item("held", num_events, size), deadline)
    assert await asyncio.to_thread(engine.entered.wait, 60)
    return stream


def fail_for(culprit: str, what: str, error: Exception) -> Callable[[str, Sequence[Item]], None]:
    def fault(doing: str, items: Sequence[Item]) -> None:
        if doing == what and culprit in [item.name for item in items]:
            raise error

    return fault


# Events, and how items join and leave


async def test_the_events_of_an_item_come_once_each_and_in_order_and_the_last_is_flagged(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine())

    assert await ask(stepper, Item("a", num_events=5)) == ["a-0", "a-1", "a-2", "a-3", "a-4"]


async def test_a_stream_that_has_ended_stays_ended(bench: Bench) -> None:
    stream = submit(bench.stepper(CountingEngine()), Item("a"))
    await read(stream)

    assert [event async for event in stream] == []


async def test_each_of_two_hundred_concurrent_streams_gets_its_own_events_and_all_of_them(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine(room=16))
    items = [Item(f"client-{number}", num_events=1 + number * 7 % 31) for number in range(200)]

    answers = await asyncio.gather(*(ask(stepper, item) for item in items))

    assert answers == [events_of(item) for item in items]


async def test_items_join_the_running_batch_and_leave_it_at_every_step(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item("short", num_events=2)), submit(stepper, Item("long", num_events=4))]
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert engine.admitted == [["held"], ["short", "long"]]
    assert engine.stepped == [["held"], ["held", "short", "long"], ["long"], ["long"]]


async def test_an_item_whose_first_event_is_its_last_takes_part_in_no_step(bench: Bench) -> None:
    engine = CountingEngine()

    assert await ask(bench.stepper(engine), Item("ranking", num_events=1)) == ["ranking-0"]
    await bench.next_turn()
    assert engine.stepped == []


async def test_items_are_admitted_in_the_order_of_their_arrival_and_no_small_one_overtakes(bench: Bench) -> None:
    engine = CountingEngine(room=4)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    names = ["a", "large", "b", "c"]
    streams = [submit(stepper, Item(name, size=4 if name == "large" else 1)) for name in names]
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert engine.admitted == [["held"], ["a"], ["large"], ["b", "c"]]


async def test_one_turn_admits_no_more_than_the_limit_and_those_that_run_step_in_between(bench: Bench) -> None:
    engine = CountingEngine()
    limits = StepLimits(max_admit_cost=10, max_queue_cost=1000, max_queue_size=100)
    stepper = bench.stepper(engine, limits)
    held = await hold(engine, stepper)
    sizes = {"a": 6, "b": 4, "c": 1, "over": 50, "d": 1}
    streams = [submit(stepper, Item(name, size=size)) for name, size in sizes.items()]
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert engine.admitted == [["held"], ["a", "b"], ["c"], ["over"], ["d"]]
    assert engine.stepped[:3] == [["held"], ["held", "a", "b"], ["a", "b", "c"]]


async def test_a_reader_that_takes_nothing_stops_nobody(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine())
    slow = Item("slow", num_events=500)
    unread = submit(stepper, slow)
    first = await anext(unread)

    assert await ask(stepper, Item("quick", num_events=100)) == events_of(Item("quick", num_events=100))
    await stepper.drain()
    assert [first.value, *(event.value for event in [event async for event in unread])] == events_of(slow)


@pytest.mark.slow
async def test_an_idle_stepper_uses_no_cpu(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine())
    await ask(stepper, Item("warm"))
    threads = ("compute-test", threading.current_thread().name)
    before = cpu_s(*threads)
    await asyncio.sleep(0.5)  # idling is what is measured, in CPU time
    assert cpu_s(*threads) - before < 0.02


async def test_while_items_run_others_get_their_turn_of_the_thread_between_two_steps(bench: Bench) -> None:
    engine, other_engine = CountingEngine(), CountingEngine()
    stepper, other = bench.stepper(engine), bench.stepper(other_engine)
    order: list[str] = []
    engine.fault = lambda what, items: order.append("one") if what == "step" else None
    other_engine.fault = lambda what, items: order.append("other") if what == "step" else None
    held = await hold(engine, stepper)
    stream = submit(other, Item("a"))
    calls = [asyncio.create_task(run_on(bench.thread, lambda: order.append("call"))) for _ in range(2)]
    await asyncio.sleep(0)  # the tasks have given their calls
    engine.gate.set()
    await asyncio.gather(read(held), read(stream), *calls)

    assert order == ["one", "other", "call", "call", "one", "other"]


async def test_an_event_says_how_long_its_item_waited_and_when_it_was_computed(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    began = time.monotonic()
    held = await hold(engine, stepper)
    stream = submit(stepper, Item("a"))
    queued = time.monotonic()
    engine.gate.set()
    held_events = [event async for event in held]
    events = [event async for event in stream]
    elapsed_s = time.monotonic() - began

    assert held_events[0].queue_s < held_events[0].elapsed_s
    assert {event.queue_s for event in events} == {events[0].queue_s}
    assert held_events[0].elapsed_s - (queued - began) <= events[0].queue_s
    times = [events[0].queue_s, *(event.elapsed_s for event in events), elapsed_s]
    assert times == sorted(times)


async def test_nothing_of_an_answered_item_stays_in_memory(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine())
    item = Item("prompt")
    reference = weakref.ref(item)
    stream = submit(stepper, item, deadline=time.monotonic() + 60)
    await read(stream)
    del item
    await bench.next_turn()

    assert reference() is None


async def test_an_item_is_refused_that_costs_nothing_or_is_being_answered_already(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    item = Item("a")
    with pytest.raises(ValueError, match="cost is 0"):
        stepper.submit(item, cost=0)
    engine.gate.clear()
    stream = submit(stepper, item)
    with pytest.raises(ValueError, match="already"):
        submit(stepper, item)
    engine.gate.set()
    await read(stream)

    assert await ask(stepper, item) == events_of(item)


# The bounds of the queue


@pytest.mark.parametrize(
    "limits",
    [
        StepLimits(max_admit_cost=10, max_queue_cost=10, max_queue_size=100),
        StepLimits(max_admit_cost=10, max_queue_cost=1000, max_queue_size=2),
    ],
    ids=["cost", "size"],
)
async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(bench: Bench, limits: StepLimits) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, limits)
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item("a", size=6)), submit(stepper, Item("b", size=4))]

    with pytest.raises(Overloaded) as refused:  # while the compute thread is held: nothing was waited for
        submit(stepper, Item("c"))

    assert refused.value.code == "queue_full"
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s <= 30
    assert bench.sample("rejected_total", reason="queue_full") == 1
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, *streams)))
    assert await ask(stepper, Item("c")) == events_of(Item("c"))
    assert [name for names in engine.admitted for name in names].count("c") == 1


async def test_the_time_to_come_back_grows_with_the_queue_and_is_capped(bench: Bench) -> None:
    engine = CountingEngine(room=10**13)
    stepper = bench.stepper(engine, StepLimits(max_admit_cost=10, max_queue_cost=10**12, max_queue_size=100))
    await ask(stepper, Item("measured", size=10_000))
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item("short", size=1000))]
    retry_after_s = []
    for size in (1000, 10**12 - 2000):
        with pytest.raises(Overloaded) as refused:
            submit(stepper, Item("over", size=10**12))
        retry_after_s.append(refused.value.retry_after_s or 0)
        streams.append(submit(stepper, Item("long", size=size)))
    for size in (1, 10**12):
        with pytest.raises(Overloaded) as refused:
            submit(stepper, Item("over", size=size))
        retry_after_s.append(refused.value.retry_after_s or 0)
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert retry_after_s[1] == pytest.approx(2 * retry_after_s[0])
    assert retry_after_s[2:] == [30, 30]


async def test_an_item_larger_than_the_whole_queue_is_taken_by_an_empty_queue_only(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, StepLimits(max_admit_cost=10, max_queue_cost=10, max_queue_size=100))
    large = Item("large", size=50)
    assert await ask(stepper, large) == events_of(large)

    held = await hold(engine, stepper)
    waiting = submit(stepper, Item("a"))
    with pytest.raises(Overloaded):
        submit(stepper, large)
    engine.gate.set()
    await asyncio.gather(read(held), read(waiting))


# Faults


async def test_of_items_that_can_not_be_admitted_together_only_the_one_at_fault_fails(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    engine.fault = fail_for("bad", "admit", RuntimeError("the secret of prompt 3"))
    held = await hold(engine, stepper)
    items = [Item(name) for name in ("a", "b", "bad", "c")]
    streams = [submit(stepper, item) for item in items]
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        await read(held)
        outcomes = await asyncio.gather(*(outcome_of(stream) for stream in streams))

    failed = outcomes[2]
    assert isinstance(failed, InternalError)
    assert "secret" not in str(failed.body())
    assert [outcomes[place] for place in (0, 1, 3)] == [events_of(items[place]) for place in (0, 1, 3)]
    assert engine.admitted[1:] == [["a", "b", "bad", "c"], ["a"], ["b"], ["bad"], ["c"]]
    assert [(log["event"], str(log["exc_info"])) for log in logs] == [("item failed", "the secret of prompt 3")]


async def test_an_error_meant_for_the_client_passes_as_it_is_to_the_item_at_fault(bench: Bench) -> None:
    engine = CountingEngine()
    error = InvalidRequest("no document has a token")
    engine.fault = fail_for("bad", "admit", error)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item(name)) for name in ("a", "bad")]
    engine.gate.set()
    outcomes = await asyncio.gather(*(outcome_of(stream) for stream in (held, *streams)))

    assert outcomes[2] is error
    assert [type(outcome) for outcome in outcomes] == [list, list, InvalidRequest]


async def test_an_item_that_can_not_even_be_measured_fails_alone(bench: Bench) -> None:
    engine = CountingEngine()
    engine.fault = fail_for("bad", "room", RuntimeError())
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item(name)) for name in ("a", "bad", "c")]
    engine.gate.set()
    outcomes = await asyncio.gather(*(outcome_of(stream) for stream in (held, *streams)))

    assert [type(outcome) for outcome in outcomes] == [list, list, InternalError, list]
    assert engine.admitted == [["held"], ["a", "c"]]


async def test_a_step_that_fails_fails_all_that_run_once_each_and_those_that_wait_are_answered(bench: Bench) -> None:
    engine = CountingEngine(room=3)
    stepper = bench.stepper(engine)
    running = [submit(stepper, Item(name, num_events=10**9)) for name in ("a", "b", "bad")]
    firsts = [(await anext(stream)).value for stream in running]
    engine.entered.clear()
    engine.gate.clear()
    assert await asyncio.to_thread(engine.entered.wait, 60)
    waiting = [submit(stepper, Item(name)) for name in ("c", "d")]
    engine.fault = fail_for("bad", "step", RuntimeError("the secret of step 2"))
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        errors = []
        for stream in running:
            with pytest.raises(InternalError) as failed:
                [event async for event in stream]
            errors.append(failed.value)
        answers = await asyncio.gather(*(read(stream) for stream in waiting))

    assert firsts == ["a-0", "b-0", "bad-0"]
    assert len({id(error) for error in errors}) == 3
    assert not any("secret" in str(error.body()) for error in errors)
    assert sorted(engine.cancelled) == ["a", "b", "bad"]
    assert answers == [events_of(Item("c")), events_of(Item("d"))]
    assert [(log["event"], str(log["exc_info"])) for log in logs] == [("step failed", "the secret of step 2")]
    assert stepper.is_alive
    for stream in running:
        assert [event async for event in stream] == []


async def test_what_came_before_a_fault_is_still_read(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)

    def fail_in_third_step(what: str, items: Sequence[Item]) -> None:
        if len(engine.stepped) == 3:
            raise RuntimeError

    engine.fault = fail_in_third_step
    stream = submit(stepper, Item("a", num_events=10))
    with structlog.testing.capture_logs():
        await stepper.drain()
    values = []
    with pytest.raises(InternalError):
        async for event in stream:
            values.append(event.value)

    assert values == ["a-0", "a-1", "a-2"]


async def test_items_that_the_engine_has_lost_fail_instead_of_waiting_for_ever(bench: Bench) -> None:
    class Forgetful(CountingEngine):
        def step(self) -> list[tuple[Item, str, bool]]:
            came = super().step() if self.running else []
            lost = next((item for item in self.running if item.name == "lost"), None)
            if lost is not None:
                del self.running[lost]
            return [event for event in came if event[0].name != "lost"]

    stepper = bench.stepper(Forgetful())
    outcomes = await asyncio.gather(*(outcome_of(submit(stepper, Item(name))) for name in ("a", "lost")))

    assert outcomes[0] == events_of(Item("a"))
    assert isinstance(outcomes[1], InternalError)
    assert await ask(stepper, Item("next")) == events_of(Item("next"))


async def test_events_of_an_item_that_does_not_run_are_nobodys(bench: Bench) -> None:
    class Haunted(CountingEngine):
        def step(self) -> list[tuple[Item, str, bool]]:
            return [(Item("ghost"), "boo", True), *super().step()]

    stepper = bench.stepper(Haunted())
    with structlog.testing.capture_logs() as logs:
        assert await ask(stepper, Item("a")) == events_of(Item("a"))

    assert {log["event"] for log in logs} == {"event of an item that does not run"}


async def test_an_item_for_which_there_is_no_room_even_alone_is_refused_and_holds_up_nobody(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine(room=10))
    outcomes = await asyncio.gather(
        *(outcome_of(submit(stepper, Item(name, size=size))) for name, size in (("a", 4), ("huge", 11), ("b", 4)))
    )

    assert outcomes[0] == events_of(Item("a"))
    assert isinstance(outcomes[1], TooLarge)
    assert outcomes[2] == events_of(Item("b"))


class SmallDevice(CountingEngine):
    """An engine with less memory for items than it believes."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.memory = memory
        self.fault = self._allocate

    def _allocate(self, what: str, items: Sequence[Item]) -> None:
        if what == "admit" and sum(item.size for item in self.running) > self.memory:
            raise OutOfDeviceMemory(f"no memory for {len(items)} more")


async def test_running_out_of_memory_admits_fewer_and_everything_is_still_answered_in_order(bench: Bench) -> None:
    engine = SmallDevice(memory=5)
    stepper = bench.stepper(engine, StepLimits(max_admit_cost=8, max_queue_cost=1000, max_queue_size=100))
    held = await hold(engine, stepper)
    items = [Item(f"{number}") for number in range(24)]
    streams = [submit(stepper, item) for item in items]
    with structlog.testing.capture_logs():
        engine.gate.set()
        answers = await asyncio.gather(*(read(stream) for stream in streams))

    await read(held)
    assert answers == [events_of(item) for item in items]
    assert engine.admitted[1] == [f"{number}" for number in range(8)]
    assert max(len(names) for names in engine.admitted[2:]) <= 4
    firsts = list(dict.fromkeys(name for names in engine.admitted[1:] for name in names))
    assert firsts == [item.name for item in items]
    assert bench.sample("out_of_memory_total") >= 2
    assert bench.sample("batch_cost_budget") < 8


async def test_an_item_that_has_no_memory_beside_others_waits_until_one_has_left(bench: Bench) -> None:
    engine = SmallDevice(memory=4)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, size=3, num_events=6)
    streams = [submit(stepper, Item("large", size=4)), submit(stepper, Item("small"))]
    with structlog.testing.capture_logs():
        engine.gate.set()
        answers = await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert answers == [events_of(item) for item in (Item("held", 6), Item("large"), Item("small"))]
    # both together, then the large one alone; not again at each step, and no other in its place
    assert engine.admitted == [["held"], ["large", "small"], ["large"], ["large"], ["small"], ["small"]]
    assert len(engine.stepped) == 5 + 2 + 2


async def test_an_item_that_has_no_memory_alone_fails_and_costs_the_others_nothing(bench: Bench) -> None:
    stepper = bench.stepper(SmallDevice(memory=4))
    outcome = await outcome_of(submit(stepper, Item("huge", size=5)))

    assert isinstance(outcome, Overloaded)
    assert outcome.code == "out_of_memory"
    assert bench.sample("batch_cost_budget") == ROOMY.max_admit_cost
    assert await ask(stepper, Item("a")) == events_of(Item("a"))


async def test_a_dead_thread_fails_all_and_the_stepper_is_not_alive(bench: Bench) -> None:
    engine = CountingEngine(room=2)

    def die(what: str, items: Sequence[Item]) -> None:
        if what == "step":
            raise SystemExit

    engine.fault = die
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, size=2)
    streams = [submit(stepper, Item(name)) for name in ("a", "b")]
    with structlog.testing.capture_logs():
        engine.gate.set()
        outcomes = await asyncio.gather(*(outcome_of(stream) for stream in (held, *streams)))

    # the first was in the step that killed the thread: told to try again, it would kill the next one
    assert [type(outcome) for outcome in outcomes] == [InternalError, Overloaded, Overloaded]
    assert not stepper.is_alive
    with pytest.raises(Overloaded):
        submit(stepper, Item("late"))
    assert (stepper.queue_depth, stepper.queue_cost) == (0, 0)


async def test_an_engine_that_can_not_cancel_after_a_failed_step_ends_the_thread(bench: Bench) -> None:
    engine = CountingEngine(room=2)

    def fail(what: str, items: Sequence[Item]) -> None:
        if what in ("step", "cancel"):
            raise RuntimeError(what)

    engine.fault = fail
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, size=2)
    waiting = submit(stepper, Item("a"))
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        outcomes = await asyncio.gather(outcome_of(held), outcome_of(waiting))

    assert [type(outcome) for outcome in outcomes] == [InternalError, Overloaded]
    assert not stepper.is_alive
    assert not bench.thread.is_alive  # which turns /livez red
    assert [log["event"] for log in logs] == ["step failed", "compute thread died"]


async def test_nothing_is_taken_for_a_thread_that_does_not_run(bench: Bench) -> None:
    stepper: Stepper[Item, str] = Stepper(CountingEngine(), thread=ComputeThread(), limits=ROOMY, metrics=bench.metrics)

    assert not stepper.is_alive
    with pytest.raises(Overloaded):
        submit(stepper, Item("a"))
    assert bench.sample("rejected_total", reason="broken") == 1


async def test_a_broken_delivery_fails_all_and_the_stepper_is_not_alive(bench: Bench) -> None:
    class BrokenHistogram(Histogram):
        def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
            raise RuntimeError("no room for another sample")

        def labels(self, *labelvalues: object, **labelkwargs: object) -> "BrokenHistogram":
            return self

    bench.metrics.stage_seconds = BrokenHistogram("broken", "Fails.", registry=None)
    engine = CountingEngine(room=2)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item(name, num_events=num)) for name, num in (("a", 1000), ("b", 10))]
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        outcomes = await asyncio.gather(*(outcome_of(stream) for stream in streams))
        with pytest.raises(Overloaded):
            submit(stepper, Item("late"))

    # its own last event is in the stream already
    assert [event.value async for event in held] == events_of(Item("held"))
    assert all(isinstance(outcome, Overloaded | InternalError) for outcome in outcomes)
    assert not stepper.is_alive
    assert "delivery failed" in [log["event"] for log in logs]


# Items that take long to prepare


async def test_those_that_run_step_between_two_pieces_of_what_another_needs_first(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, num_events=6)
    streams = [submit(stepper, Item(name, num_pieces=num)) for name, num in (("long", 3), ("next", 2))]
    engine.gate.set()
    answers = await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert answers == [events_of(item) for item in (Item("held", 6), Item("long"), Item("next"))]
    assert engine.prepared == ["long"] * 3 + ["next"] * 2
    assert engine.stepped[:5] == [["held"]] * 4 + [["held", "long"]]


async def test_other_calls_of_the_thread_run_between_two_pieces(bench: Bench) -> None:
    engine = CountingEngine()
    engine.gate.clear()
    stream = submit(bench.stepper(engine), Item("long", num_events=1, num_pieces=100))
    assert await asyncio.to_thread(engine.entered.wait, 60)
    other = asyncio.create_task(run_on(bench.thread, lambda: len(engine.prepared)))
    await asyncio.sleep(0)
    engine.gate.set()

    assert await other == 1
    assert await read(stream) == ["long-0"]


@pytest.mark.parametrize("reason", ["closed", "deadline"])
@pytest.mark.slow
async def test_what_nobody_waits_for_is_prepared_no_further(bench: Bench, reason: str) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    soon = time.monotonic() + 1 if reason == "deadline" else None
    stream = submit(stepper, Item("endless", num_pieces=10**9), soon)
    while not engine.prepared:  # noqa: ASYNC110 - the thread does
        await asyncio.sleep(0.001)
    if reason == "closed":
        await stream.aclose()
    else:
        assert isinstance(await outcome_of(stream), DeadlineExceeded)

    assert await ask(stepper, Item("next", num_pieces=2)) == events_of(Item("next"))
    assert engine.cancelled == ["endless"] and engine.running == {}


@pytest.mark.parametrize("error", [RuntimeError("bad piece"), InvalidRequest("too much of it")])
async def test_a_piece_that_fails_fails_its_item_alone(bench: Bench, error: Exception) -> None:
    engine = CountingEngine()
    engine.fault = fail_for("bad", "prepare", error)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, num_events=9)
    streams = [submit(stepper, Item(name, num_pieces=2)) for name in ("bad", "good")]
    with structlog.testing.capture_logs() as logs:
        engine.gate.set()
        bad, *others = await asyncio.gather(*(outcome_of(stream) for stream in (streams[0], held, streams[1])))

    assert bad is error if isinstance(error, FoveaError) else isinstance(bad, InternalError)
    assert others == [events_of(Item("held", 9)), events_of(Item("good"))]
    assert [log["event"] for log in logs] == ([] if isinstance(error, FoveaError) else ["item failed"])
    assert engine.cancelled == ["bad"]


async def test_a_piece_for_which_there_is_no_memory_waits_until_one_has_left(bench: Bench) -> None:
    engine = CountingEngine()

    def fault(what: str, items: Sequence[Item]) -> None:
        if what == "prepare" and len(engine.running) > 1:
            raise OutOfDeviceMemory("no memory for a piece")

    engine.fault = fault
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, num_events=5)
    streams = [submit(stepper, Item("long", num_pieces=3)), submit(stepper, Item("small"))]
    with structlog.testing.capture_logs():
        engine.gate.set()
        answers = await asyncio.gather(*(read(stream) for stream in (held, *streams)))

    assert answers == [events_of(item) for item in (Item("held", 5), Item("long"), Item("small"))]
    assert bench.sample("out_of_memory_total") >= 1
    assert await ask(stepper, Item("alone", num_pieces=2)) == events_of(Item("alone"))


# Items that nobody waits for any more


async def test_closing_a_stream_frees_its_place_within_one_step(bench: Bench) -> None:
    engine = CountingEngine(room=1)
    stepper = bench.stepper(engine)
    endless = submit(stepper, Item("endless", num_events=10**9))
    await anext(endless)
    engine.entered.clear()
    engine.gate.clear()
    assert await asyncio.to_thread(engine.entered.wait, 60)
    num_steps = len(engine.stepped)
    waiting = submit(stepper, Item("next"))
    await endless.aclose()
    engine.gate.set()

    assert await read(waiting) == events_of(Item("next"))
    assert engine.cancelled == ["endless"]
    assert [names for names in engine.stepped[num_steps:] if "endless" in names] == []
    assert [event async for event in endless] == []


async def test_a_reader_that_is_cancelled_closes_its_stream(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    has_begun = asyncio.Event()

    async def client() -> None:
        async with aclosing(submit(stepper, Item("endless", num_events=10**9))) as stream:
            async for _ in stream:
                has_begun.set()

    task = asyncio.create_task(client())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stepper.drain()
    await bench.next_turn()

    assert engine.cancelled == ["endless"]
    assert engine.running == {}


async def test_closing_wakes_whoever_reads(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    reading = asyncio.create_task(anext(held, None))
    await asyncio.sleep(0)  # it waits for an event
    await held.aclose()
    came: Event[str] | None = await reading

    assert came is None
    engine.gate.set()


async def test_what_is_closed_while_it_waits_leaves_the_queue_at_once_and_is_never_admitted(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, StepLimits(max_admit_cost=100, max_queue_cost=6, max_queue_size=10))
    held = await hold(engine, stepper)
    kept, gone = submit(stepper, Item("kept")), submit(stepper, Item("gone", size=5))
    await gone.aclose()

    assert (stepper.queue_depth, stepper.queue_cost) == (1, 1)
    assert bench.sample("dropped_items_total", reason="cancelled") == 1
    after = submit(stepper, Item("next", size=5))  # there is room again
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, kept, after)))
    assert engine.admitted == [["held"], ["kept", "next"]]


async def test_closing_a_stream_that_has_ended_changes_nothing(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    stream = submit(stepper, Item("a"))
    await read(stream)
    await stream.aclose()
    await stream.aclose()
    await bench.next_turn()

    assert engine.cancelled == []
    assert bench.sample("stage_seconds_count", stage="infer") == 1


async def test_what_is_closed_while_others_of_its_turn_are_tried_again_is_not_admitted_again(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    loop = asyncio.get_running_loop()
    streams: dict[str, Stream[str]] = {}

    def fail_together(what: str, items: Sequence[Item]) -> None:
        if what == "admit" and len(items) > 1:
            asyncio.run_coroutine_threadsafe(streams["b"].aclose(), loop).result()
            raise RuntimeError("too many at once")

    engine.fault = fail_together
    held = await hold(engine, stepper)
    streams |= {name: submit(stepper, Item(name)) for name in "abc"}
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, streams["a"], streams["c"])))

    assert engine.admitted == [["held"], ["a", "b", "c"], ["a"], ["c"]]


@pytest.mark.slow
async def test_at_its_deadline_a_running_item_leaves_the_batch_and_its_reader_is_told_after_what_came(
    bench: Bench,
) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    stream = submit(stepper, Item("endless", num_events=10**9), deadline=time.monotonic() + 1)
    values = []
    with pytest.raises(DeadlineExceeded):
        async for event in stream:
            values.append(event.value)
    await bench.next_turn()

    assert values == [f"endless-{number}" for number in range(len(values))]
    assert len(values) > 1
    assert engine.cancelled == ["endless"]
    assert engine.running == {}
    assert bench.sample("cancelled_total", reason="deadline") == 1


async def test_at_its_deadline_a_waiting_item_is_told_so_though_a_step_runs_and_is_never_admitted(
    bench: Bench,
) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    kept = submit(stepper, Item("kept"), deadline=time.monotonic() + 60)
    expiring = submit(stepper, Item("expiring"), deadline=time.monotonic() + 0.02)

    assert isinstance(await outcome_of(expiring), DeadlineExceeded)  # while the compute thread is held
    assert stepper.queue_depth == 1
    assert bench.sample("dropped_items_total", reason="deadline") == 1
    engine.gate.set()
    await asyncio.gather(read(held), read(kept))
    assert engine.admitted == [["held"], ["kept"]]


@pytest.mark.slow
async def test_what_expires_while_the_event_loop_is_busy_is_neither_admitted_nor_stepped_further(bench: Bench) -> None:
    engine = CountingEngine(room=2)
    stepper = bench.stepper(engine)
    deadline = time.monotonic() + 1  # late enough for the first to be admitted before
    held = await hold(engine, stepper, num_events=10**9, deadline=deadline)
    expiring = submit(stepper, Item("expiring"), deadline=deadline)
    kept = submit(stepper, Item("kept"))
    # the loop is to miss the deadlines; the compute thread looks at the clock itself
    time.sleep(max(0, deadline - time.monotonic()))  # noqa: ASYNC251
    engine.gate.set()
    time.sleep(0.03)  # noqa: ASYNC251 - and to miss them until turns have been taken
    outcomes = await asyncio.gather(*(outcome_of(stream) for stream in (held, expiring, kept)))

    assert [type(outcome) for outcome in outcomes] == [DeadlineExceeded, DeadlineExceeded, list]
    assert engine.admitted == [["held"], ["kept"]]
    # the turn that admitted it steps it once
    assert engine.stepped == [["held"], ["kept"], ["kept"]]


async def test_a_deadline_that_has_passed_is_not_admitted(bench: Bench) -> None:
    engine = CountingEngine()
    stream = submit(bench.stepper(engine), Item("late"), deadline=time.monotonic() - 1)

    assert isinstance(await outcome_of(stream), DeadlineExceeded)
    await bench.next_turn()
    assert engine.admitted == []


async def test_closing_before_anybody_reads_counts_no_deadline(bench: Bench) -> None:
    stream = submit(bench.stepper(CountingEngine()), Item("a"), deadline=time.monotonic() - 1)
    await asyncio.sleep(0.01)  # it has expired
    await stream.aclose()

    assert bench.sample("cancelled_total", reason="deadline") == 0, "whoever cancelled it counts it"


@pytest.mark.parametrize("seed", range(8))
async def test_in_a_storm_of_cancellations_deadlines_and_faults_every_item_ends_exactly_once(
    bench: Bench, seed: int
) -> None:
    chance = random.Random(seed)
    engine = CountingEngine(room=12)
    on_engine = random.Random(seed + 1000)  # of its own: it is drawn from on the compute thread

    def fault(what: str, items: Sequence[Item]) -> None:
        if what == "admit" and any(item.name.endswith("bad") for item in items):
            raise RuntimeError("bad item")
        if (what, on_engine.random() < 0.05) == ("admit", True):
            raise OutOfDeviceMemory
        if (what, on_engine.random() < 0.01) == ("step", True):
            raise RuntimeError("bad step")
        if what == "prepare" and on_engine.random() < 0.03:
            raise on_engine.choice([RuntimeError("bad piece"), OutOfDeviceMemory()])

    engine.fault = fault
    engine.num_lacking = lambda running: int(on_engine.random() < 0.1) if len(running) > 1 else 0
    stepper = bench.stepper(engine, StepLimits(max_admit_cost=8, max_queue_cost=60, max_queue_size=30))
    endings: dict[str, list[str]] = {}

    async def client(number: int) -> None:
        await asyncio.sleep(chance.random() * 0.05)
        item = Item(
            f"{number}" + ("bad" if chance.random() < 0.05 else ""),
            chance.randint(1, 20),
            chance.randint(1, 6),
            num_pieces=max(0, chance.randint(-6, 4)),
        )
        deadline = time.monotonic() + chance.random() * 0.05 if chance.random() < 0.2 else None
        leaves_after = chance.randint(0, 5) if chance.random() < 0.3 else None
        ended = endings.setdefault(item.name, [])
        set_caller(Caller(f"client-{number % 4}"))
        try:
            stream = submit(stepper, item, deadline)
        except Overloaded:
            ended.append("refused")
            return
        values: list[str] = []
        try:
            async with aclosing(stream):
                if leaves_after == 0:
                    ended.append("left")
                    return
                async for event in stream:
                    values.append(event.value)
                    if event.is_last:
                        ended.append("complete")
                    elif len(values) == leaves_after:
                        ended.append("left")
                        return
        except FoveaError as error:
            ended.append(type(error).__name__)
        assert values == events_of(item)[: len(values)], "lost, doubled or out of order"
        assert (len(values) == item.num_events) == (ended == ["complete"])

    with structlog.testing.capture_logs():
        clients = [asyncio.create_task(client(number)) for number in range(150)]
        for task in chance.sample(clients, 10):
            asyncio.get_running_loop().call_later(chance.random() * 0.1, task.cancel)
        results = await asyncio.gather(*clients, return_exceptions=True)
        await stepper.drain()
        await bench.next_turn()

    assert [result for result in results if isinstance(result, Exception)] == []
    num_cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
    assert sum(len(ended) != 1 for ended in endings.values()) <= num_cancelled
    assert {"complete", "left"} <= {name for ended in endings.values() for name in ended}
    assert (engine.running, engine.paused, stepper.queue_depth, stepper.queue_cost) == ({}, {}, 0, 0)
    assert engine.pauses
    assert bench.sample("running_items") == 0
    assert stepper.is_alive


# Draining and closing


async def test_draining_finishes_what_was_taken_and_refuses_what_comes(bench: Bench) -> None:
    engine = CountingEngine(room=1)
    stepper = bench.stepper(engine)
    last_is_admitted, may_go_on = threading.Event(), threading.Event()

    def wait_at_the_last(what: str, items: Sequence[Item]) -> None:
        if what == "admit" and items[0].name == "c":
            last_is_admitted.set()
            assert may_go_on.wait(60), "the test let it wait"

    engine.fault = wait_at_the_last
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item(name)) for name in "abc"]
    draining = asyncio.create_task(stepper.drain())
    await asyncio.sleep(0)  # draining has begun
    with pytest.raises(Overloaded) as refused:
        submit(stepper, Item("late"))
    assert refused.value.code == "draining"
    engine.gate.set()
    assert await asyncio.to_thread(last_is_admitted.wait, 60)
    early = [await read(stream) for stream in (held, *streams[:2])]
    assert not draining.done()
    may_go_on.set()
    await draining

    assert [*early, await read(streams[2])] == [events_of(Item(name)) for name in ("held", *"abc")]
    assert bench.sample("rejected_total", reason="draining") == 1


async def test_closing_fails_what_waits_and_lets_those_that_run_end(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item(name)) for name in "ab"]
    closing = asyncio.create_task(stepper.close())
    outcomes = await asyncio.gather(*(outcome_of(stream) for stream in streams))  # while the compute thread is held
    with pytest.raises(Overloaded):
        submit(stepper, Item("late"))
    engine.gate.set()
    await closing

    assert [type(outcome) for outcome in outcomes] == [Overloaded, Overloaded]
    assert await read(held) == events_of(Item("held"))
    assert engine.admitted == [["held"]]
    assert bench.thread.waiting == ()


async def test_a_closed_stepper_leaves_the_thread_to_others(bench: Bench) -> None:
    first, second = bench.stepper(CountingEngine()), bench.stepper(CountingEngine())
    await first.close()

    assert await ask(second, Item("a")) == events_of(Item("a"))


# What is measured


async def test_the_gauges_show_what_waits_and_what_runs_in_all_steppers(bench: Bench) -> None:
    engine = CountingEngine(room=2)
    stepper, other = bench.stepper(engine), bench.stepper(CountingEngine())
    held = await hold(engine, stepper)
    streams = [submit(stepper, Item(name, size=size)) for name, size in (("a", 1), ("b", 2))]
    streams.append(submit(other, Item("c", size=5)))

    assert bench.sample("queue_depth") == 3
    assert bench.sample("queue_cost") == 8
    assert 0 < other.oldest_queued_s < bench.sample("oldest_queued_seconds")
    assert bench.sample("running_items") == 1
    engine.gate.set()
    await asyncio.gather(*(read(stream) for stream in (held, *streams)))
    await bench.next_turn()
    assert (bench.sample("queue_depth"), bench.sample("queue_cost"), bench.sample("running_items")) == (0, 0, 0)
    assert bench.sample("oldest_queued_seconds") == 0


async def test_the_stages_of_an_item_are_measured_when_it_has_ended(bench: Bench) -> None:
    stepper = bench.stepper(CountingEngine())
    await asyncio.gather(*(ask(stepper, Item(name)) for name in "ab"))

    for stage in ("queue", "infer"):
        assert bench.sample("stage_seconds_count", stage=stage) == 2
        assert bench.sample("stage_seconds_sum", stage=stage) > 0
