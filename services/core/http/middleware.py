"""Middleware that every request passes, in plain ASGI; `app.py` has its order.

Never `BaseHTTPMiddleware`: it hides the client's disconnect from the application.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.descriptors import ExhaustionLog, is_exhaustion, out_of_descriptors
from services.core.errors import (
    DeadlineExceeded,
    FoveaError,
    InternalError,
    InvalidRequest,
    Overloaded,
    is_out_of_memory,
    no_memory,
)
from services.core.exchange import (
    CLIENT_HEADER,
    SCOPE_KEY,
    TOKENS_HEADER,
    Exchange,
    announces_body,
    caller_of,
    context_of,
    exchange_of,
    header_of,
    headers_of,
    set_caller,
)
from services.core.http.error_responses import error_event, error_headers, render_error
from services.core.http.health import PROBE_PATHS, Health
from services.core.logs import PASSED_ON
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

MetricT = TypeVar("MetricT", bound="Counter | Histogram")

# The second is sent by OpenAI's clients on their own.
TIMEOUT_HEADERS = (b"x-request-timeout", b"x-stainless-read-timeout")
# Requests answered sooner do not get a task that watches their connection.
WATCH_AFTER_S = 0.01


class Deadline:
    """Cancel a request at its deadline, which handlers find in the request's context.

    The deadline is a reading of `time.monotonic()`, in seconds. Raises DeadlineExceeded, and InvalidRequest for a
    header that is no positive number.
    """

    def __init__(self, app: ASGIApp, settings: ProcessSettings, metrics: Metrics) -> None:
        self.app = app
        self.default_s = settings.request_timeout_s
        self.maximum_s = settings.max_request_timeout_s
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given_s = self._given_s(scope)
        timeout_s = min(self.default_s if given_s is None else given_s, self.maximum_s)
        context = context_of(scope)
        began_at = time.monotonic()
        context.deadline = began_at + timeout_s
        timer = asyncio.timeout(timeout_s)
        if given_s is None:
            context.default_timer = timer
        try:
            async with timer:
                await self.app(scope, receive, send)
        except TimeoutError:
            if not timer.expired():
                raise
            self.metrics.cancelled.labels("deadline").inc()
            raise DeadlineExceeded(f"The request took longer than its {context.deadline - began_at:g} s.") from None

    def _given_s(self, scope: Scope) -> float | None:
        for name in TIMEOUT_HEADERS:
            if (value := header_of(scope, name)) is not None:
                return _positive_seconds(name.decode(), value)
        return None


def _positive_seconds(header: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidRequest(f"{header} must be a positive number of seconds, not {value!r}.")
    return seconds


class DisconnectCancellation:
    """Cancel the handler of a client that has gone, whether it streams or not.

    A body that the handler leaves unread is not read on its behalf, so a client that goes away then is noticed
    only when the response is sent.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        watch = _ConnectionWatch(receive)
        if not announces_body(scope):
            watch.begin()

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                # After a complete response `receive` reports a disconnect; what still runs must not be cancelled.
                watch.end()
            await send(message)

        try:
            await self.app(scope, watch.receive, send_watched)
        except asyncio.CancelledError:
            if not watch.is_gone or watch.task.uncancel() > 0:
                raise
        except (FoveaError, ClientDisconnect):
            # A body that ended too early, however the framework wrapped it: the client has gone.
            if not watch.is_gone:
                raise
        finally:
            watch.end()
            if watch.is_gone and not exchange.is_complete:
                exchange.is_abandoned = True
                self.metrics.cancelled.labels("disconnect").inc()


