"""Clients share a running batch: the one that was served least goes first, and none takes another's share."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
import structlog

from services.core.batching import step_queue
from services.core.batching.step_queue import Stream
from services.core.batching.stepper import StepLimits, Stepper
from services.core.errors import InternalError, Overloaded
from services.core.exchange import Caller, set_caller
from tests.core.batching.test_stepper import ROOMY, Bench, hold, outcome_of, read, submit
from tests.core.stepping_engines import Came, CountingEngine, Item, events_of

# Events that take an engine which only counts a good while.
NUM_LONG = 30_000
ONE_A_TURN = StepLimits(max_admit_cost=1, max_queue_cost=100_000, max_queue_size=10_000)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are given away at once: an engine that only counts has done much within half a second."""
    monkeypatch.setattr(step_queue, "SHORT_PATIENCE_S", 0.0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.thread.start()
    yield bench
    await bench.close()


def submit_as(client: str, stepper: Stepper[Item, str], *items: Item) -> list[Stream[str]]:
    context = contextvars.copy_context()
    context.run(set_caller, Caller(client))
    return [context.run(submit, stepper, item) for item in items]


def check_wait_as(client: str, stepper: Stepper[Item, str], deadline: float | None = None) -> None:
    context = contextvars.copy_context()
    context.run(set_caller, Caller(client))
    context.run(stepper.check_wait, deadline)


def items(name: str, count: int, *, num_events: int = 1, size: int = 1, num_pieces: int = 0) -> list[Item]:
    return [Item(f"{name}{number}", num_events, size, num_pieces) for number in range(count)]


def admitted(engine: CountingEngine) -> list[str]:
    return [name for names in engine.admitted for name in names]


def while_it_does(
    engine: CountingEngine, what: str, name: str, ask: Callable[[], list[Stream[str]]]
) -> list[Stream[str]]:
    """Return streams that are asked for while the engine first does `what` for the item `name`; filled by then."""
    loop, asked = asyncio.get_running_loop(), threading.Event()
    streams: list[Stream[str]] = []

    def ask_now() -> None:
        streams.extend(ask())
        asked.set()

    def fault(doing: str, items: Sequence[Item]) -> None:
        if doing == what and items[0].name == name and not asked.is_set():
            loop.call_soon_threadsafe(ask_now)
            assert asked.wait(60)

    engine.fault = fault
    return streams


async def all_of(streams: Sequence[Stream[str]]) -> list[list[str]]:
    return list(await asyncio.gather(*map(read, streams)))


# Whose turn it is


async def test_clients_take_turns_though_one_has_asked_for_more_and_before(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, ONE_A_TURN)
    held = await hold(engine, stepper)
    streams = [*submit_as("hog", stepper, *items("hog", 6)), *submit_as("late", stepper, *items("late", 2))]
    engine.gate.set()
    await all_of([held, *streams])
    assert admitted(engine) == ["held", "hog0", "late0", "hog1", "late1", "hog2", "hog3", "hog4", "hog5"]


async def test_what_is_charged_is_the_cost_and_not_the_number(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, ONE_A_TURN)
    held = await hold(engine, stepper)
    streams = [*submit_as("hog", stepper, *items("hog", 2, size=3)), *submit_as("late", stepper, *items("late", 5))]
    engine.gate.set()
    await all_of([held, *streams])
    assert admitted(engine) == ["held", "hog0", "late0", "late1", "late2", "hog1", "late3", "late4"]


async def test_steps_are_charged_as_well(bench: Bench) -> None:
    engine = CountingEngine(room=3)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, num_events=9)
    streams = [
        *submit_as("long", stepper, Item("long0", num_events=20), Item("long1"), Item("long2")),
        *submit_as("short", stepper, *items("short", 9)),
    ]
    engine.gate.set()
    await all_of([held, *streams])
    assert admitted(engine)[-2:] == ["long1", "long2"]


async def test_whoever_was_away_has_saved_nothing_up(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, ONE_A_TURN)
    held = await hold(engine, stepper)
    streams = submit_as("hog", stepper, *items("hog", 9))
    late = while_it_does(engine, "admit", "hog4", lambda: submit_as("late", stepper, *items("late", 4)))
    engine.gate.set()
    await all_of([held, *streams])
    await all_of(late)
    assert admitted(engine)[6:] == ["hog5", "late0", "hog6", "late1", "hog7", "late2", "hog8", "late3"]


