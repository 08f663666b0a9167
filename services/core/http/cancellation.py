"""Cancellation of requests whose deadline has passed or whose client has gone."""

import asyncio
import math
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.errors import DeadlineExceeded, FoveaError, InvalidRequest
from services.core.exchange import announces_body, context_of, exchange_of, header_of
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings

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
        timeout_s = self._timeout_s(scope)
        context_of(scope).deadline = time.monotonic() + timeout_s
        timer = asyncio.timeout(timeout_s)
        try:
            async with timer:
                await self.app(scope, receive, send)
        except TimeoutError:
            if not timer.expired():
                raise
            self.metrics.cancelled.labels("deadline").inc()
            raise DeadlineExceeded(f"The request took longer than its {timeout_s:g} s.") from None

    def _timeout_s(self, scope: Scope) -> float:
        for name in TIMEOUT_HEADERS:
            if (value := header_of(scope, name)) is not None:
                return min(_positive_seconds(name.decode(), value), self.maximum_s)
        return min(self.default_s, self.maximum_s)


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
