"""How many requests a service is given at a time, and how many of them are sent again."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.settings import Service
from services.core.errors import Overloaded
from services.core.metrics import Metrics


class Gate:
    """At most so many requests in flight and so many held back behind them, first come first served.

    The two gauges are what an autoscaler reads, also for a service that has no instance left.
    """

    def __init__(self, service: Service, *, max_inflight: int, max_queued: int, metrics: Metrics) -> None:
        self._service = service
        self._max_inflight = max_inflight
        self._max_queued = max_queued
        self._inflight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._inflight_gauge = metrics.gateway_inflight_requests.labels(service)
        self._queued_gauge = metrics.gateway_queued_requests.labels(service)
        self._refused = metrics.rejected.labels("queue_full")

    async def enter(self) -> None:
        """Take a place, waiting for one if need be. Raises Overloaded at once where too many wait already."""
        if self._inflight >= self._max_inflight:
            await self._wait()
        else:
            self._inflight += 1
        self._inflight_gauge.inc()

    def leave(self) -> None:
        self._inflight_gauge.dec()
        self._pass_on()

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """Count a request that keeps its place but can't be sent as queued."""
        self._inflight_gauge.dec()
        self._queued_gauge.inc()
        try:
            yield
        finally:
            self._queued_gauge.dec()
            self._inflight_gauge.inc()

    async def _wait(self) -> None:
        if len(self._waiting) >= self._max_queued:
            self._refused.inc()
            raise Overloaded(
                f"{self._service} has {self._inflight} requests in flight and {len(self._waiting)} waiting, "
                "which is as many as the gateway holds for it.",
                code="queue_full",
            )
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._queued_gauge.inc()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting.remove(place)
            else:
                # The place came in the same turn of the loop as the cancellation.
                self._pass_on()
            raise
        finally:
            self._queued_gauge.dec()

    def _pass_on(self) -> None:
        """Give a free place to the one that waits longest."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._inflight -= 1


class RetryBudget:
    """Retries may be a share of the requests, and a few a second besides, so that they never double an overload."""

    def __init__(
        self,
        *,
        ratio: float = 0.2,
        floor_per_s: float = 2.0,
        most_saved: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._most_saved = most_saved
        self._clock = clock
        self._saved = most_saved
        self._counted_at = clock()

    def deposit(self) -> None:
        """One request arrived."""
        self._saved = min(self._most_saved, self._saved + self._ratio)

    def withdraw(self) -> bool:
        """Whether one more retry is within the budget; if so, it is spent."""
        now = self._clock()
        self._saved = min(self._most_saved, self._saved + (now - self._counted_at) * self._floor_per_s)
        self._counted_at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