async def test_what_has_no_room_holds_up_its_own_client_only(bench: Bench) -> None:
    engine = CountingEngine(room=4)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, size=3, num_events=6)
    streams = [
        *submit_as("large", stepper, Item("large", size=4), Item("after")),
        *submit_as("small", stepper, Item("small")),
    ]
    engine.gate.set()
    await all_of([held, *streams])
    names = admitted(engine)
    assert names.index("small") < names.index("large") < names.index("after")
    assert engine.pauses == []


async def test_what_is_prepared_is_prepared_for_clients_in_turn(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    hog = submit_as("hog", stepper, *items("hog", 4, num_pieces=2))
    late = while_it_does(engine, "prepare", "hog0", lambda: submit_as("late", stepper, *items("late", 1, num_pieces=2)))
    engine.gate.set()
    await read(held)
    answers = [*await all_of(hog), *await all_of(late)]
    assert answers == [events_of(item) for item in (*items("hog", 4), *items("late", 1))]
    order = list(dict.fromkeys(engine.prepared))
    assert len(engine.prepared) == 10, "a piece that was begun is not begun anew"
    assert order.index("late0") <= 2, "behind what was begun and one more of the other client's"


# Places


@pytest.mark.slow
async def test_the_latest_of_the_largest_share_gives_its_place_to_a_client_with_less(bench: Bench) -> None:
    engine = CountingEngine(room=4)
    stepper = bench.stepper(engine)
    long = items("hog", 4, num_events=NUM_LONG)
    hog = submit_as("hog", stepper, *long)
    for stream in hog:
        await anext(stream)
    (honest,) = submit_as("honest", stepper, Item("honest"))
    assert await read(honest) == events_of(Item("honest"))
    assert engine.pauses == ["hog3"]
    answers = await asyncio.gather(*(asyncio.wait_for(_values(stream), 60) for stream in hog))
    assert answers == [events_of(item)[1:] for item in long], "nothing is lost and nothing comes twice"
    assert bench.sample("preemptions_total") == 1


async def _values(stream: Stream[str]) -> list[str]:
    return [event.value async for event in stream]


async def test_items_of_one_client_never_take_each_others_places(bench: Bench) -> None:
    engine = CountingEngine(room=2)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = submit_as("one", stepper, *items("one", 9, num_events=5))
    engine.gate.set()
    await all_of([held, *streams])
    assert engine.pauses == []


async def test_places_do_not_go_to_and_fro_between_equals(bench: Bench) -> None:
    engine = CountingEngine(room=5)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper)
    streams = [stream for name in ("a", "b") for stream in submit_as(name, stepper, *items(name, 20, num_events=9))]
    engine.gate.set()
    await all_of([held, *streams])
    assert len(engine.pauses) <= 4


async def test_nobody_is_paused_where_that_makes_no_room(bench: Bench) -> None:
    engine = CountingEngine(room=4)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, num_events=50)
    hog = submit_as("hog", stepper, *items("hog", 3, num_events=9))
    large = submit_as("honest", stepper, Item("large", size=4))
    engine.gate.set()
    await all_of([held, *hog, *large])
    assert engine.pauses == []


async def test_a_client_without_a_place_gets_one_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_queue, "PATIENCE_S", 0.02)
    engine = CountingEngine(room=1)
    stepper = bench.stepper(engine)
    endless = Item("endless", num_events=1_000_000)
    (whole,) = submit_as("whole", stepper, endless)
    await anext(whole)
    (honest,) = submit_as("honest", stepper, Item("honest"))
    assert await asyncio.wait_for(read(honest), 60) == events_of(Item("honest"))
    assert engine.pauses[0] == "endless"
    await whole.aclose()


async def test_what_is_cancelled_while_it_is_paused_is_forgotten(bench: Bench) -> None:
    engine = CountingEngine(room=2)
    stepper = bench.stepper(engine)
    hog = submit_as("hog", stepper, *items("hog", 2, num_events=100_000))
    for stream in hog:
        await anext(stream)
    (honest,) = submit_as("honest", stepper, Item("honest", num_events=100_000))
    await anext(honest)
    assert [item.name for item in engine.paused] == ["hog1"]
    await hog[1].aclose()
    await bench.next_turn()
    assert engine.paused == {} and stepper.queue_depth == 0
    for stream in (hog[0], honest):
        await stream.aclose()


