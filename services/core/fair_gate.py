"""One gate for everything that requests share: they are let in up to a limit, in fair order, or wait, or are refused.

Concurrent requests, bytes of bodies, threads and pixels of decoding, and fetches from URLs pass a `FairGate`. The
queues of batches and of steps compute in an order of their own, and make room by the rule that permits of requests
follow too (`in_the_way`).
"""

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from services.core.exchange import Caller, current_caller

T = TypeVar("T")


def in_the_way(
    shares: Mapping[str, float],
    newcomer: tuple[str, float],
    newest: Callable[[str], Iterator[tuple[T, float]]],
    has_room: Callable[[float, int], bool],
) -> Sequence[T] | None:
    """Return the items that must leave a full queue for a newcomer (a client and the cost of its item).

    Always the newest item of the client with the largest total cost leaves first. `shares` are the clients' total
    costs, `newest` yields the items of a client that may leave, with their costs, and `has_room` tells whether there is
    room once that cost and that number of items have left. Returns None if a client would have to give way that has no
    more than the newcomer would have.
    """
    client, cost = newcomer
    left = dict(shares)
    own = left.get(client, 0) + cost
    waiting = {name: newest(name) for name in left}
    leaving: list[T] = []
    freed = 0.0
    while not has_room(freed, len(leaving)):
        largest = max(left, key=left.__getitem__, default=None)
        found = next(waiting[largest], None) if largest is not None and left[largest] > own else None
        if largest is None or found is None:
            return None
        leaving.append(found[0])
        left[largest] -= found[1]
        freed += found[1]
    return leaving


class Permit:
    """An amount that a request holds of what a gate lets in, or waits for; `held_since` is a reading of the clock.

    `within` are further counters that it takes part in, each with its limit.
    """

    __slots__ = ("amount", "arrival", "client", "granted", "held_since", "is_in_line", "request", "within")

    def __init__(
        self, client: str, request: Caller | None = None, amount: int = 1, within: Mapping[Hashable, int] | None = None
    ) -> None:
        self.client = client
        # A request has a Caller of its own, which is told from others by its identity.
        self.request = request
        self.amount = amount
        self.within: Mapping[Hashable, int] = within or {}
        self.held_since = math.inf
        self.is_in_line = False
        self.arrival = 0  # its number among all that have waited
        self.granted: asyncio.Future[None] | None = None  # once it waits


# The waiting permits of one client, by request.
_Requests = OrderedDict[int, deque[Permit]]


