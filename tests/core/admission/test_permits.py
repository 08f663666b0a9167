"""Requests that are admitted, wait and are refused, on a clock of the test's own."""

import asyncio
import math
import time
from collections import Counter

import pytest

from services.core.admission.permits import CALM_S, Permits
from services.core.errors import Overloaded
from services.core.fair_gate import Permit


class Door(Permits):
    """Permits on a clock that a test sets, and who took one in what order."""

    def __init__(self, limit: int, max_in_line: int, max_burst: int = 0) -> None:
        self.now = 0.0
        super().__init__(
            "The embed service",
            limit=limit,
            max_in_line=max_in_line,
            max_burst=max_burst,
            burst_s=1.0,
            clock=lambda: self.now,
        )
        self.order: list[str] = []
        self.refused: list[str] = []
        self._inside: list[Permit] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def come(self, *clients: str, deadline: float = math.inf) -> None:
        """A request of each client, one after the other; returns when all are in, wait or are refused."""
        for client in clients:
            task = asyncio.create_task(self._come(client, deadline))
            self._tasks.add(task)
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _come(self, client: str, deadline: float) -> None:
        try:
            permit = await self.enter(client, deadline)
        except Overloaded:
            self.refused.append(client)
        else:
            self.order.append(client)
            self._inside.append(permit)

    async def go(self, client: str) -> None:
        """The oldest request of the client that has a permit is answered."""
        permit = next(permit for permit in self._inside if permit.client == client)
        self._inside.remove(permit)
        self.leave(permit)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def held(self) -> Counter[str]:
        return Counter(permit.client for permit in self._inside)

    async def empty(self) -> None:
        """Every request is answered in turn."""
        while self._inside:
            await self.go(self._inside[0].client)


async def test_a_client_that_is_alone_takes_every_permit_and_is_served_in_the_order_of_its_requests() -> None:
    door = Door(limit=8, max_in_line=4)
    await door.come(*["one"] * 12)
    assert (door.taken, door.num_waiting) == (8, 4)
    await door.come("one")
    assert door.refused == ["one"]
    await door.empty()
    assert (door.taken, door.num_waiting) == (0, 0)


async def test_what_comes_within_a_second_after_a_line_has_formed_may_wait_though_the_line_is_long() -> None:
    door = Door(limit=4, max_in_line=2, max_burst=100)
    await door.come("one", "one", "one", "one")
    door.now = 10.0  # the line forms now
    await door.come(*["one"] * 50)
    door.now = 10.9
    await door.come(*["one"] * 60)
    assert (door.taken, door.num_waiting, len(door.refused)) == (4, 100, 10)


async def test_a_line_that_has_lasted_for_a_second_takes_no_more_before_it_is_short() -> None:
    door = Door(limit=4, max_in_line=2, max_burst=100)
    await door.come(*["one"] * 14)
    door.now = 1.0
    await door.come("one")
    assert (door.num_waiting, door.refused) == (10, ["one"])
    for _ in range(9):
        await door.go("one")
    await door.come("one", "one")
    assert (door.num_waiting, door.refused) == (2, ["one", "one"])
    await door.empty()
    door.now += CALM_S
    await door.come(*["one"] * 54)
    assert (door.num_waiting, door.refused) == (50, ["one", "one"])


async def test_a_line_that_was_empty_for_a_moment_of_an_overload_takes_no_burst() -> None:
    door = Door(limit=4, max_in_line=2, max_burst=100)
    await door.come(*["one"] * 14)
    door.now = 1.0
    await door.come("one")
    await door.empty()
    assert door.refused == ["one"]
    await door.come(*["one"] * 10)
    assert (door.taken, door.num_waiting) == (4, 2)


async def test_a_line_may_always_hold_what_is_answered_within_a_quarter_of_a_second() -> None:
    door = Door(limit=4, max_in_line=2, max_burst=100)
    await door.come(*["one"] * 4)
    door.now = 0.1
    await door.empty()  # 40 a second
    await door.come(*["one"] * 5)
    door.now = 2.0
    await door.come(*["one"] * 20)
    assert (door.num_waiting, len(door.refused)) == (10, 11)


async def test_a_request_whose_deadline_comes_too_near_in_the_line_leaves_it_and_may_be_sent_again() -> None:
    permits = Permits("The embed service", limit=1, max_in_line=1, max_burst=0, burst_s=1.0)
    permit = await permits.enter("one")
    with pytest.raises(Overloaded, match="did not start this request before its deadline") as refused:
        await permits.enter("one", deadline=time.monotonic() + 0.05)
    assert refused.value.code == "deadline_too_near"
    assert permits.num_waiting == 0
    permits.leave(permit)
    assert permits.taken == 0


async def test_a_free_permit_goes_to_the_waiting_client_that_holds_the_fewest() -> None:
    door = Door(limit=4, max_in_line=8)
    await door.come("hog", "hog", "hog", "hog", "hog", "hog", "late", "late", "later")
    assert door.order == ["hog"] * 4
    for _ in range(4):
        await door.go("hog")
    assert door.order[4:] == ["late", "later", "hog", "hog"]