class _ConnectionWatch:
    """The receiving side of one request: passes messages on, and listens itself once the body has been read."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None, "ASGI applications run in a task"
        self.task = task
        self.is_gone = False
        self._receive = receive
        self._read_ahead: list[Message] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] = task.get_loop().create_future()
        self._is_handler_reading = False

    def begin(self) -> None:
        if self._timer is None and not self._over.done():
            self._timer = self.task.get_loop().call_later(WATCH_AFTER_S, self._start_watching)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._over.done():
            self._over.set_result(None)

    async def receive(self) -> Message:
        if self._read_ahead:
            return self._read_ahead.pop(0)
        if self._watcher is not None:
            await asyncio.shield(self._over)
            return {"type": "http.disconnect"}
        self._is_handler_reading = True
        try:
            message = await self._receive()
        finally:
            self._is_handler_reading = False
        if message["type"] == "http.disconnect":
            self.is_gone = not self._over.done()
        elif not message.get("more_body", False):
            self.begin()
        return message

    def _start_watching(self) -> None:
        self._timer = None
        if self._is_handler_reading:
            # The handler learns of a disconnect itself, as long as it keeps reading.
            self.begin()
        else:
            self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (message := await self._receive())["type"] != "http.disconnect":
            self._read_ahead.append(message)
        self.is_gone = True
        self._over.set_result(None)
        self.task.cancel()


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
        self._series: dict[tuple[Any, ...], Any] = {}

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
            method = scope["method"] if scope["method"] in KNOWN_METHODS else "OTHER"
            self._labelled(self.metrics.requests, route, method, exchange.code(), version).inc()
            self._labelled(self.metrics.request_seconds, route, version).observe(exchange.seconds())

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
        for key in [key for key in self._series if key[-1] == version]:
            metric, *labels = key
            del self._series[key]
            metric.remove(*labels)

    def _labelled(self, metric: MetricT, *labels: str | int) -> MetricT:
        key = (metric, *labels)
        if key not in self._series:
            self._series[key] = metric.labels(*labels)
        series: MetricT = self._series[key]
        return series


QUIET_PATHS = PROBE_PATHS | {"/metrics"}
MAX_REQUEST_ID_LENGTH = 128


class RequestIdentity:
    """Give the request its id, in logs and response, and send the headers that every response carries.

    Handlers find `request.state.request_id`, and by `context_of` the context that they set `model` in.
    """

    def __init__(self, app: ASGIApp, health: Health) -> None:
        self.app = app
        self.health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        exchange = Exchange(request_id, scope["path"], is_probe=scope["path"] in QUIET_PATHS)
        scope[SCOPE_KEY] = exchange
        context, timing = exchange.context, exchange.context.timing
        tells_tokens = TOKENS_HEADER in headers_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        set_caller(caller_of(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"] = list(message.get("headers", ()))
                present = dict(headers)
                exchange.status = message["status"]
                exchange.content_type = present.get(b"content-type", b"")
                if b"x-request-id" not in present:
                    headers.append((b"x-request-id", request_id.encode("ascii")))
                if b"x-content-type-options" not in present:
                    # Browsers must not guess the content type.
                    headers.append((b"x-content-type-options", b"nosniff"))
                if context.model is not None:
                    headers.append((b"x-fovea-model", context.model.encode("latin-1", "replace")))
                if timing.stages and not timing.is_private:
                    headers.append((b"server-timing", timing.header().encode("latin-1")))
                if tells_tokens:
                    headers.append((TOKENS_HEADER, b"%d" % context.usage.total_tokens))
                if self.health.is_draining:
                    headers.append((b"connection", b"close"))
            elif not message.get("more_body", False):
                exchange.is_complete = True
            elif tells_tokens and exchange.content_type.startswith(b"text/event-stream"):
                message = {**message, "body": b": tokens %d\n%b" % (context.usage.total_tokens, message["body"])}
            await send(message)

        structlog.contextvars.bind_contextvars(request_id=request_id)
        await self.app(scope, receive, send_with_headers)


def _request_id(scope: Scope) -> str:
    sent = headers_of(scope).get(b"x-request-id", b"")
    is_printable = all(0x20 <= byte < 0x7F for byte in sent) and not sent.isspace()
    if is_printable and 1 <= len(sent) <= MAX_REQUEST_ID_LENGTH:
        return str(sent, "ascii")
    return str(uuid.uuid4())


class AccessLog:
    """Log one line per request, when it has ended; never its query, body or keys.

    `has_gateway` lets the lines of requests that a gateway has passed on say so.
    """

    def __init__(self, app: ASGIApp, *, has_gateway: bool) -> None:
        self.app = app
        self.has_gateway = has_gateway
        self.log = structlog.get_logger("fovea.access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or exchange_of(scope).is_probe:
            await self.app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        try:
            await self.app(scope, receive, send)
        finally:
            context = exchange.context
            details: dict[str, object] = {
                f"{stage}_ms": round(s * 1000, 3) for stage, s in context.timing.stages.items()
            }
            if context.model is not None:
                details["model"] = context.model
            if exchange.error_type is not None:
                details["error"] = exchange.error_type
            if self.has_gateway and CLIENT_HEADER in headers_of(scope):
                details[PASSED_ON] = "gateway"
            self.log.info(
                "request",
                method=scope["method"],
                path=exchange.path,
                status=exchange.code(),
                duration_ms=round(exchange.seconds() * 1000, 3),
                **details,
            )


class ErrorResponses:
    """The outermost error handler: turns every error from further in into one response, in its route's error shape."""

    def __init__(self, app: ASGIApp, health: Health) -> None:
        self.app = app
        self.health = health
        self.exhaustion = ExhaustionLog("request")
        self.log = structlog.get_logger("fovea.errors")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        except FoveaError as error:
            if error.status == InternalError.status:
                self.log.exception("internal error")
            await self._answer(error, scope, send)
        except asyncio.CancelledError:
            # The server cancels requests that outlast the drain's timeout.
            if not self.health.is_draining:
                raise
            await self._answer(Overloaded("The service is shutting down."), scope, send)
        except Exception as error:
            if is_out_of_memory(error):
                self.log.exception("out of memory")
                await self._answer(no_memory(), scope, send)
                return
            if isinstance(error, OSError) and is_exhaustion(error):
                self.exhaustion.report()
                await self._answer(out_of_descriptors(), scope, send)
                return
            self.log.exception("unhandled exception")
            request_id = exchange_of(scope).request_id
            message = f"An internal error occurred. It is logged under request {request_id}."
            await self._answer(InternalError(message), scope, send)

    async def _answer(self, error: FoveaError, scope: Scope, send: Send) -> None:
        """Send a whole response, the last event of a stream, or nothing where neither is possible any more.

        In the last case the server closes the connection, which tells the client that the body is incomplete.
        """
        exchange = exchange_of(scope)
        exchange.error_type = error.type
        if exchange.status is None:
            body = render_error(error, scope)
            headers = error_headers(error, body)
            await send({"type": "http.response.start", "status": error.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        elif not exchange.is_complete and exchange.content_type.startswith(b"text/event-stream"):
            await send({"type": "http.response.body", "body": error_event(error, scope), "more_body": False})


class VersionPrefix:
    """Answer every route with and without `/v1`, by rewriting the path to the declared form.

    Routes exist once, so the OpenAPI document, the metrics and the error shapes do too. The first segment decides:
    a path whose first segment is declared is left alone.
    """

    def __init__(self, app: ASGIApp, paths: tuple[str, ...]) -> None:
        self.app = app
        versioned = {path.split("/")[2] for path in paths if path.startswith("/v1/")}
        bare = {path.split("/")[1] for path in paths if not path.startswith("/v1/")}
        self.only_versioned = versioned - bare
        self.only_bare = bare - versioned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            first, _, rest = scope["path"].removeprefix("/").partition("/")
            if first in self.only_versioned:
                _rewrite(scope, lambda path: f"/v1{path}")
            elif first == "v1" and rest.partition("/")[0] in self.only_bare:
                _rewrite(scope, lambda path: path.removeprefix("/v1"))
        await self.app(scope, receive, send)


def _rewrite(scope: Scope, change: Callable[[str], str]) -> None:
    """Change both forms of a path. The gateway forwards the raw one as it came, and rewrites none that it forwards."""
    scope["path"] = change(scope["path"])
    if "raw_path" in scope:  # optional in ASGI
        scope["raw_path"] = change(scope["raw_path"].decode("latin-1")).encode("latin-1")
