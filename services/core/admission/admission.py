"""Admission of requests to a service: each takes a permit before it is parsed; excess ones are refused unread.

The number of permits adapts (`ConcurrencyLimit`), clients share them fairly (`permits`), and every response tells the
gateway how many there are.
"""

import math
import time
from collections.abc import Callable, Hashable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.admission.permits import Permits
from services.core.exchange import announces_body, context_of, current_caller, exchange_of, header_of
from services.core.fair_gate import Permit
from services.core.metrics import Metrics
from services.core.settings import ServiceSettings

GROWTH = 1.4
# With n times the floor in flight, latency may be this power of n times that at the floor.
SLOWDOWN_EXPONENT = 1 / 2
# The limit falls only where latency exceeds what it may be by this factor: every window is noisy.
TOLERANCE = 1.1
# A window of means lasts at least this long, and covers at least twice as many requests as the limit.
MIN_WINDOW_S = 0.5
# Requests that never had this share of the limit in flight beside them tell nothing about the limit.
FULL_SHARE = 0.9
# How long a limit over the floor is trusted before the latency at the floor is measured again: in seconds, and in
# windows, so that long requests do not spend their time on measuring.
BASELINE_AGE_S = 10.0
BASELINE_AGE_WINDOWS = 50
# Windows that a limit is kept after a higher one did not help: doubled each time, up to the greatest.
MAX_PATIENCE = 64
# Weight of the newest window in the latencies at the floor.
BASELINE_SMOOTHING = 0.25


