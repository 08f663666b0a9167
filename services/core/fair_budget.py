"""A budget that requests share: what does not fit waits, and clients and their requests take turns."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.core.caller import Caller, current_caller


@dataclass(eq=False)
class _Waiter:
    amount: int
    caller: Caller
    granted: asyncio.Future[None]


# The waiters of one client, by request. Each request has a Caller of its own, which its waiters keep alive.
_Requests = OrderedDict[int, deque[_Waiter]]


class FairBudget:
    """Takes turns between clients, between a client's requests, and in a request's own order.

    An amount over `capacity` is let in alone. `max_waiting` is the amount of one client that may wait; `refusal` makes
    the error that is raised for more. Used on one event loop.
    """

    def __init__(self, capacity: int, *, max_waiting: int, refusal: Callable[[], Exception]) -> None:
        self.capacity = capacity
        self.taken = 0
        self._max_waiting = max_waiting
        self._refusal = refusal
        self._clients: OrderedDict[str, _Requests] = OrderedDict()

    @asynccontextmanager
    async def holding(self, amount: int) -> AsyncIterator[None]:
        """Hold an amount for the block: `take` on entering, `give_back` on leaving."""
        await self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    async def take(self, amount: int) -> None:
        """Wait until the amount is free and it is this request's turn. Raises the refusal where its client has too
        much waiting."""
        if not self._clients and self._fits(amount):
            self.taken += amount
            return
        caller = current_caller()
        requests = self._clients.get(caller.client)
        num_waiting = sum(one.amount for waiters in requests.values() for one in waiters) if requests else 0
        if num_waiting + amount > self._max_waiting:
            raise self._refusal()
        waiter = _Waiter(amount, caller, asyncio.get_running_loop().create_future())
        self._clients.setdefault(caller.client, OrderedDict()).setdefault(id(caller), deque()).append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.give_back(amount)
            else:
                self._leave(waiter)
            raise

    def give_back(self, amount: int) -> None:
        """Return what was taken, and let in the waiters whose turn it is."""
        self.taken -= amount
        self._let_in()

    def _let_in(self) -> None:
        # The next in turn is never passed over, or large amounts would never get their turn.
        while self._clients:
            client, requests = next(iter(self._clients.items()))
            key, waiters = next(iter(requests.items()))
            if not self._fits(waiters[0].amount):
                return
            waiter = waiters.popleft()
            self._clients.move_to_end(client)
            requests.move_to_end(key)
            self._forget_empty(client, key)
            if not waiter.granted.cancelled():
                self.taken += waiter.amount
                waiter.granted.set_result(None)

    def _leave(self, waiter: _Waiter) -> None:
        client, key = waiter.caller.client, id(waiter.caller)
        if client not in self._clients or key not in self._clients[client]:
            return
        waiters = self._clients[client][key]
        if waiter in waiters:
            waiters.remove(waiter)
            self._forget_empty(client, key)
            self._let_in()  # the others may have waited for this one

    def _forget_empty(self, client: str, key: int) -> None:
        requests = self._clients[client]
        if not requests[key]:
            del requests[key]
        if not requests:
            del self._clients[client]

    def _fits(self, amount: int) -> bool:
        return self.taken == 0 or self.taken + amount <= self.capacity