class FairGate:
    """Lets in amounts of up to `capacity` in sum; an amount over it is let in alone. Used on one event loop.

    What does not fit waits. Clients take turns, and so do a client's requests; one request's amounts stay in order. The
    next in turn is never passed over for lack of capacity, or large amounts would never be let in; it is passed over if
    it lacks room only in a counter of its own (`within`). `max_waiting_of_client` is the amount of one client that may
    wait; `refusal` makes the error that is raised for more.
    """

    def __init__(
        self,
        capacity: int,
        *,
        max_waiting_of_client: float = math.inf,
        refusal: Callable[[], Exception] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity = capacity
        self.taken = 0
        self.num_waiting = 0
        self._num_arrivals = 0
        self._max_waiting_of_client = max_waiting_of_client
        self._refusal = refusal
        self._clock = clock
        self._held: Counter[Hashable] = Counter()
        self._lines: OrderedDict[str, _Requests] = OrderedDict()

    @asynccontextmanager
    async def holding(self, amount: int = 1, within: Mapping[Hashable, int] | None = None) -> AsyncIterator[None]:
        """Hold an amount for the block: `take` on entering, `give_back` on leaving."""
        permit = await self.take(amount, within)
        try:
            yield
        finally:
            self.give_back(permit)

    async def take(self, amount: int = 1, within: Mapping[Hashable, int] | None = None) -> Permit:
        """Wait until the amount is free and it is this request's turn. Raises the refusal where its client has too
        much waiting."""
        caller = current_caller()
        permit = Permit(caller.client, caller, amount, within)
        if not self._lines and self._fits(amount) and self._has_room_within(permit):
            self._hold(permit)
            return permit
        self._stand_in_line(permit)
        self._let_in()
        if (
            permit.is_in_line
            and self._refusal is not None
            and self._amount_waiting(permit.client) > self._max_waiting_of_client
        ):
            self._leave_line(permit)
            raise self._refusal()
        await self._granted(permit)
        return permit

    def give_back(self, permit: Permit) -> None:
        """Return what was taken, and let in those whose turn it is."""
        self.taken -= permit.amount
        for key in (permit.client, *permit.within):
            self._held[key] -= permit.amount
            if not self._held[key]:
                del self._held[key]
        self._let_in()

    def has_others_waiting(self, client: str) -> bool:
        """Whether clients other than this one wait."""
        return len(self._lines) > (client in self._lines)

    def _num_waiting_of(self, client: str) -> int:
        return sum(map(len, self._lines[client].values())) if client in self._lines else 0

    def _amount_waiting(self, client: str) -> int:
        return sum(permit.amount for line in self._lines[client].values() for permit in line)

    def _precedence(self, client: str) -> tuple[int, ...]:
        """Return what orders waiting clients before their turns do."""
        return ()

    def _may_hold_more(self, client: str) -> bool:
        return True

    def _hold(self, permit: Permit) -> None:
        self.taken += permit.amount
        self._held[permit.client] += permit.amount
        for key in permit.within:
            self._held[key] += permit.amount
        permit.held_since = self._clock()

    def _fits(self, amount: int) -> bool:
        return self.taken == 0 or self.taken + amount <= self.capacity

    def _has_room_within(self, permit: Permit) -> bool:
        return all(self._held[key] + permit.amount <= limit for key, limit in permit.within.items())

    def _let_in(self) -> None:
        while (permit := self._next()) is not None:
            self._leave_line(permit)
            if permit.granted is None or not permit.granted.done():
                self._hold(permit)
                if permit.client in self._lines:
                    self._lines.move_to_end(permit.client)
                    if id(permit.request) in self._lines[permit.client]:
                        self._lines[permit.client].move_to_end(id(permit.request))
                if permit.granted is not None:
                    permit.granted.set_result(None)

    def _next(self) -> Permit | None:
        """Return the waiting permit that is let in now; None where the next in turn has no room."""
        for client in sorted(self._lines, key=self._precedence):
            if self._may_hold_more(client):
                for permit in (one for line in self._lines[client].values() for one in line):
                    if not self._fits(permit.amount):
                        return None
                    if self._has_room_within(permit):
                        return permit
        return None

    def _stand_in_line(self, permit: Permit) -> None:
        requests = self._lines.setdefault(permit.client, OrderedDict())
        requests.setdefault(id(permit.request), deque()).append(permit)
        self.num_waiting += 1
        permit.is_in_line = True
        permit.arrival = self._num_arrivals
        self._num_arrivals += 1

    def _leave_line(self, permit: Permit) -> None:
        requests = self._lines[permit.client]
        line = requests[id(permit.request)]
        line.remove(permit)
        self.num_waiting -= 1
        permit.is_in_line = False
        if not line:
            del requests[id(permit.request)]
        if not requests:
            del self._lines[permit.client]

    async def _granted(self, permit: Permit) -> None:
        """Return once a permit that stands in line is held. Raises what has been set as its refusal meanwhile."""
        if permit.held_since < math.inf:
            return
        permit.granted = asyncio.get_running_loop().create_future()
        try:
            await permit.granted
        except asyncio.CancelledError:
            if permit.held_since < math.inf:  # given in the same turn of the loop as the cancellation
                self.give_back(permit)
            elif permit.is_in_line:
                self._leave_line(permit)
                self._let_in()  # others may have waited for this one
            elif not permit.granted.cancelled():
                permit.granted.exception()  # looked at: the refusal reaches nobody
            raise