@pytest.mark.slow
async def test_closing_lets_what_is_paused_end(bench: Bench) -> None:
    engine = CountingEngine(room=2)
    stepper = bench.stepper(engine)
    hog = submit_as("hog", stepper, *items("hog", 2, num_events=NUM_LONG))
    for stream in hog:
        await anext(stream)
    (honest,) = submit_as("honest", stepper, Item("honest", num_events=NUM_LONG))
    await anext(honest)
    assert engine.pauses == ["hog1"]
    await stepper.close()
    answers = [await _values(stream) for stream in (*hog, honest)]
    assert [len(answer) for answer in answers] == [NUM_LONG - 1] * 3


# Room that is needed as events come


class GrowingEngine(CountingEngine):
    """An item takes one place of the room more with each event."""

    def taken(self, running: Sequence[Item]) -> int:
        return sum(item.size + self.running[item] for item in running)

    def has_room(self, items: Sequence[Item], without: Sequence[Item] = ()) -> bool:
        needed = sum(item.size + self.paused.get(item, 0) + 1 for item in items)
        return self.taken([item for item in self.running if item not in without]) + needed <= self.room

    def lacking_room(self) -> list[Item]:
        return list(self.running) if self.taken(list(self.running)) + len(self.running) > self.room else []


async def test_what_outgrows_its_room_is_taken_up_again_and_nothing_is_lost(bench: Bench) -> None:
    engine = GrowingEngine(room=30)
    stepper = bench.stepper(engine)
    asked = items("a", 12, num_events=20)
    answers = await all_of(submit_as("a", stepper, *asked))
    assert answers == [events_of(item) for item in asked]
    assert engine.pauses and "a0" not in engine.pauses, "whoever came first goes on"
    assert (engine.running, engine.paused, stepper.queue_depth) == ({}, {}, 0)


async def test_who_lacks_room_takes_it_from_the_largest_share(bench: Bench) -> None:
    engine = GrowingEngine(room=40)
    stepper = bench.stepper(engine)
    held = await hold(engine, stepper, num_events=1)
    hog, honest = items("hog", 4, num_events=20), items("honest", 1, num_events=20)
    streams = [*submit_as("hog", stepper, *hog), *submit_as("honest", stepper, *honest)]
    engine.gate.set()
    answers = await all_of([held, *streams])
    assert answers[1:] == [events_of(item) for item in (*hog, *honest)]
    assert engine.pauses[:3] == ["hog3", "hog2", "hog1"]


async def test_an_item_that_lacks_room_though_it_is_alone_fails_and_others_go_on(bench: Bench) -> None:
    engine = CountingEngine()
    engine.num_lacking = lambda running: sum(item.name == "huge" for item in running)
    stepper = bench.stepper(engine)
    with structlog.testing.capture_logs():
        outcome = await outcome_of(submit(stepper, Item("huge")))
    assert isinstance(outcome, InternalError)
    assert await read(submit(stepper, Item("a"))) == events_of(Item("a"))


# The bounds of the queue


@pytest.mark.parametrize(
    "limits",
    [
        StepLimits(max_admit_cost=1, max_queue_cost=8, max_queue_size=1000),
        StepLimits(max_admit_cost=1, max_queue_cost=1000, max_queue_size=8),
    ],
    ids=["cost", "size"],
)
async def test_in_a_full_queue_whoever_has_less_takes_the_place_of_whoever_has_most(
    bench: Bench, limits: StepLimits
) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, limits)
    held = await hold(engine, stepper)
    hog = submit_as("hog", stepper, *items("hog", 8))
    honest = submit_as("honest", stepper, *items("honest", 4))
    with pytest.raises(Overloaded):  # who has as much as anybody displaces nobody
        submit_as("honest", stepper, Item("honest4"))
    with pytest.raises(Overloaded):
        submit_as("hog", stepper, Item("hog8"))
    displaced = [await outcome_of(stream) for stream in hog[4:]]
    assert all(isinstance(one, Overloaded) and one.code == "queue_full" and one.retry_after_s for one in displaced)
    assert stepper.queue_depth == 8
    engine.gate.set()
    await all_of([held, *hog[:4], *honest])


