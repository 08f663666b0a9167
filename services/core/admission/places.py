"""A bounded number of concurrent requests, and behind them a short queue that is fair to clients.

A free place goes to the waiting client that holds the fewest (max-min fairness of places). A client that is alone may
take all; while there are others, none holds more than its share, since every wait grows with what is in flight.
Shares are counted in places rather than in requests: a place is held as long as its request takes, so an expensive
request counts for what it costs.

The queue is short, because under steady overload a longer one makes all requests wait and raises no throughput;
requests that will have their place within `LINE_S` may always wait. Bursts are different: they drain. So
requests that arrive just after a queue has formed may wait however long it becomes, up to a bound of its own; then the
queue must become short again before it takes more, and some time must pass without a refusal before the next burst.
K. Nichols and V. Jacobson, Controlling Queue Delay, ACM Queue 10:5, 2012 (good queues and bad queues).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

from services.core.errors import Overloaded

# A client that holds nothing is let in beyond the limit, by up to one extra place per this number: it need not
# wait for another client's long answers to end.
GUEST_SHARE = 8
# A client may always hold one place in this many, however many other clients there are.
LEAST_SHARE = 8
# Seconds after a refusal for want of room until requests may count as a burst again.
CALM_S = 5.0
# The queue may always hold what gets its place within this time, in seconds.
LINE_S = 0.25
# Clients that came within about this time share the places.
SHARED_S = 1.0
# Weight of the newest request in the mean time for which a place is held.
HOLD_SMOOTHING = 1 / 32
# The time that a request is assumed to need once it has its place: a share of what others take, for it may be a short
# one among long ones, and between these bounds in seconds.
NEEDED_SHARE = 0.5
LEAST_NEED_S = 0.02
MOST_NEED_S = 1.0
# Seconds that a refused client is told to wait before anything was measured.
FIRST_HOLD_S = 1.0


class Place:
    """A request's place, from `enter` to `leave`; `taken_at` is a reading of the clock."""

    __slots__ = ("client", "taken_at")

    def __init__(self, client: str, taken_at: float) -> None:
        self.client = client
        self.taken_at = taken_at


class _Waiter:
    __slots__ = ("arrival", "place")

    def __init__(self, arrival: int, place: asyncio.Future[Place]) -> None:
        self.arrival = arrival
        self.place = place


