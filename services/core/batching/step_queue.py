"""The queue of items that wait to join a running batch, and the streams that return the items' events.

The next item is of the client with the fewest running items, among equals of the client that was served least (the
virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). With one client that is
the order of arrival.

A `Call` and its `Stream` belong to the event loop; `is_settled` is read on the compute thread too. A `Work` belongs
to the thread that took it out of the queue, which any thread may use.
"""

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

from services.core.errors import DeadlineExceeded, FoveaError
from services.core.fair_gate import in_the_way
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")

# Throughput is that of about the last half minute of computing.
THROUGHPUT_MEMORY_S = 30.0
# Seconds for which another client is expected after several have been active.
SHARED_S = 30.0
# From this number of clients on, those that were served no more than others are forgotten.
MAX_REMEMBERED_CLIENTS = 4096
# Seconds after which an item of a client that has more is paused for a waiting client: mostly one ends sooner, and a
# paused item has to be computed again.
SHORT_PATIENCE_S = 0.5
# Seconds after which a client without a running item gets in for an item that has run for as long.
PATIENCE_S = 2.0


class Event(NamedTuple, Generic[EventT]):
    """One event of an item; the one that `is_last` ends its stream.

    `queue_s` are the seconds that the item waited to join the batch, `elapsed_s` those from its submission until the
    event was computed.
    """

    value: EventT
    is_last: bool
    queue_s: float
    elapsed_s: float


class Call(Generic[EventT]):
    """One submitted item's request; times are readings of `time.monotonic()`, in seconds.

    `outbox` holds what its reader has not taken yet: events, then the error that ended them, if one did. None wakes
    the reader of a stream that was closed.
    """

    __slots__ = ("deadline", "is_settled", "outbox", "queued_at", "timer", "work")

    def __init__(self, deadline: float | None) -> None:
        self.deadline = math.inf if deadline is None else deadline
        self.queued_at = time.monotonic()
        self.is_settled = False  # never becomes false again
        self.timer: asyncio.TimerHandle | None = None  # of the deadline
        self.outbox: asyncio.Queue[Event[EventT] | FoveaError | None] = asyncio.Queue()
        self.work: Work[Any, EventT] | None = None  # until it is settled

    def fail(self, error: FoveaError) -> None:
        self.outbox.put_nowait(error)

    def forget(self) -> None:
        self.work = None


class Work(Generic[ItemT, EventT]):
    """A submitted item, for which its client is charged `cost`.

    `began_at` is when it first joined the batch, `runs_since` when it last did, `waits_since` when it last began to
    wait. `has_come` tells whether it has delivered an event, after which its client waits for the others. `is_begun`
    tells of a running item whether anything was computed since it last joined.
    """

    __slots__ = (
        *("began_at", "call", "client", "cost", "counted_steps", "has_come"),
        *("is_begun", "item", "runs_since", "waits_since"),
    )

    def __init__(self, item: ItemT, cost: int, call: Call[EventT], client: str = "") -> None:
        self.item = item
        self.cost = cost
        self.call = call
        self.client = client
        self.began_at = math.inf
        self.runs_since = math.inf
        self.waits_since = call.queued_at
        self.has_come = False
        self.is_begun = False
        self.counted_steps = 0  # the number of the last step that its client was charged for

    def is_wanted(self, now: float) -> bool:
        """Whether its client still waits for it."""
        return self.call.deadline > now and not self.call.is_settled


AnyWork = Work[Any, Any]


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
        """Cancel the item if it has not ended; events that were not taken are lost."""
        self._is_over = True
        self._withdraw(self._call)
        self._call.outbox.put_nowait(None)


class _Line(Generic[ItemT, EventT]):
    """One client's waiting items, in order; `served` is what it was charged since other clients waited, too."""

    __slots__ = ("cost", "served", "work")

    def __init__(self, served: float) -> None:
        # Work leaves at the front, returns there, and is removed anywhere; only this dict makes all of it cheap.
        self.work: OrderedDict[Work[ItemT, EventT], None] = OrderedDict()
        self.cost = 0
        self.served = served

    @property
    def first(self) -> Work[ItemT, EventT]:
        return next(iter(self.work))

    def waits_since(self) -> float:
        """Return when the oldest began to wait; items in front that have begun wait since they were paused."""
        oldest = math.inf
        for work in self.work:
            oldest = min(oldest, work.waits_since)
            if not work.has_come:
                break
        return oldest


