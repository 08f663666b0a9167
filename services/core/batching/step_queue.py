"""What waits for a place in a running batch, and the stream in which its events come back.

Of all that wait, the first item of the client with the fewest places goes first, of these the one that was served
least (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). With one
client that is the order of arrival.

A `Call` and its `Stream` belong to the event loop; `is_settled` is read on the compute thread too. A `Work` belongs
to whoever took it out of the queue, which any thread may use.
"""

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Self, TypeVar

from services.core.errors import DeadlineExceeded, FoveaError
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")

# Throughput is that of about the last half minute of computing.
THROUGHPUT_MEMORY_S = 30.0
# So long after several clients came, another one is expected.
SHARED_S = 1.0
# From so many clients on, those are forgotten who were served no more than others.
MAX_REMEMBERED_CLIENTS = 4096


class Event(NamedTuple, Generic[EventT]):
    """One event of an item; after one that `is_last` nothing comes.

    `queue_s` are the seconds that the item waited for its place, `elapsed_s` those from its submission until the
    event was computed.
    """

    value: EventT
    is_last: bool
    queue_s: float
    elapsed_s: float


class Call(Generic[EventT]):
    """One submit; times are readings of `time.monotonic()`, in seconds.

    `outbox` holds what came and was not yet taken: events, then the error that ended them, if one did. None wakes
    the reader of a stream that was closed.
    """

    __slots__ = ("deadline", "is_settled", "outbox", "queued_at", "work")

    def __init__(self, deadline: float | None) -> None:
        self.deadline = math.inf if deadline is None else deadline
        self.queued_at = time.monotonic()
        self.is_settled = False  # never turns back
        self.outbox: asyncio.Queue[Event[EventT] | FoveaError | None] = asyncio.Queue()
        # let go of when settled, so that whoever still holds the call keeps no prompt in memory
        self.work: Work[Any, EventT] | None = None


class Work(Generic[ItemT, EventT]):
    """An item on its way, for which its client is charged `cost`.

    `began_at` is when it was given its place, `runs_since` when it was last given one, `waits_since` when it last began
    to wait. `has_come` tells whether an event of it was given to the client, which then waits for the others.
    """

    __slots__ = ("began_at", "call", "client", "cost", "counted_steps", "has_come", "item", "runs_since", "waits_since")

    def __init__(self, item: ItemT, cost: int, call: Call[EventT], client: str = "") -> None:
        self.item = item
        self.cost = cost
        self.call = call
        self.client = client
        self.began_at = math.inf
        self.runs_since = math.inf
        self.waits_since = call.queued_at
        self.has_come = False
        self.counted_steps = 0  # the number of the last step that its client was charged for

    def is_wanted(self, now: float) -> bool:
        """Whether somebody still waits for it."""
        return self.call.deadline > now and not self.call.is_settled


class Stream(Generic[EventT]):
    """The events of one item, in order; ends after the last one, or raises what went wrong instead.

    Raises DeadlineExceeded, Overloaded where the service stopped first, InternalError, and the engine's FoveaErrors.
    Close it (`contextlib.aclosing`) when its reader goes: the item leaves the batch within one step.
    """

    def __init__(self, call: Call[EventT], withdraw: Callable[[Call[EventT]], None], metrics: Metrics) -> None:
        self._call = call
        self._withdraw = withdraw
        self._metrics = metrics
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event[EventT]:
        came = None if self._is_over else await self._call.outbox.get()
        if isinstance(came, Event):
            self._is_over = came.is_last
            return came
        self._is_over = True
        if came is None:
            raise StopAsyncIteration
        if isinstance(came, DeadlineExceeded):
            self._metrics.cancelled.labels("deadline").inc()
        raise came

    async def aclose(self) -> None:
        """Cancel the item if it has not ended; what came for it and was not taken is lost."""
        self._is_over = True
        self._withdraw(self._call)
        self._call.outbox.put_nowait(None)


