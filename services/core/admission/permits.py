"""A bounded number of concurrent requests, and behind them a short queue that is fair to clients.

A free permit goes to the waiting client that holds the fewest (max-min fairness of permits). A client that is alone may
take all; while there are others, none holds more than its share, since every wait grows with what is in flight.
Shares are counted in permits rather than in requests: a permit is held as long as its request takes, so an expensive
request counts for what it costs.

The queue is short, because under steady overload a longer one makes all requests wait and raises no throughput;
requests that will have their permit within `LINE_S` may always wait. Bursts are different: they drain. So
requests that arrive just after a queue has formed may wait however long it becomes, up to a bound of its own; then the
queue must become short again before it takes more, and some time must pass without a refusal before the next burst.
K. Nichols and V. Jacobson, Controlling Queue Delay, ACM Queue 10:5, 2012 (good queues and bad queues).
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from services.core.errors import Overloaded
from services.core.fair_gate import FairGate, Permit, in_the_way

if TYPE_CHECKING:
    from prometheus_client import Counter

# A client that holds nothing is let in beyond the limit, by up to one extra permit per this number: it need not
# wait for another client's long answers to end.
GUEST_SHARE = 8
# A client may always hold one permit in this many, however many other clients there are.
LEAST_SHARE = 8
# Seconds after a refusal for want of room until requests may count as a burst again.
CALM_S = 5.0
# The queue may always hold what gets its permit within this time, in seconds.
LINE_S = 0.25
# Clients that came within about this time share the permits.
SHARED_S = 1.0
# Weight of the newest request in the mean time for which a permit is held.
HOLD_SMOOTHING = 1 / 32
# The time that a request is assumed to need once it has its permit: a share of what others take, for it may be a short
# one among long ones, and between these bounds in seconds.
NEEDED_SHARE = 0.5
LEAST_NEED_S = 0.02
MOST_NEED_S = 1.0
# Seconds that a refused client is told to wait before anything was measured.
FIRST_HOLD_S = 1.0


class Permits(FairGate):
    """At most `limit` requests hold a permit and at most `max_in_line` wait for one; `resize` changes both.

    In a burst, the `burst_s` seconds after a queue has formed, `max_burst` may wait. A full queue refuses the newest
    request of the client with the largest share: the one that arrives, or a waiting one of a client that has more.
    `name` says in refusals what is overloaded.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int,
        max_in_line: int,
        max_burst: int,
        burst_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(limit, clock=clock)
        self.name = name
        self._max_in_line = max_in_line
        self._max_burst = max_burst
        self._burst_s = burst_s
        self.refusals: Counter | None = None  # counts refusals by their reason, where it is set
        self._burst_ends = -math.inf
        self._refused_at = -math.inf
        self._mean_hold_s = 0.0
        self._clients: set[str] = set()  # that came in this period, and how many did in the one before
        self._num_before = 0
        self._period_ends = clock() + SHARED_S

    @property
    def drain_s(self) -> float:
        """Seconds until all requests that hold a permit or wait for one are done, at this rate (Little's law)."""
        return (self.taken + self.num_waiting) * (self._mean_hold_s or FIRST_HOLD_S) / self.capacity

    def resize(self, limit: int, max_in_line: int) -> None:
        """Change both limits; requests that hold a permit or wait for one already are not turned away."""
        self.capacity = limit
        self._max_in_line = max_in_line
        self._let_in()

    def check(self, client: str, deadline: float = math.inf) -> None:
        """Raises Overloaded where `enter` would refuse; takes no permit."""
        if not self._has_permit_for(client):
            self._check_deadline(client, deadline)
            if self._displaced_by(client) is None:
                raise self._full()

    async def enter(self, client: str, deadline: float = math.inf) -> Permit:
        """Take a permit, waiting for one if need be.

        Raises Overloaded at once where the queue is full or would leave too little time until `deadline` (a reading
        of the clock), and later where the request had to leave the queue: for another client's, or because too little
        time was left.
        """
        self._note(client)
        permit = Permit(client)
        if self._has_permit_for(client):
            self._hold(permit)
            return permit
        self._check_deadline(client, deadline)
        if (displaced := self._displaced_by(client)) is None:
            raise self._full()
        for one in displaced:
            self._leave_line(one)
            if one.granted is not None and not one.granted.done():
                one.granted.set_exception(self._full())
        self._stand_in_line(permit)
        patience_s = None if math.isinf(deadline) else deadline - self._clock() - self._needed_s()
        try:
            async with asyncio.timeout(patience_s):
                await self._granted(permit)
        except TimeoutError:
            raise self._too_late(f"{self.name} did not start this request before its deadline.") from None
        return permit

    def leave(self, permit: Permit) -> None:
        """Give the permit back, for the request that is next."""
        held_s = self._clock() - permit.held_since
        weight = HOLD_SMOOTHING if self._mean_hold_s else 1.0
        self._mean_hold_s += weight * (held_s - self._mean_hold_s)
        self.give_back(permit)

    def _precedence(self, client: str) -> tuple[int, ...]:
        """Order clients by the fewest permits held, then by the longest wait."""
        (line,) = self._lines[client].values()
        return self._held[client], line[0].arrival

    def _may_hold_more(self, client: str) -> bool:
        num_clients = max(len(self._clients), self._num_before, 1)
        return self._held[client] < max(1, self.capacity // LEAST_SHARE, math.ceil(self.capacity / num_clients))

    def _fits(self, amount: int) -> bool:
        return self.taken < self.capacity

    def _has_permit_for(self, client: str) -> bool:
        if client in self._lines:
            return False
        if self._fits(1):
            return self._may_hold_more(client)  # every waiting client holds as many
        return not self._held[client] and self.taken < self.capacity + self.capacity // GUEST_SHARE

    def _note(self, client: str) -> None:
        if (now := self._clock()) >= self._period_ends:
            self._num_before = len(self._clients) if now < self._period_ends + SHARED_S else 0
            self._clients.clear()
            self._period_ends = now + SHARED_S
        self._clients.add(client)

    def _most_in_line(self) -> int:
        now = self._clock()
        if not self.num_waiting:
            self._burst_ends = now + self._burst_s if now >= self._refused_at + CALM_S else -math.inf
        longest = max(self._max_in_line, self._max_burst)
        if now >= self._burst_ends:
            within_line_s = LINE_S * self.capacity / self._mean_hold_s if self._mean_hold_s else 0
            longest = min(longest, max(self._max_in_line, int(within_line_s)))
        return longest

    def _displaced_by(self, client: str) -> Sequence[Permit] | None:
        """Return the permit that leaves the line for one of this client, if it is full; None where none may."""
        most = self._most_in_line()
        if self.num_waiting < most:
            return ()
        shares = {name: self._held[name] + self._num_waiting_of(name) for name in self._lines}
        own = (client, 1 if client in shares else self._held[client] + 1)
        return in_the_way(shares, own, self._newest, lambda _, num_left: bool(num_left))

    def _newest(self, client: str) -> Iterator[tuple[Permit, float]]:
        return ((permit, 1) for line in reversed(self._lines[client].values()) for permit in reversed(line))

    def _check_deadline(self, client: str, deadline: float) -> None:
        """Raises Overloaded where the expected wait leaves too little time.

        A request waits for those of its own client, and for as many of each other client that waits.
        """
        own = self._num_waiting_of(client)
        num_ahead = min(self.num_waiting, own + (own + 1) * len(self._lines))
        expected_s = (num_ahead + 1) * self._mean_hold_s / self.capacity
        if self._clock() + expected_s + self._needed_s() > deadline:
            raise self._too_late(
                f"{self.name} would start this request in about {expected_s:.1f} s, after its deadline."
            )

    def _needed_s(self) -> float:
        return min(max(LEAST_NEED_S, NEEDED_SHARE * self._mean_hold_s), MOST_NEED_S)

    def _too_late(self, message: str) -> Overloaded:
        return self._refuse(message, "deadline_too_near")

    def _full(self) -> Overloaded:
        self._refused_at = self._clock()
        held = f"{self.taken} requests in flight and {self.num_waiting} waiting"
        return self._refuse(f"{self.name} has {held}, which is its current limit.", "queue_full")

    def _refuse(self, message: str, code: str) -> Overloaded:
        if self.refusals is not None:
            self.refusals.labels(code).inc()
        return Overloaded(message, code=code, retry_after_s=self.drain_s)