class StepQueue(Generic[ItemT, EventT]):
    """Waiting work in fair order, for any thread; it knows whether a turn is due that will look at what waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cost = 0
        self._size = 0
        self._lines: dict[str, _Line[ItemT, EventT]] = {}  # by client; none is empty
        self._served: dict[str, float] = {}  # of clients without waiting work
        self._has_looker = False
        self._newest_client = ""
        self._shared_until = -math.inf

    def __len__(self) -> int:
        return self._size

    @property
    def cost(self) -> int:
        """The sum of the waiting items' costs."""
        return self._cost

    def is_shared(self, now: float, running: Iterable[str]) -> bool:
        """Whether several clients were active recently, or are now: those that wait and those of running items."""
        with self._lock:
            return now < self._shared_until or len({*self._lines, *running}) > 1

    def cost_ahead(self, client: str) -> float:
        """Return the cost that is served before an item of average cost that this client would add now.

        Nothing, if the client would still have less than its share of what waits: others wait for it.
        """
        with self._lock:
            own = self._lines[client].cost if client in self._lines else 0
            share = own + self._cost / max(1, self._size)
            if share < self._cost / max(1, len(self._lines)):
                return 0.0
            return own + sum(min(line.cost, share) for name, line in self._lines.items() if name != client)

    def waits_since(self) -> float:
        """Return when the oldest began to wait, a reading of `time.monotonic()`; infinity where nothing waits."""
        with self._lock:
            return min((line.waits_since() for line in self._lines.values()), default=math.inf)

    def add(self, work: Work[ItemT, EventT]) -> bool:
        """Add an item; returns True if no turn is scheduled yet: the caller then schedules one."""
        with self._lock:
            self._insert(work)
            if work.client != self._newest_client:
                if self._newest_client:
                    self._shared_until = work.call.queued_at + SHARED_S
                self._newest_client = work.client
            needs_looker, self._has_looker = not self._has_looker, True
        return needs_looker

    def leave(self, *, will_return: bool) -> bool:
        """Note that the looker is done. Returns whether it must come back: it wants to, or items wait."""
        with self._lock:
            self._has_looker = will_return or bool(self._size)
            return self._has_looker

    def next(self, running: Mapping[str, int], without: Container[str] = ()) -> Work[ItemT, EventT] | None:
        """Return the item to be admitted next; `running` has the clients' numbers of running items (0 where not named).

        None where no client has items waiting except the clients `without`.
        """
        with self._lock:
            waiting = (
                (running.get(client, 0), line.served, number, line)
                for number, (client, line) in enumerate(self._lines.items())
                if client not in without
            )
            first = min(waiting, default=None)
            return first[-1].first if first is not None else None

    def take(self, work: Work[ItemT, EventT]) -> bool:
        """Take an item out to be admitted, which its client is charged for; False if it was not there (any more)."""
        with self._lock:
            if not self._remove(work):
                return False
            if not work.has_come:
                self._charge(work.client, work.cost)
            return True

    def put_back(self, work: Work[ItemT, EventT]) -> None:
        """Put an item back in front of its client's others; the client is refunded if it has delivered no event."""
        with self._lock:
            self._insert(work)
            line = self._lines[work.client]
            line.work.move_to_end(work, last=False)
            if not work.has_come:
                line.served = max(0.0, line.served - work.cost)

    def items(self) -> list[ItemT]:
        """Return everything that waits, in no particular order."""
        with self._lock:
            return [work.item for line in self._lines.values() for work in line.work]

    def served(self, client: str) -> float:
        """Return what a client was charged since others waited; infinity for one that has not waited since."""
        with self._lock:
            line = self._lines.get(client)
            return self._served.get(client, math.inf) if line is None else line.served

    def charge(self, client: str, cost: float) -> None:
        """Charge a client for what it was served."""
        with self._lock:
            self._charge(client, cost)

    def discard(self, work: Work[ItemT, EventT]) -> bool:
        """Take an item out; False if it was not there (any more)."""
        with self._lock:
            return self._remove(work)

    def clear(self) -> list[Work[ItemT, EventT]]:
        """Take out all items that have delivered no event."""
        with self._lock:
            cleared = [work for line in self._lines.values() for work in line.work if not work.has_come]
            for work in cleared:
                self._remove(work)
        return cleared

    def in_the_way(self, client: str, cost: int, max_cost: int, max_size: int) -> Sequence[Work[ItemT, EventT]] | None:
        """Return what must leave for an item of this client, see `services.core.fair_gate.in_the_way`; what has begun
        stays."""
        with self._lock:

            def newest(name: str) -> Iterator[tuple[Work[ItemT, EventT], float]]:
                return ((work, work.cost) for work in reversed(self._lines[name].work) if not work.has_come)

            def has_room(freed: float, num_left: int) -> bool:
                left = self._cost - freed
                return not left or (left + cost <= max_cost and self._size - num_left < max_size)

            shares = {name: line.cost for name, line in self._lines.items()}
            return in_the_way(shares, (client, cost), newest, has_room)

    def _insert(self, work: Work[ItemT, EventT]) -> None:
        if work.client not in self._lines:
            least = min((line.served for line in self._lines.values()), default=None)
            if least is None:  # no competition: what was served before no longer counts
                self._served.clear()
                least = 0.0
            # an idle client accumulates no credit
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
        """Forget clients that were served no more than the waiting ones, whose least they would start at anyway."""
        if len(self._served) > MAX_REMEMBERED_CLIENTS:
            least = min((line.served for line in self._lines.values()), default=math.inf)
            self._served = {client: served for client, served in self._served.items() if served > least}


