"""HTTP/1.1 as uvicorn speaks it, with bounds on what comes ahead of a body, and refusals in the shape of all others.

The application sees a request when its head is whole; until then nothing else limits its size or its time.
"""

import asyncio
import uuid
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.core.error_responses import error_headers
from services.core.errors import FoveaError, InvalidRequest, TooLarge

# More than what browsers and proxies send by far; a URL may hold a thousand short captions.
MAX_HEAD_BYTES = 128 * 1024
# The parser counts places in a URL with 16 bits.
MAX_URL_BYTES = 2**16 - 1
# From the connection, or from the first byte after the request before, to the end of the head.
HEAD_TIMEOUT_S = 60.0
# What is still under way is read and dropped for so long: a connection closed on it is reset, the refusal unread.
LINGER_S = 1.0


class UrlTooLong(TooLarge):
    status = 414


class HeadTooLarge(TooLarge):
    status = 431


class BoundedHeadProtocol(HttpToolsProtocol):
    """Closes a connection whose next head is too large (431), has too long a URL (414) or takes too long to come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_bytes = 0  # save those that came together with its first one
        self._timer: asyncio.TimerHandle | None = None
        self._url_refusal: UrlTooLong | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn narrows it
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head or self._is_refused:
            return
        if self._timer is None:
            self._expect_head()
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(f"The request's head is too large; the limit is {MAX_HEAD_BYTES} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_timer()
        if len(self.url) > MAX_URL_BYTES:
            self._url_refusal = UrlTooLong(f"The URL has {len(self.url)} bytes; the limit is {MAX_URL_BYTES}.")
            raise self._url_refusal  # which the parser makes its own, so that uvicorn goes no further
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for whatever its parser refuses."""
        self._refuse(
            self._url_refusal or InvalidRequest("The request is not valid HTTP/1.1; its URL must be percent-encoded.")
        )

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, error: FoveaError) -> None:
        body = orjson.dumps(error.body())
        # What the middleware would add, had the request come so far.
        own = [(b"x-request-id", str(uuid.uuid4()).encode("ascii")), (b"connection", b"close")]
        lines = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in [*error_headers(error, body), *own])]
        self._is_refused = True
        self._cancel_timer()
        self.transport.write(b"".join(lines) + b"\r\n" + body)
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)
