"""Places in flight and the budget of retries, without a network."""

import asyncio
import math
import time
from collections.abc import Callable

import pytest

from gateway.admission import Gate, RetryBudget
from gateway.routing.destinations import Destination
from services.core.errors import Overloaded
from services.core.fair_gate import Permit
from services.core.metrics import Metrics

EMBED = Destination("embed", "embed", ())
ANYONE = ("client:127.0.0.1", math.inf)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def gate(max_inflight: int, max_queued: int, clock: Callable[[], float] = time.monotonic) -> tuple[Gate, Metrics]:
    metrics = Metrics("gateway")
    gate = Gate(EMBED, max_inflight=max_inflight, max_queued=max_queued, burst_s=1.0, metrics=metrics, clock=clock)
    return gate, metrics


def gauges(metrics: Metrics) -> tuple[float | None, float | None]:
    """In flight, queued."""
    read = metrics.registry.get_sample_value
    labels = {"service": "embed"}
    return read("fovea_gateway_inflight_requests", labels), read("fovea_gateway_queued_requests", labels)


async def test_a_request_that_gives_up_waiting_frees_its_place_in_the_line() -> None:
    entrance, metrics = gate(1, 1)
    place = await entrance.enter(*ANYONE)
    waiting = asyncio.create_task(entrance.enter(*ANYONE))
    await asyncio.sleep(0)
    assert gauges(metrics) == (1, 1)
    with pytest.raises(Overloaded):
        await entrance.enter(*ANYONE)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert gauges(metrics) == (1, 0)
    following = asyncio.create_task(entrance.enter(*ANYONE))
    await asyncio.sleep(0)
    entrance.leave(place)
    await following
    assert gauges(metrics) == (1, 0)


async def test_a_request_whose_deadline_is_too_near_is_counted_apart_from_a_full_queue() -> None:
    entrance, metrics = gate(1, 1)
    held = await entrance.enter(*ANYONE)
    with pytest.raises(Overloaded) as refused:
        await entrance.enter(ANYONE[0], time.monotonic())
    assert refused.value.code == "deadline_too_near"
    counts = [
        metrics.registry.get_sample_value("fovea_rejected_total", {"reason": reason})
        for reason in ("deadline_too_near", "queue_full")
    ]
    assert counts == [1, 0]
    entrance.leave(held)


async def test_a_place_given_to_a_request_that_is_just_being_cancelled_goes_to_the_next() -> None:
    entrance, metrics = gate(1, 2)
    place = await entrance.enter(*ANYONE)
    first, second = (asyncio.create_task(entrance.enter(*ANYONE)) for _ in range(2))
    await asyncio.sleep(0)
    entrance.leave(place)
    first.cancel()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert gauges(metrics) == (1, 0)
    entrance.leave(await second)
    await entrance.enter(*ANYONE)
    assert gauges(metrics) == (1, 0)


async def test_a_gate_without_a_line_refuses_at_once_also_who_only_asks_whether_there_is_a_place() -> None:
    entrance, metrics = gate(1, 0)
    entrance.check(*ANYONE)
    place = await entrance.enter(*ANYONE)
    with pytest.raises(Overloaded, match="1 requests in flight"):
        await entrance.enter(*ANYONE)
    with pytest.raises(Overloaded, match="1 requests in flight"):
        entrance.check(*ANYONE)
    assert metrics.registry.get_sample_value("fovea_rejected_total", {"reason": "queue_full"}) == 2
    entrance.leave(place)
    assert gauges(metrics) == (0, 0)


async def test_a_gate_has_the_places_of_its_service_and_half_as_many_in_line_within_what_is_configured() -> None:
    clock = Clock()
    entrance, metrics = gate(100, 30, clock)
    for num_places, num_inflight, num_queued in ((40, 40, 20), (80, 80, 30), (200, 100, 30)):
        entrance.follow(num_places)
        taken = [asyncio.create_task(entrance.enter(*ANYONE)) for _ in range(num_inflight + 1)]
        await asyncio.sleep(0)
        clock.now += 1.0  # what comes now is no burst any more
        taken += [asyncio.create_task(entrance.enter(*ANYONE)) for _ in range(200)]
        await asyncio.sleep(0)
        assert gauges(metrics) == (num_inflight, num_queued)
        clock.now += 100.0
        await empty(entrance, taken)


async def test_a_gate_holds_back_all_that_it_may_of_a_burst() -> None:
    entrance, metrics = gate(100, 300, Clock())
    entrance.follow(40)
    taken = [asyncio.create_task(entrance.enter(*ANYONE)) for _ in range(400)]
    await asyncio.sleep(0)
    assert gauges(metrics) == (40, 300)
    await empty(entrance, taken)


async def test_a_gate_that_waits_for_its_service_holds_back_all_that_it_may() -> None:
    entrance, metrics = gate(8, 100)
    entrance.follow(8, is_patient=True)
    taken = [asyncio.create_task(entrance.enter(*ANYONE)) for _ in range(200)]
    await asyncio.sleep(0)
    assert gauges(metrics) == (8, 100)
    await empty(entrance, taken)


async def empty(entrance: Gate, taken: list[asyncio.Task[Permit]]) -> None:
    for task in taken:
        if not isinstance(outcome := (await asyncio.gather(task, return_exceptions=True))[0], BaseException):
            entrance.leave(outcome)


def test_retries_are_a_share_of_the_requests_after_what_was_saved_is_spent() -> None:
    budget = RetryBudget(ratio=0.25, floor_per_s=0.0, most_saved=3.0, clock=Clock())
    assert [budget.withdraw() for _ in range(4)] == [True, True, True, False]
    for _ in range(8):
        budget.deposit()
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]


def test_a_few_retries_a_second_are_always_allowed() -> None:
    clock = Clock()
    budget = RetryBudget(ratio=0.0, floor_per_s=2.0, most_saved=1.0, clock=clock)
    assert [budget.withdraw() for _ in range(2)] == [True, False]
    clock.now += 0.5
    assert [budget.withdraw() for _ in range(2)] == [True, False]