async def test_nobody_is_displaced_for_an_item_that_is_refused_after_all(bench: Bench) -> None:
    engine = CountingEngine()
    stepper = bench.stepper(engine, StepLimits(max_admit_cost=1, max_queue_cost=8, max_queue_size=1000))
    held = await hold(engine, stepper)
    hog = submit_as("hog", stepper, *items("hog", 8))
    with pytest.raises(Overloaded):
        submit_as("honest", stepper, Item("large", size=5))
    engine.gate.set()
    await all_of([held, *hog])


async def measured(bench: Bench) -> tuple[CountingEngine, Stepper[Item, str]]:
    """A stepper that has learnt that it answers at most 500 items of cost 1 a second; none may wait for over 10 s."""
    engine = CountingEngine(room=1)
    engine.fault = lambda what, items: time.sleep(0.002) if what == "admit" else None
    stepper = bench.stepper(engine, replace(ROOMY, max_wait_s=10.0))
    await all_of(submit_as("hog", stepper, *items("measured", 20)))
    return engine, stepper


async def test_who_would_wait_too_long_is_refused_at_once_and_others_are_not(bench: Bench) -> None:
    engine, stepper = await measured(bench)
    check_wait_as("hog", stepper)
    held = await hold(engine, stepper)
    hog = submit_as("hog", stepper, *items("hog", 2000, size=10))
    with pytest.raises(Overloaded) as refused:
        check_wait_as("hog", stepper)
    assert refused.value.code == "queue_full" and refused.value.retry_after_s == 30
    check_wait_as("honest", stepper)
    for stream in hog:
        await stream.aclose()
    check_wait_as("hog", stepper)
    engine.gate.set()
    await read(held)


async def test_where_several_clients_come_a_turn_admits_no_more_than_takes_a_twentieth_of_a_second(
    bench: Bench,
) -> None:
    engine, stepper = await measured(bench)
    held = await hold(engine, stepper)
    engine.room = 1000
    hog = submit_as("hog", stepper, *items("hog", 100))
    honest = submit_as("honest", stepper, Item("honest", 1))
    engine.gate.set()
    await all_of([held, *hog, *honest])
    next_turn = engine.admitted[engine.admitted.index(["held"]) + 1]
    assert 1 < len(next_turn) <= 25
    assert "honest" in next_turn


class DeviceLikeEngine(CountingEngine):
    """Leaves the interpreter to other threads during each step, as a device does."""

    def step(self) -> Came:
        time.sleep(0.005)
        return super().step()


@pytest.mark.parametrize("limit", ["breadth", "room"])
async def test_a_client_with_nothing_running_does_not_wait_for_an_end_of_anothers(bench: Bench, limit: str) -> None:
    engine = DeviceLikeEngine(room=1000 if limit == "breadth" else 12)
    stepper = bench.stepper(engine)
    early = submit_as("early", stepper, Item("early"))
    hog = submit_as("hog", stepper, *items("hog", 40, num_events=400))
    await all_of(early)
    for stream in hog[:4]:
        await anext(stream)
    late = submit_as("late", stepper, Item("late"))
    await all_of(late)
    assert "hog39" not in admitted(engine)
    assert not engine.pauses
    for stream in hog:
        await stream.aclose()


async def test_a_client_that_is_alone_has_turns_as_full_as_they_may_be(bench: Bench) -> None:
    engine, stepper = await measured(bench)
    engine.room = 1000
    held = submit_as("hog", stepper, Item("held", 3))
    await all_of([*held, *submit_as("hog", stepper, *items("hog", 30, size=5))])
    assert max(map(len, engine.admitted)) > 5


async def test_the_first_few_are_never_refused_for_their_wait_but_for_their_deadline(bench: Bench) -> None:
    engine, stepper = await measured(bench)
    held = await hold(engine, stepper)
    few = submit_as("hog", stepper, *items("hog", 3, size=10_000))
    check_wait_as("hog", stepper)
    check_wait_as("hog", stepper, time.monotonic() + 10_000)
    with pytest.raises(Overloaded):
        check_wait_as("hog", stepper, time.monotonic() + 10)
    for stream in few:
        async with aclosing(stream):
            pass
    engine.gate.set()
    await read(held)
