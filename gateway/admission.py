"""Limits on the concurrent requests to a service and on retries, and what an autoscaler reads of them."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.addresses import FIRST_PERMITS
from gateway.routing.destinations import Destination
from services.core.admission.admission import line_length
from services.core.admission.permits import Permits
from services.core.errors import Overloaded
from services.core.metrics import Metrics

# Seconds for which a request counts as recent after it has ended. It is longer than an autoscaler takes between two
# looks, so that none misses a request, and an autoscaler's own patience begins after it.
RECENT_S = 300.0
# When a canary is withdrawn: the figures of the alert FoveaCanaryErrors. After RECORD_S an attempt counts a third.
RECORD_S = 900.0
MAX_FAILURES = 5
MAX_FAILING_SHARE = 0.01


class RecentRequests:
    """Counts the requests for a service that are there now or ended within `RECENT_S`, refused ones among them.

    What tells an autoscaler that a service is in use: short requests are not there at most of the moments at which it
    looks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_present = 0
        # By whole seconds, so that its size does not depend on the rate.
        self._num_ended: deque[tuple[int, int]] = deque()

    def count(self) -> int:
        since = self._clock() - RECENT_S
        return self._num_present + sum(number for second, number in self._num_ended if second >= since)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request from its arrival on."""
        self._num_present += 1
        try:
            yield
        finally:
            self._num_present -= 1
            now = self._clock()
            if self._num_ended and self._num_ended[-1][0] == int(now):
                self._num_ended[-1] = (int(now), self._num_ended[-1][1] + 1)
            else:
                self._num_ended.append((int(now), 1))
            while self._num_ended[0][0] < now - RECENT_S:
                self._num_ended.popleft()


class TrackRecord:
    """Counts the attempts at a destination and failures, which fade with time; anew with each version of a model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._attempts = self._failures = 0.0
        self._versions: dict[str, str] = {}
        self.is_withdrawn = False

    def add(self, code: str, model: str) -> None:
        """Count an attempt by its status, or by the word for what it met in place of an answer."""
        name, _, version = model.partition("@")
        if version and self._versions.get(name) != version:
            self._versions[name] = version
            self._attempts = self._failures = 0.0
            self.is_withdrawn = False
        self._fade()
        self._attempts += 1
        self._failures += code[0] not in "1234"

    def is_worse_than(self, stable: "TrackRecord") -> bool:
        """Whether this fails more than twice as often as the stable version, and has failed more than a few times."""
        self._fade()
        bound = max(MAX_FAILING_SHARE, 2 * stable._share)
        return self._failures > MAX_FAILURES and self._share > bound

    def _fade(self) -> None:
        now = self._clock()
        kept, self._at = math.exp((self._at - now) / RECORD_S), now
        self._attempts *= kept
        self._failures *= kept

    @property
    def _share(self) -> float:
        return self._failures / self._attempts if self._attempts else 0.0


class Gate(Permits):
    """Admits as many requests as the instances of a destination have permits for, and keeps a short queue behind them.

    Every client has its share of both. An autoscaler reads the gauges of requests in flight and in the queue, and the
    count of those that were refused, even for a service that has no instance left.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        max_inflight: int,
        max_queued: int,
        burst_s: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_inflight = max_inflight
        self._max_queued = max_queued
        self._num_held_back = 0
        super().__init__(
            destination.title,
            limit=min(FIRST_PERMITS, max_inflight),
            max_in_line=min(line_length(FIRST_PERMITS), max_queued),
            max_burst=max_queued,
            burst_s=burst_s,
            clock=clock,
        )
        self.refusals = metrics.rejected
        metrics.gateway_inflight_requests.labels(destination.name).set_function(
            lambda: self.taken - self._num_held_back
        )
        metrics.gateway_queued_requests.labels(destination.name).set_function(
            lambda: self.num_waiting + self._num_held_back
        )
        metrics.gateway_concurrency_limit.labels(destination.name).set_function(lambda: self.capacity)
        # Shown from the start: a counter that appears with its first refusal has no rate before the second.
        self.refused = metrics.gateway_refused_requests.labels(destination.name)

    def follow(self, num_permits: int, *, is_patient: bool = False) -> None:
        """Set the instances' permits in sum; a patient gate queues up to its maximum, without regard to the wait."""
        max_in_line = self._max_queued if is_patient else min(line_length(num_permits), self._max_queued)
        self.resize(min(num_permits, self._max_inflight), max_in_line)

    def _refuse(self, message: str, code: str) -> Overloaded:
        self.refused.inc()
        return super()._refuse(message, code)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Count a request that keeps its permit but can't be sent as queued."""
        self._num_held_back += 1
        try:
            yield
        finally:
            self._num_held_back -= 1


class RetryBudget:
    """A budget for retries, a share of the requests and a few per second, so that retries do not double an overload."""

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
        """Add to the budget for a request that arrived."""
        self._saved = min(self._most_saved, self._saved + self._ratio)

    def withdraw(self) -> bool:
        """Spend one retry; False where that is not within the budget."""
        now = self._clock()
        self._saved = min(self._most_saved, self._saved + (now - self._counted_at) * self._floor_per_s)
        self._counted_at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