class Places:
    """At most `limit` requests hold a place and at most `max_waiting` wait for one; `resize` changes both.

    In a burst, the `burst_s` seconds after a queue has formed, `max_burst` may wait. A full queue refuses the newest
    request of the client with the largest share: the one that arrives, or a waiting one of a client that has more.
    `name` says in refusals what is overloaded.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int,
        max_waiting: int,
        max_burst: int,
        burst_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.limit = limit
        self._max_waiting = max_waiting
        self._max_burst = max_burst
        self._burst_s = burst_s
        self._burst_ends = -math.inf
        self._refused_at = -math.inf
        self.num_held = 0
        self.num_waiting = 0
        self._clock = clock
        self._mean_hold_s = 0.0
        self._held: dict[str, int] = {}
        self._lines: dict[str, deque[_Waiter]] = {}
        self._num_arrivals = 0
        self._clients: set[str] = set()  # that came in this period, and how many did in the one before
        self._num_before = 0
        self._period_ends = clock() + SHARED_S

    @property
    def drain_s(self) -> float:
        """Seconds until all requests that hold a place or wait for one are done, at the present rate (Little's law)."""
        return (self.num_held + self.num_waiting) * (self._mean_hold_s or FIRST_HOLD_S) / self.limit

    def resize(self, limit: int, max_waiting: int) -> None:
        """Change both limits; requests that hold a place or wait for one already are not turned away."""
        self.limit = limit
        self._max_waiting = max_waiting
        self._pass_on()

    def check(self, client: str, deadline: float = math.inf) -> None:
        """Raises Overloaded where `enter` would refuse; takes no place."""
        if not self._has_place_for(client):
            self._check_deadline(client, deadline)
            if self._is_line_full() and self._client_over(self._share(client) + 1) is None:
                raise self._full()

    async def enter(self, client: str, deadline: float = math.inf) -> Place:
        """Take a place, waiting for one if need be.

        Raises Overloaded at once where the queue is full or would leave too little time until `deadline` (a reading
        of the clock), and later where the request had to leave the queue: for another client's, or because too little
        time was left.
        """
        self._note(client)
        if self._has_place_for(client):
            return self._take(client)
        self.check(client, deadline)
        if self._is_line_full():
            self._displace(client)
        return await self._wait(client, deadline)

    def leave(self, place: Place) -> None:
        """Give the place back, for the request that is next."""
        held_s = self._clock() - place.taken_at
        weight = HOLD_SMOOTHING if self._mean_hold_s else 1.0
        self._mean_hold_s += weight * (held_s - self._mean_hold_s)
        self._release(place)

    def _release(self, place: Place) -> None:
        self.num_held -= 1
        held = self._held[place.client] - 1
        if held:
            self._held[place.client] = held
        else:
            del self._held[place.client]
        self._pass_on()

    def _has_place_for(self, client: str) -> bool:
        if client in self._lines:
            return False
        held = self._held.get(client, 0)
        if self.num_held < self.limit:
            return held < self._most_for_one()  # every waiting client holds as many
        return not held and self.num_held < self.limit + self.limit // GUEST_SHARE

    def _most_for_one(self) -> int:
        num_clients = max(len(self._clients), self._num_before, 1)
        return max(1, self.limit // LEAST_SHARE, math.ceil(self.limit / num_clients))

    def _note(self, client: str) -> None:
        if (now := self._clock()) >= self._period_ends:
            self._num_before = len(self._clients) if now < self._period_ends + SHARED_S else 0
            self._clients.clear()
            self._period_ends = now + SHARED_S
        self._clients.add(client)

    def _take(self, client: str) -> Place:
        self.num_held += 1
        self._held[client] = self._held.get(client, 0) + 1
        return Place(client, self._clock())

    def _is_line_full(self) -> bool:
        now = self._clock()
        if not self.num_waiting:
            self._burst_ends = now + self._burst_s if now >= self._refused_at + CALM_S else -math.inf
        longest = max(self._max_waiting, self._max_burst)
        if now >= self._burst_ends:
            within_line_s = LINE_S * self.limit / self._mean_hold_s if self._mean_hold_s else 0
            longest = min(longest, max(self._max_waiting, int(within_line_s)))
        return self.num_waiting >= longest

    async def _wait(self, client: str, deadline: float) -> Place:
        patience_s = None if math.isinf(deadline) else deadline - self._clock() - self._needed_s()
        try:
            async with asyncio.timeout(patience_s):
                return await self._stand_in_line(client)
        except TimeoutError:
            raise self._too_late(f"{self.name} did not start this request before its deadline.") from None

    async def _stand_in_line(self, client: str) -> Place:
        waiter = _Waiter(self._num_arrivals, asyncio.get_running_loop().create_future())
        self._num_arrivals += 1
        self._lines.setdefault(client, deque()).append(waiter)
        self.num_waiting += 1
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if waiter.place.cancelled():
                if waiter in self._lines.get(client, ()):
                    self._remove(client, waiter)
            elif waiter.place.exception() is None:
                # The place was given in the same turn of the loop as the cancellation.
                self._release(waiter.place.result())
            raise

    def _remove(self, client: str, waiter: _Waiter) -> None:
        line = self._lines[client]
        line.remove(waiter)
        self.num_waiting -= 1
        if not line:
            del self._lines[client]

    def _pass_on(self) -> None:
        while self._lines and self.num_held < self.limit:
            client = min(self._lines, key=self._precedence)
            if self._held.get(client, 0) >= self._most_for_one():
                return
            waiter = self._lines[client][0]
            self._remove(client, waiter)
            if not waiter.place.done():
                waiter.place.set_result(self._take(client))

    def _precedence(self, client: str) -> tuple[int, int]:
        """Order clients by the fewest places held, then by the longest wait."""
        return self._held.get(client, 0), self._lines[client][0].arrival

    def _share(self, client: str) -> int:
        return self._held.get(client, 0) + len(self._lines.get(client, ()))

    def _client_over(self, share: int) -> str | None:
        """Return the waiting client with the largest share, if that is more than `share`."""
        largest = max(self._lines, key=self._share, default=None)
        return largest if largest is not None and self._share(largest) > share else None

    def _displace(self, client: str) -> None:
        largest = self._client_over(self._share(client) + 1)
        assert largest is not None, "the line was checked"
        waiter = self._lines[largest][-1]
        self._remove(largest, waiter)
        if not waiter.place.done():
            waiter.place.set_exception(self._full())

    def _check_deadline(self, client: str, deadline: float) -> None:
        """Raises Overloaded where the expected wait leaves too little time.

        A request waits for those of its own client, and for as many of each other client that waits.
        """
        own = len(self._lines.get(client, ()))
        num_ahead = min(self.num_waiting, own + (own + 1) * len(self._lines))
        expected_s = (num_ahead + 1) * self._mean_hold_s / self.limit
        if self._clock() + expected_s + self._needed_s() > deadline:
            raise self._too_late(
                f"{self.name} would start this request in about {expected_s:.1f} s, after its deadline."
            )

    def _needed_s(self) -> float:
        return min(max(LEAST_NEED_S, NEEDED_SHARE * self._mean_hold_s), MOST_NEED_S)

    def _too_late(self, message: str) -> Overloaded:
        return Overloaded(message, code="deadline_too_near", retry_after_s=self.drain_s)

    def _full(self) -> Overloaded:
        self._refused_at = self._clock()
        return Overloaded(
            f"{self.name} has {self.num_held} requests in flight and {self.num_waiting} waiting, which is its current "
            "limit.",
            code="queue_full",
            retry_after_s=self.drain_s,
        )