class _Line(Generic[ItemT, EventT]):
    """What waits of one client, in order; `served` is what the client was charged since others waited, too."""

    __slots__ = ("cost", "served", "work")

    def __init__(self, served: float) -> None:
        # Work leaves at the front, comes back there, and leaves anywhere; all are cheap in this kind of dict only.
        self.work: OrderedDict[Work[ItemT, EventT], None] = OrderedDict()
        self.cost = 0
        self.served = served

    @property
    def first(self) -> Work[ItemT, EventT]:
        return next(iter(self.work))

    def waits_since(self) -> float:
        """Since when the oldest has waited. What has begun stands in front, and waits since it lost its place."""
        oldest = math.inf
        for work in self.work:
            oldest = min(oldest, work.waits_since)
            if not work.has_come:
                break
        return oldest


class StepQueue(Generic[ItemT, EventT]):
    """Work in fair order, and whether anybody is going to look at it; safe to use on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cost = 0
        self._size = 0
        self._lines: dict[str, _Line[ItemT, EventT]] = {}  # by client; none is empty
        self._served: dict[str, float] = {}  # of clients none of whose work waits just now
        self._has_looker = False
        self._newest_client = ""
        self._shared_until = -math.inf

    def __len__(self) -> int:
        return self._size

    @property
    def cost(self) -> int:
        """The sum of what waits."""
        return self._cost

    def is_shared(self, now: float) -> bool:
        """Whether several clients came of late."""
        return now < self._shared_until

    def cost_ahead(self, client: str) -> float:
        """What is served ahead of an item of average cost that this client adds now.

        Nothing, if it has less than its share of what waits even then: others wait for it.
        """
        with self._lock:
            own = self._lines[client].cost if client in self._lines else 0
            share = own + self._cost / max(1, self._size)
            if share < self._cost / max(1, len(self._lines)):
                return 0.0
            return own + sum(min(line.cost, share) for name, line in self._lines.items() if name != client)

    def waits_since(self) -> float:
        """Since when the oldest waits, a reading of `time.monotonic()`; infinity where nothing does."""
        with self._lock:
            return min((line.waits_since() for line in self._lines.values()), default=math.inf)

    def add(self, work: Work[ItemT, EventT]) -> bool:
        """Returns whether the caller has to see to it that somebody looks: until `leave`, only the first one has."""
        with self._lock:
            self._insert(work)
            if work.client != self._newest_client:
                if self._newest_client:
                    self._shared_until = work.call.queued_at + SHARED_S
                self._newest_client = work.client
            needs_looker, self._has_looker = not self._has_looker, True
        return needs_looker

    def leave(self, *, will_return: bool) -> bool:
        """Whoever looks has done so. Returns whether he must come back: as he wants to, or for what waits."""
        with self._lock:
            self._has_looker = will_return or bool(self._size)
            return self._has_looker

    def next(self, places: Mapping[str, int], without: Container[str] = ()) -> Work[ItemT, EventT] | None:
        """What is to be admitted next, where clients have so many places (none where they are not named).

        None where nothing waits but of the clients `without`.
        """
        with self._lock:
            waiting = (
                (places.get(client, 0), line.served, number, line)
                for number, (client, line) in enumerate(self._lines.items())
                if client not in without
            )
            first = min(waiting, default=None)
            return first[-1].first if first is not None else None

    def take(self, work: Work[ItemT, EventT]) -> bool:
        """Take one out to be admitted, which its client is charged for; False if it was not there (any more)."""
        with self._lock:
            if not self._remove(work):
                return False
            if not work.has_come:
                self._charge(work.client, work.cost)
            return True

    def put_back(self, work: Work[ItemT, EventT]) -> None:
        """To the front of its client's, who gets back what was charged for it if nothing of it has come."""
        with self._lock:
            self._insert(work)
            line = self._lines[work.client]
            line.work.move_to_end(work, last=False)
            if not work.has_come:
                line.served = max(0.0, line.served - work.cost)

    def served(self, client: str) -> float:
        """What a client was charged since others waited; infinity for one that has not waited since."""
        with self._lock:
            line = self._lines.get(client)
            return self._served.get(client, math.inf) if line is None else line.served

    def charge(self, client: str, cost: float) -> None:
        """Note that a client was served so much."""
        with self._lock:
            self._charge(client, cost)

    def discard(self, work: Work[ItemT, EventT]) -> bool:
        """Take one out; False if it was not there (any more)."""
        with self._lock:
            return self._remove(work)

    def clear(self) -> list[Work[ItemT, EventT]]:
        """Take out all of which nothing has come."""
        with self._lock:
            cleared = [work for line in self._lines.values() for work in line.work if not work.has_come]
            for work in cleared:
                self._remove(work)
        return cleared

    def in_the_way(self, client: str, cost: int, max_cost: int, max_size: int) -> list[Work[ItemT, EventT]] | None:
        """What must leave so that an item of this client has its place, the latest of the clients that have most.

        None where another would have to leave whose client has no more than this one would. What has begun stays.
        """
        with self._lock:
            costs = {name: line.cost for name, line in self._lines.items()}
            latest = {name: self._latest(line) for name, line in self._lines.items()}
            own, total, size = costs.get(client, 0) + cost, self._cost, self._size
            leaving: list[Work[ItemT, EventT]] = []
            while total and (total + cost > max_cost or size >= max_size):
                largest = max(costs, key=costs.__getitem__)
                work = next(latest[largest], None)
                if work is None or costs[largest] <= own:
                    return None
                leaving.append(work)
                costs[largest] -= work.cost
                total, size = total - work.cost, size - 1
            return leaving

    def _latest(self, line: _Line[ItemT, EventT]) -> Iterator[Work[ItemT, EventT]]:
        return (work for work in reversed(line.work) if not work.has_come)

    def _insert(self, work: Work[ItemT, EventT]) -> None:
        if work.client not in self._lines:
            least = min((line.served for line in self._lines.values()), default=None)
            if least is None:  # nobody competes: what anybody was served before counts no more
                self._served.clear()
                least = 0.0
            # whoever asked for nothing has saved nothing up
            self._lines[work.client] = _Line(max(least, self._served.pop(work.client, 0.0)))
        line = self._lines[work.client]
        line.work[work] = None
        line.cost += work.cost
        self._cost += work.cost
        self._size += 1

    def _remove(self, work: Work[ItemT, EventT]) -> bool:
        line = self._lines.get(work.client)
        if line is None or work not in line.work:
            return False
        del line.work[work]
        line.cost -= work.cost
        self._cost -= work.cost
        self._size -= 1
        if not line.work:
            del self._lines[work.client]
            self._served[work.client] = line.served
            self._forget_some()
        return True

    def _charge(self, client: str, cost: float) -> None:
        if client in self._lines:
            self._lines[client].served += cost
        elif client in self._served:
            self._served[client] += cost

    def _forget_some(self) -> None:
        """Clients who were served no more than those that wait begin with the least of these anyway."""
        if len(self._served) > MAX_REMEMBERED_CLIENTS:
            least = min((line.served for line in self._lines.values()), default=math.inf)
            self._served = {client: served for client, served in self._served.items() if served > least}


class Throughput:
    """Cost finished in a second of computing; `cost_per_s` is 0 before anything was."""

    def __init__(self) -> None:
        self.cost_per_s = 0.0
        self._cost = 0.0
        self._seconds = 0.0

    def note(self, cost: int, seconds: float) -> None:
        """This cost was finished in a turn of this length."""
        kept = math.exp(-seconds / THROUGHPUT_MEMORY_S)
        self._cost = kept * self._cost + cost
        self._seconds = kept * self._seconds + seconds
        self.cost_per_s = self._cost / self._seconds if self._seconds else 0.0
