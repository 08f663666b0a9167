"""Rejection of bodies that arrive too slowly, regardless of the request's deadline."""

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.errors import BodyTimeout
from services.core.exchange import WHOLE_BODY_KEY, announces_body
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings


class BodyPace:
    """Refuse a body that stalls, or that arrives below a minimum rate for long.

    A body may be late by `body_timeout_s`. Waiting for it uses that up, and each byte gives back what it takes at
    `min_body_bytes_per_s`. Only the time spent waiting for the client counts: a body that nothing reads yet, or whose
    sender waits for `100 Continue`, is not late. Raises BodyTimeout.
    """

    def __init__(self, app: ASGIApp, settings: ProcessSettings, metrics: Metrics) -> None:
        self.app = app
        self.timeout_s = settings.body_timeout_s
        self.bytes_per_s = settings.min_body_bytes_per_s
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get(WHOLE_BODY_KEY) or not announces_body(scope):
            await self.app(scope, receive, send)
            return
        left_s = self.timeout_s
        is_whole = False

        async def receive_in_time() -> Message:
            nonlocal left_s, is_whole
            if is_whole:
                return await receive()
            asked_at = time.monotonic()
            timer = asyncio.timeout(left_s)
            try:
                async with timer:
                    message = await receive()
            except TimeoutError:
                if not timer.expired():
                    raise
                raise self._refusal() from None
            gained_s = len(message.get("body", b"")) / self.bytes_per_s
            left_s = min(self.timeout_s, left_s - (time.monotonic() - asked_at) + gained_s)
            is_whole = not message.get("more_body", False)
            return message

        await self.app(scope, receive_in_time, send)

    def _refusal(self) -> BodyTimeout:
        self.metrics.rejected.labels("slow_body").inc()
        return BodyTimeout(
            f"The request body arrives too slowly: it may stall for {self.timeout_s:g} s (FOVEA_BODY_TIMEOUT_S) and "
            f"must arrive at {self.bytes_per_s} bytes per second (FOVEA_MIN_BODY_BYTES_PER_S).",
            code="body_timeout",
        )
