import asyncio
from collections.abc import Iterator

import pytest

from services.core.errors import Overloaded
from services.core.exchange import Caller, set_caller
from services.core.fair_gate import FairGate, Permit, in_the_way


def gate_of(capacity: int, max_waiting: int = 1000) -> FairGate:
    return FairGate(capacity, max_waiting_of_client=max_waiting, refusal=lambda: Overloaded("full"))


class Crowd:
    """Requests that wait at a gate, and the order in which they are let in."""

    def __init__(self, gate: FairGate) -> None:
        self.gate = gate
        self.let_in: list[str] = []
        self.permits: list[Permit] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, caller: Caller, amount: int = 1) -> None:
        async def take() -> None:
            set_caller(caller)
            self.permits.append(await self.gate.take(amount))
            self.let_in.append(name)

        self.tasks[name] = asyncio.create_task(take())
        await settled()

    async def hold(self) -> None:
        self.permits.append(await self.gate.take())

    async def give_back(self) -> None:
        """The oldest permit is given back."""
        self.gate.give_back(self.permits.pop(0))
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_of_one_client_take_turns_whatever_each_asks_for() -> None:
    crowd = Crowd(gate_of(1))
    first, second = Caller("alice"), Caller("alice")
    await crowd.hold()
    for number in range(5):
        await crowd.ask(f"first {number}", first)
    await crowd.ask("second", second)
    for _ in range(3):
        await crowd.give_back()
    assert crowd.let_in == ["first 0", "second", "first 1"]
    for task in crowd.tasks.values():
        task.cancel()


async def test_clients_take_turns_however_many_requests_each_has() -> None:
    crowd = Crowd(gate_of(1))
    await crowd.hold()
    for number in range(5):
        await crowd.ask(f"alice {number}", Caller("alice"))
    await crowd.ask("bob", Caller("bob"))
    for _ in range(3):
        await crowd.give_back()
    assert crowd.let_in == ["alice 0", "bob", "alice 1"]
    for task in crowd.tasks.values():
        task.cancel()


async def test_what_is_over_the_capacity_is_let_in_alone_and_not_passed_by() -> None:
    crowd = Crowd(gate_of(4))
    await crowd.ask("small", Caller("alice"), 1)
    await crowd.ask("huge", Caller("alice"), 9)
    await crowd.ask("later", Caller("bob"), 1)
    assert crowd.let_in == ["small"]
    await crowd.give_back()
    assert crowd.let_in == ["small", "huge"]
    await crowd.give_back()
    assert crowd.let_in == ["small", "huge", "later"]


async def test_only_the_client_that_has_too_much_waiting_is_refused() -> None:
    crowd = Crowd(gate_of(1, max_waiting=2))
    await crowd.hold()
    for number in range(3):
        await crowd.ask(f"alice {number}", Caller("alice"))
    await crowd.ask("bob", Caller("bob"))
    with pytest.raises(Overloaded):
        await crowd.tasks["alice 2"]
    await crowd.give_back()
    await crowd.give_back()
    assert crowd.let_in == ["alice 0", "bob"]
    crowd.tasks["alice 1"].cancel()


@pytest.mark.parametrize("is_let_in", [False, True], ids=["while it waits", "as it is let in"])
async def test_who_is_cancelled_leaves_room_for_the_next(is_let_in: bool) -> None:
    crowd = Crowd(gate_of(1))
    await crowd.hold()
    await crowd.ask("cancelled", Caller("alice"))
    await crowd.ask("next", Caller("alice"))
    if is_let_in:
        crowd.gate.give_back(crowd.permits.pop(0))
    crowd.tasks["cancelled"].cancel()
    if not is_let_in:
        await crowd.give_back()
    await settled()
    assert crowd.let_in == ["next"]
    await crowd.give_back()
    assert crowd.gate.taken == 0


async def test_what_lacks_room_within_a_counter_of_its_own_lets_others_pass() -> None:
    gate = gate_of(4)
    slow = await gate.take(within={"slow host": 1})
    waiting = asyncio.create_task(gate.take(within={"slow host": 1}))
    await settled()
    other = await gate.take(within={"fast host": 1})
    assert (gate.taken, gate.num_waiting, waiting.done()) == (2, 1, False)
    gate.give_back(slow)
    await settled()
    assert waiting.done()
    for permit in (other, waiting.result()):
        gate.give_back(permit)
    assert (gate.taken, gate.num_waiting) == (0, 0)


@pytest.mark.parametrize(
    ("client", "cost", "leaving"),
    [("poor", 1, ["d"]), ("poor", 3, ["d", "c"]), ("rich", 1, None), ("new", 9, None)],
)
def test_who_has_the_most_makes_room_for_whoever_would_have_less(
    client: str, cost: int, leaving: list[str] | None
) -> None:
    rich = {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0}
    shares = {"rich": 8.0, "poor": 1.0}

    def newest(name: str) -> Iterator[tuple[str, float]]:
        return iter(reversed(rich.items())) if name == "rich" else iter([("p", 1.0)])

    found = in_the_way(shares, (client, cost), newest, lambda freed, _: 9 - freed + cost <= 9)
    assert (found if found is None else list(found)) == leaving
