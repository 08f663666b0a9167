"""One timer for the deadlines of many requests, most of which are answered long before.

An event loop timer for each request would cost more than everything else that a Batcher or Stepper does for it.
"""

import asyncio
import math
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

# Event loops round timers to milliseconds: a deadline within one is due now.
RESOLUTION_S = 0.001
# Settled requests are kept until they are this many times as many as those that still wait.
MAX_STALE_RATIO = 2
MIN_PURGE_SIZE = 1024


class Expiring(Protocol):
    """A request with a deadline, a reading of `time.monotonic()` in seconds, that applies until it is settled."""

    deadline: float
    is_settled: bool


ExpiringT = TypeVar("ExpiringT", bound=Expiring)


class Deadlines(Generic[ExpiringT]):
    """Calls `expire` with every watched request that is not settled by its deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[ExpiringT], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._arrivals = count()
        self._heap: list[tuple[float, int, ExpiringT]] = []
        self._purge_size = MIN_PURGE_SIZE
        self._next_look = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, request: ExpiringT) -> None:
        if request.deadline == math.inf:
            return
        heappush(self._heap, (request.deadline, next(self._arrivals), request))
        if len(self._heap) > self._purge_size:
            self._purge()
        if request.deadline < self._next_look:
            self._look_at(request.deadline)

    def forget_all(self) -> None:
        """Drop the timer, every request, and the callback; no request may be watched after that."""
        self._heap.clear()
        self._look_at(math.inf)
        # The owner's bound method forms a cycle with it, which would keep its engine until a garbage collection.
        self._expire = _ignore

    def _look_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = moment
        self._timer = None
        if moment < math.inf:
            self._timer = self._loop.call_later(moment - time.monotonic(), self._look)

    def _look(self) -> None:
        due = time.monotonic() + RESOLUTION_S
        while self._heap and (self._heap[0][2].is_settled or self._heap[0][0] <= due):
            request = heappop(self._heap)[2]
            if not request.is_settled:
                self._expire(request)
        self._look_at(self._heap[0][0] if self._heap else math.inf)

    def _purge(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_settled]
        heapify(self._heap)
        self._purge_size = max(MIN_PURGE_SIZE, MAX_STALE_RATIO * len(self._heap))


def _ignore(request: Expiring) -> None:
    """Do nothing with a request that expires after the end."""
