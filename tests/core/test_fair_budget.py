import asyncio

import pytest

from services.core.caller import Caller, set_caller
from services.core.errors import Overloaded
from services.core.fair_budget import FairBudget


def budget_of(capacity: int, max_waiting: int = 1000) -> FairBudget:
    return FairBudget(capacity, max_waiting=max_waiting, refusal=lambda: Overloaded("full"))


class Crowd:
    """Requests that wait for a budget, and the order in which they are let in."""

    def __init__(self, budget: FairBudget) -> None:
        self.budget = budget
        self.let_in: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, caller: Caller, amount: int = 1) -> None:
        async def take() -> None:
            set_caller(caller)
            await self.budget.take(amount)
            self.let_in.append(name)

        self.tasks[name] = asyncio.create_task(take())
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_of_one_client_take_turns_whatever_each_asks_for() -> None:
    crowd = Crowd(budget_of(1))
    first, second = Caller("alice"), Caller("alice")
    await crowd.budget.take(1)
    for number in range(5):
        await crowd.ask(f"first {number}", first)
    await crowd.ask("second", second)
    for _ in range(3):
        crowd.budget.give_back(1)
        await settled()
    assert crowd.let_in == ["first 0", "second", "first 1"]
    for task in crowd.tasks.values():
        task.cancel()


async def test_clients_take_turns_however_many_requests_each_has() -> None:
    crowd = Crowd(budget_of(1))
    await crowd.budget.take(1)
    for number in range(5):
        await crowd.ask(f"alice {number}", Caller("alice"))
    await crowd.ask("bob", Caller("bob"))
    for _ in range(3):
        crowd.budget.give_back(1)
        await settled()
    assert crowd.let_in == ["alice 0", "bob", "alice 1"]
    for task in crowd.tasks.values():
        task.cancel()


async def test_what_is_over_the_budget_is_let_in_alone_and_not_passed_by() -> None:
    crowd = Crowd(budget_of(4))
    await crowd.ask("small", Caller("alice"), 1)
    await crowd.ask("huge", Caller("alice"), 9)
    await crowd.ask("later", Caller("bob"), 1)
    assert crowd.let_in == ["small"]
    crowd.budget.give_back(1)
    await settled()
    assert crowd.let_in == ["small", "huge"]
    crowd.budget.give_back(9)
    await settled()
    assert crowd.let_in == ["small", "huge", "later"]


async def test_only_the_client_that_has_too_much_waiting_is_refused() -> None:
    crowd = Crowd(budget_of(1, max_waiting=2))
    await crowd.budget.take(1)
    for number in range(3):
        await crowd.ask(f"alice {number}", Caller("alice"))
    await crowd.ask("bob", Caller("bob"))
    with pytest.raises(Overloaded):
        await crowd.tasks["alice 2"]
    crowd.budget.give_back(1)
    crowd.budget.give_back(1)
    await settled()
    assert crowd.let_in == ["alice 0", "bob"]
    crowd.tasks["alice 1"].cancel()


@pytest.mark.parametrize("is_let_in", [False, True], ids=["while it waits", "as it is let in"])
async def test_who_is_cancelled_leaves_room_for_the_next(is_let_in: bool) -> None:
    crowd = Crowd(budget_of(1))
    await crowd.budget.take(1)
    await crowd.ask("cancelled", Caller("alice"))
    await crowd.ask("next", Caller("alice"))
    if is_let_in:
        crowd.budget.give_back(1)
    crowd.tasks["cancelled"].cancel()
    if not is_let_in:
        crowd.budget.give_back(1)
    await settled()
    assert crowd.let_in == ["next"]
    crowd.budget.give_back(1)
    assert crowd.budget.taken == 0