class Throughput:
    """Cost finished per second of computing; `cost_per_s` is 0 before anything was finished."""

    def __init__(self, memory_s: float = THROUGHPUT_MEMORY_S) -> None:
        self.cost_per_s = 0.0
        self._memory_s = memory_s
        self._cost = 0.0
        self._seconds = 0.0

    def note(self, cost: float, seconds: float) -> None:
        """Note the cost that was finished in a turn of this length."""
        kept = math.exp(-seconds / self._memory_s)
        self._cost = kept * self._cost + cost
        self._seconds = kept * self._seconds + seconds
        self.cost_per_s = self._cost / self._seconds if self._seconds else 0.0


def making_way(
    running: Collection[AnyWork],
    chosen: Iterable[AnyWork],
    newcomer: AnyWork,
    has_room_without: Callable[[list[AnyWork]], bool],
    *,
    served: Callable[[str], float],
    now: float,
) -> list[AnyWork] | None:
    """Return the items that leave so that a newcomer has room beside those chosen already; None where none should.

    The latest of the client with the largest share goes first. `served` returns what a client was served, `now` is a
    reading of `time.monotonic()`.
    """
    shares = Counter(work.client for work in (*running, *chosen))
    payers = {client for client in shares if served(client) >= served(newcomer.client)} - {newcomer.client}
    able = [work for work in running if work.client in payers]
    leaving: list[AnyWork] = []
    while not has_room_without(leaving):
        able = [work for work in able if work not in leaving and _may_leave(work, newcomer, shares, now)]
        if not able:
            return None
        leaving.append(_latest_of_largest(able, shares))
        shares[leaving[-1].client] -= 1
    for work in leaving[:-1]:  # items whose leaving made no difference stay
        others = [one for one in leaving if one is not work]
        if has_room_without(others):
            leaving = others
    return leaving


def giving_room(running: Collection[AnyWork], preparing: Collection[AnyWork]) -> AnyWork:
    """Return the item that leaves so that others go on: the largest share's latest, if possible none in preparation."""
    shares = Counter(work.client for work in running)
    return _latest_of_largest([work for work in running if work not in preparing] or list(running), shares)


def _may_leave(work: AnyWork, newcomer: AnyWork, shares: Counter[str], now: float) -> bool:
    own, waited_s = shares[newcomer.client], now - newcomer.waits_since
    is_overdue = not own and waited_s >= PATIENCE_S and now - work.runs_since >= PATIENCE_S
    # an item of which nothing was computed loses nothing
    patience_s = SHORT_PATIENCE_S if work.is_begun else 0.0
    return is_overdue or (shares[work.client] > own + 1 and waited_s >= patience_s)


def _latest_of_largest(works: Collection[AnyWork], shares: Counter[str]) -> AnyWork:
    return max(works, key=lambda work: (shares[work.client], work.call.queued_at))
