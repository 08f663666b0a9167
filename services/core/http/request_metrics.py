"""Counts and times of requests, by route and by the version of the model that answered."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from services.core.exchange import exchange_of
from services.core.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_VERSIONS = 16
# As long as an alert looks back, and longer; a version that has answered nothing since has been replaced.
FORGOTTEN_AFTER_S = 3600.0
OTHER_VERSIONS = "other"


class RequestMetrics:
    """Count and time requests; probes are left out, so that an idle process shows zero.

    At most MAX_VERSIONS versions have series of their own at a time. A further one takes the place of one that was
    replaced; where none was, it counts as OTHER_VERSIONS.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self.metrics = metrics
        self.clock = clock
        # When each version last answered.
        self._versions: dict[str, float] = {}
        # Looking up a label set costs more than counting; routes, methods, codes and versions are few.
        self._counters: dict[tuple[str, str, int, str], Counter] = {}
        self._seconds: dict[tuple[str, str], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or exchange_of(scope).is_probe:
            await self.app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        self.metrics.inflight_requests.inc()
        try:
            await self.app(scope, receive, send)
        finally:
            self.metrics.inflight_requests.dec()
            route = getattr(scope.get("route"), "path", "unmatched")
            version = self._version(exchange.context.model)
            self._counter(route, scope["method"], exchange.code(), version).inc()
            self._histogram(route, version).observe(exchange.seconds())

    def _version(self, model: str | None) -> str:
        """Return the label of `name@version`, empty where no model answered."""
        if model is None:
            return ""
        version, now = model.rpartition("@")[2], self.clock()
        if version not in self._versions and len(self._versions) == MAX_VERSIONS:
            oldest = min(self._versions, key=self._versions.__getitem__)
            if now - self._versions[oldest] < FORGOTTEN_AFTER_S:
                return OTHER_VERSIONS
            self._forget(oldest)
        self._versions[version] = now
        return version

    def _forget(self, version: str) -> None:
        del self._versions[version]
        for counted in [key for key in self._counters if key[-1] == version]:
            del self._counters[counted]
            self.metrics.requests.remove(*counted)
        for timed in [key for key in self._seconds if key[-1] == version]:
            del self._seconds[timed]
            self.metrics.request_seconds.remove(*timed)

    def _counter(self, route: str, method: str, code: int, version: str) -> "Counter":
        key = (route, method if method in KNOWN_METHODS else "OTHER", code, version)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self.metrics.requests.labels(*key)
        return counter

    def _histogram(self, route: str, version: str) -> "Histogram":
        key = (route, version)
        histogram = self._seconds.get(key)
        if histogram is None:
            histogram = self._seconds[key] = self.metrics.request_seconds.labels(*key)
        return histogram
