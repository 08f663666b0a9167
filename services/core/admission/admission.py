"""Admission of requests to a service: each takes a permit before it is parsed; excess ones are refused unread.

The number of permits adapts (`concurrency_limit`), clients share them fairly (`permits`), and every response tells the
gateway how many there are.
"""

from collections.abc import Hashable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.admission.concurrency_limit import ConcurrencyLimit
from services.core.admission.permits import Permits
from services.core.exchange import announces_body, context_of, current_caller, exchange_of, header_of
from services.core.fair_gate import Permit
from services.core.metrics import Metrics
from services.core.settings import ServiceSettings

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
            max_waiting=line_length(self.limit.limit),
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