class ConcurrencyLimit:
    """Keeps `limit` between `floor` and `ceiling`, at as many concurrent requests as raise the throughput.

    Must be told of every request as it begins and as it is answered. Beyond what a service can work on at once, another
    request in flight only makes all others wait. Where that begins is measured, as in Envoy's adaptive concurrency
    filter (gradient controller): latency now is compared with that of few requests in flight, measured again from time
    to time. Requests differ a thousandfold in cost, so each is compared with others of its kind.

    Batches make two differences. The latency to compare with is that of `floor` requests, not of one: a request that
    shares a batch takes longer than alone, and yet costs less. And latency may rise as long as Kleinrock's power,
    throughput over latency, does not fall: with n times the floor in flight it may be sqrt(n) times as long.
    L. Kleinrock, Power and deterministic rules of thumb for probabilistic problems, ICC 1979.
    https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/adaptive_concurrency_filter
    """

    def __init__(self, *, floor: int, ceiling: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.floor = min(floor, ceiling)
        self.limit = self.floor
        self._ceiling = ceiling
        self._clock = clock
        self._baselines: dict[Hashable, float] = {}
        self._baselines_taken_at = clock()
        self._num_windows = 0  # since then
        self._after_baseline = self.floor
        self._patience = 1
        self._num_to_keep = 0
        self._last_full_at = -math.inf
        self._begin_window()

    def note_begun(self, num_inflight: int) -> None:
        """Note that a request has begun, with which `num_inflight` are in flight."""
        if num_inflight >= FULL_SHARE * self.limit:
            self._last_full_at = self._clock()

    def note_answered(self, kind: Hashable, began: float) -> None:
        """Note that a request of this kind, which began at this reading of the clock, is answered now.

        Requests that began before the limit last changed are left out, and so are those during which the limit was
        never nearly reached: they tell nothing about it.
        """
        if self._last_full_at < began or began < self._window_began:
            return
        num, total_s = self._window.get(kind, (0, 0.0))
        self._window[kind] = (num + 1, total_s + self._clock() - began)
        self._num_recorded += 1
        if self._num_recorded >= 2 * self.limit and self._clock() >= self._window_began + MIN_WINDOW_S:
            self._end_window()
            self._begin_window()

    def _begin_window(self) -> None:
        self._window: dict[Hashable, tuple[int, float]] = {}
        self._num_recorded = 0
        self._window_began = self._clock()

    def _end_window(self) -> None:
        self._num_windows += 1
        if self.limit == self.floor:
            self._take_baselines()
            self._leave_floor()
            return
        slowdown = self._slowdown()
        allowed = (self.limit / self.floor) ** SLOWDOWN_EXPONENT
        if slowdown is None or self._are_baselines_old():
            self._after_baseline = self.limit
            self.limit = self.floor
        elif slowdown > TOLERANCE * allowed:
            self.limit = max(self.floor, int(self.limit / GROWTH))
            self._num_to_keep = self._patience
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        elif self._num_to_keep:
            self._num_to_keep -= 1
        elif slowdown <= allowed:
            self._grow()
            self._patience = 1

    def _take_baselines(self) -> None:
        for kind, (num, total_s) in self._window.items():
            known_s = self._baselines.get(kind, total_s / num)
            self._baselines[kind] = known_s + BASELINE_SMOOTHING * (total_s / num - known_s)
        self._baselines_taken_at = self._clock()
        self._num_windows = 0

    def _leave_floor(self) -> None:
        if self._after_baseline > self.floor:
            self.limit, self._after_baseline = self._after_baseline, self.floor
        elif self._num_to_keep:
            self._num_to_keep -= 1
        else:
            self._grow()

    def _grow(self) -> None:
        self.limit = min(self._ceiling, max(self.limit + 1, int(self.limit * GROWTH)))

    def _slowdown(self) -> float | None:
        """Return latency in this window over latency at the floor; None where most requests are of unknown kinds."""
        known = [
            (num, total_s, self._baselines[kind])
            for kind, (num, total_s) in self._window.items()
            if kind in self._baselines
        ]
        if 2 * sum(num for num, _, _ in known) < self._num_recorded:
            return None
        return sum(total_s for _, total_s, _ in known) / sum(num * baseline_s for num, _, baseline_s in known)

    def _are_baselines_old(self) -> bool:
        age_s = self._clock() - self._baselines_taken_at
        return age_s > BASELINE_AGE_S and self._num_windows > BASELINE_AGE_WINDOWS


# What a service tells the gateway in front of it; clients are not shown it.
PERMITS_HEADER = b"x-fovea-permits"
# Waiting requests per request in flight: at this share they wait half as long as a request takes.
WAITING_SHARE = 0.5
# Answered without a model, for clients that discover the API and for the gateway's own directory.
FREE_PATHS = ("/v1/models", "/models", "/openapi.json", "/docs")


def line_length(limit: int) -> int:
    """Return how many requests may wait while `limit` are in flight."""
    return int(limit * WAITING_SHARE)


class Admission:
    """Admit as many requests as the service can work on, in fair shares of clients; raises Overloaded for others.

    A request with a body takes its permit when the body has arrived, so a slow sender holds none; where there would be
    none for it, it is refused before its body is read. A permit is held to the end of the response.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self.app = app
        self.limit = ConcurrencyLimit(floor=settings.min_concurrency, ceiling=settings.max_concurrency)
        self.permits = Permits(
            f"The {metrics.service} service",
            limit=self.limit.limit,
            max_in_line=line_length(self.limit.limit),
            max_burst=settings.max_concurrency,
            burst_s=settings.burst_s,
        )
        self.permits.refusals = metrics.rejected
        self._announcement = self._announce()
        metrics.concurrency_limit.set_function(lambda: self.permits.capacity)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(FREE_PATHS):
            await self.app(scope, receive, send)
            return
        client, deadline = current_caller().client, context_of(scope).deadline
        permit: Permit | None = None

        async def receive_and_enter() -> Message:
            nonlocal permit
            message = await receive()
            if permit is None and message["type"] == "http.request" and not message.get("more_body", False):
                permit = await self._enter(client, deadline)
            return message

        async def send_announced(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._announcement]
            await send(message)

        if exchange_of(scope).is_probe:
            await self.app(scope, receive, send_announced)
            return
        try:
            if announces_body(scope):
                self.permits.check(client, deadline)
                await self.app(scope, receive_and_enter, send_announced)
            else:
                permit = await self._enter(client, deadline)
                await self.app(scope, receive, send_announced)
        finally:
            if permit is not None:
                self._leave(permit, scope)

    async def _enter(self, client: str, deadline: float) -> Permit:
        permit = await self.permits.enter(client, deadline)
        self.limit.note_begun(self.permits.taken)
        return permit

    def _leave(self, permit: Permit, scope: Scope) -> None:
        if exchange_of(scope).status == 200:
            self.limit.note_answered(_kind(scope), permit.held_since)
        self.permits.leave(permit)
        if self.limit.limit != self.permits.capacity:
            self.permits.resize(self.limit.limit, line_length(self.limit.limit))
            self._announcement = self._announce()

    def _announce(self) -> tuple[bytes, bytes]:
        return PERMITS_HEADER, str(self.limit.limit).encode("ascii")


def _kind(scope: Scope) -> Hashable:
    """Return the request's kind, its route and size class; requests of one kind take about equally long."""
    length = header_of(scope, b"content-length") or "0"
    route = getattr(scope.get("route"), "path", "")
    return route, scope["method"], int(length).bit_length() if length.isdecimal() else -1