async def test_a_newcomer_to_a_full_line_displaces_the_newest_request_of_the_client_with_the_largest_share() -> None:
    door = Door(limit=4, max_in_line=4)
    await door.come(*["hog"] * 8)
    await door.come("honest")
    assert door.refused == ["hog"]
    assert (door.taken, door.num_waiting) == (4, 4)
    await door.go("hog")
    assert door.order == ["hog"] * 4 + ["honest"]


async def test_the_client_with_the_largest_share_displaces_nobody() -> None:
    door = Door(limit=4, max_in_line=4)
    await door.come(*["hog"] * 6, "a", "b")
    await door.come("hog")
    assert door.refused == ["hog"]
    assert door.num_waiting == 4


async def test_a_client_that_holds_nothing_is_let_in_beyond_a_limit_that_another_fills() -> None:
    door = Door(limit=16, max_in_line=8)
    await door.come(*["hog"] * 24)
    await door.come("a", "b", "c")
    assert door.held() == {"hog": 16, "a": 1, "b": 1}  # an eighth of the permits
    await door.come("a")
    assert door.held()["a"] == 1


async def test_while_several_clients_come_none_holds_more_than_its_share() -> None:
    door = Door(limit=32, max_in_line=16)
    honest = [f"honest-{number}" for number in range(3)]
    for client in honest:
        await door.come(client)
        await door.go(client)
    await door.come(*["hog"] * 20)
    assert door.held() == {"hog": 8}
    await door.come(*honest)
    assert door.held() == {"hog": 8} | dict.fromkeys(honest, 1)


async def test_a_client_holds_an_eighth_of_the_permits_however_many_others_come() -> None:
    door = Door(limit=32, max_in_line=16)
    for number in range(100):
        await door.come(f"honest-{number}")
        await door.go(f"honest-{number}")
    await door.come(*["bulk"] * 10)
    assert door.held() == {"bulk": 4}


async def test_a_client_has_all_permits_again_once_the_others_have_gone() -> None:
    door = Door(limit=8, max_in_line=8)
    await door.come("honest")
    await door.go("honest")
    await door.come(*["hog"] * 10)
    assert door.held() == {"hog": 4}
    for _ in range(3):
        door.now += 1.1
        await door.come("hog")
        await door.go("hog")
    assert door.held()["hog"] == 8


async def test_a_request_that_would_wait_past_its_deadline_is_refused_on_arrival() -> None:
    door = Door(limit=2, max_in_line=10)
    await door.come("one", "one")
    door.now = 4.0
    await door.empty()
    await door.come("one", "one", "one", "one")  # each permit is held for 4 s: two are free every 4 s
    with pytest.raises(Overloaded, match="after its deadline") as refused:
        door.check("one", deadline=door.now + 3)
    assert refused.value.code == "deadline_too_near"
    with pytest.raises(Overloaded, match="after its deadline"):
        await door.enter("one", deadline=door.now + 3)
    door.check("one", deadline=door.now + 9)
    await door.come("other", deadline=door.now + 3)
    assert door.refused == ["other"]
    await door.empty()
    assert door.num_waiting == 0


async def test_a_refused_client_is_told_to_come_back_when_those_before_it_are_done() -> None:
    door = Door(limit=2, max_in_line=2)
    await door.come("one", "one")
    door.now = 4.0
    await door.empty()
    await door.come("one", "one", "one", "one")
    with pytest.raises(Overloaded) as refused:
        await door.enter("one")
    assert refused.value.code == "queue_full"
    assert refused.value.retry_after_s == 4 * 4.0 / 2
    assert refused.value.message == (
        "The embed service has 2 requests in flight and 2 waiting, which is its current limit."
    )


async def test_more_permits_are_given_to_those_that_wait_and_fewer_are_taken_from_nobody() -> None:
    door = Door(limit=2, max_in_line=10)
    await door.come(*["one"] * 8)
    door.resize(6, 3)
    await asyncio.sleep(0)
    assert (door.taken, door.num_waiting) == (6, 2)
    door.resize(2, 1)
    assert (door.taken, door.num_waiting) == (6, 2)
    for _ in range(5):
        await door.go("one")
    assert (door.taken, door.num_waiting) == (2, 1)


async def test_requests_that_give_up_waiting_leave_the_line() -> None:
    door = Door(limit=1, max_in_line=2)
    await door.come("one")
    waiting = asyncio.create_task(door.enter("one"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert door.num_waiting == 0
    await door.come("one")
    await door.go("one")
    assert (door.taken, door.num_waiting) == (1, 0)


async def test_a_request_that_gives_up_as_a_permit_becomes_free_leaves_it_to_the_next() -> None:
    door = Door(limit=1, max_in_line=2)
    await door.come("one")
    waiting = asyncio.create_task(door.enter("one"))
    await asyncio.sleep(0)
    await door.come("one")
    waiting.cancel()  # noticed by the one who waits only after the permit is free
    await door.go("one")
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert (door.taken, door.num_waiting) == (1, 0)
    assert door.held() == {"one": 1}
