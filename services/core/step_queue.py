"""What waits for a place in a running batch, and the stream in which its events come back.

A `Call` and its `Stream` belong to the event loop; `is_settled` is read on the compute thread too. A `Work` belongs
to whoever took it out of the queue, which any thread may use.
"""

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Self, TypeVar

from services.core.errors import DeadlineExceeded, FoveaError
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")

# Throughput is that of about the last half minute of computing.
THROUGHPUT_MEMORY_S = 30.0


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
    """An item on its way; `began_at` is when it was given its place."""

    __slots__ = ("began_at", "call", "cost", "item")

    def __init__(self, item: ItemT, cost: int, call: Call[EventT]) -> None:
        self.item = item
        self.cost = cost
        self.call = call
        self.began_at = math.inf

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


class StepQueue(Generic[ItemT, EventT]):
    """Work in the order of its arrival, and whether anybody is going to look at it; safe to use on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cost = 0
        # Work leaves at the front, comes back there, and leaves anywhere; all are cheap in this kind of dict only.
        self._work: OrderedDict[Work[ItemT, EventT], None] = OrderedDict()
        self._has_looker = False

    def __len__(self) -> int:
        return len(self._work)

    @property
    def cost(self) -> int:
        """The sum of what waits."""
        return self._cost

    def add(self, work: Work[ItemT, EventT]) -> bool:
        """Returns whether the caller has to see to it that somebody looks: until `leave`, only the first one has."""
        with self._lock:
            self._work[work] = None
            self._cost += work.cost
            needs_looker, self._has_looker = not self._has_looker, True
        return needs_looker

    def leave(self, *, will_return: bool) -> bool:
        """Whoever looks has done so. Returns whether he must come back: as he wants to, or for what waits."""
        with self._lock:
            self._has_looker = will_return or bool(self._work)
            return self._has_looker

    def put_back(self, work: Work[ItemT, EventT]) -> None:
        """To the front."""
        with self._lock:
            self._work[work] = None
            self._work.move_to_end(work, last=False)
            self._cost += work.cost

    def discard(self, work: Work[ItemT, EventT]) -> bool:
        """Take one out; False if it was not there (any more)."""
        with self._lock:
            if work not in self._work:
                return False
            del self._work[work]
            self._cost -= work.cost
            return True

    def clear(self) -> list[Work[ItemT, EventT]]:
        """Take all out."""
        with self._lock:
            work = list(self._work)
            self._work.clear()
            self._cost = 0
        return work

    def oldest(self) -> Work[ItemT, EventT] | None:
        with self._lock:
            return next(iter(self._work), None)


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
