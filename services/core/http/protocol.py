"""HTTP/1.1 as uvicorn speaks it, strict where a request could be read in two ways, and with bounds on its head.

The application sees a request when its head is complete; until then nothing else limits its size or its time. Answers
are sent in the order of their requests, refusals included, and a connection whose next bytes can't be trusted is
closed. A head must have one reading, and only one, against request smuggling. Open connections are limited, in all and
for one client; further ones are answered 503 and closed.
"""

import asyncio
import math
import sys
import uuid
from collections import Counter
from enum import Enum
from functools import partial
from typing import Any, NoReturn

import httptools
import orjson
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from services.core.errors import FoveaError, InvalidRequest, Overloaded, TooLarge, is_out_of_memory, no_memory
from services.core.exchange import WHOLE_BODY_KEY, client_network
from services.core.http.error_responses import error_headers
from services.core.metrics import Metrics

# Far more than browsers and proxies send; a URL may hold a thousand short captions.
MAX_HEAD_BYTES = 128 * 1024
# The parser has 16 bits for offsets in a URL.
MAX_URL_BYTES = 2**16 - 1

Headers = list[tuple[bytes, bytes]]


class Body(Enum):
    """The framing of the body that follows a head, if any."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"


class UrlTooLong(TooLarge):
    status = 414


class HeadTooLarge(TooLarge):
    status = 431


def head_too_large() -> FoveaError:
    return HeadTooLarge(f"The request's head is too large; the limit is {MAX_HEAD_BYTES} bytes.")


def check_size(method: bytes, url: bytes, headers: Headers) -> int:
    """Return the usual size of a head in bytes. Raises HeadTooLarge, and UrlTooLong where the URL alone is too long."""
    line_bytes = len(method) + len(url) + len(b"  HTTP/1.1\r\n")
    num_bytes = line_bytes + len(b": \r\n") * len(headers) + len(b"\r\n")
    for name, value in headers:
        num_bytes += len(name) + len(value)
    if num_bytes > MAX_HEAD_BYTES:
        raise head_too_large()
    if len(url) > MAX_URL_BYTES:
        raise UrlTooLong(f"The URL has {len(url)} bytes; the limit is {MAX_URL_BYTES}.")
    return num_bytes


def check_head(method: bytes, version: str, headers: Headers, *, is_upgrade: bool) -> Body:
    """Return the framing of the body. Raises FoveaError for a head that two parsers could read differently.

    `headers` have lower-case names. The parser has already refused lines that are folded or end in a bare LF, and
    lengths that are repeated, not digits, or beside a transfer coding.
    """
    if version not in ("1.1", "1.0"):
        raise InvalidRequest(f"HTTP/{version} is not supported; send HTTP/1.1.")
    if method == b"CONNECT":
        raise InvalidRequest("CONNECT is not supported; this server is not a proxy.")
    named = dict(headers)
    num_hosts = 1 if b"host" in named else 0
    if len(named) < len(headers):
        num_hosts = sum(name == b"host" for name, _ in headers)
    body = Body.NONE
    if b"transfer-encoding" in named:
        for name, value in headers:
            if name == b"transfer-encoding":
                _check_transfer_encoding(version, value)
        body = Body.CHUNKED
    elif int(named.get(b"content-length", b"0")) > 0:
        body = Body.LENGTH
    if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
        raise InvalidRequest(f"An HTTP/1.1 request must have exactly one Host header, not {num_hosts}.")
    if is_upgrade and body is not Body.NONE:
        raise InvalidRequest(
            "The request has a body and asks for a connection upgrade, which is not supported. Send it as plain "
            "HTTP/1.1: `curl --http1.1`, in Java "
            "`HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)`.",
            code="upgrade_with_body",
        )
    return body


def to_origin_form(url: bytes, headers: Headers) -> bytes:
    """Return the path and query of an absolute URL, as clients send to a proxy; its host replaces `Host`."""
    parsed = httptools.parse_url(url)
    if not parsed.host:
        return url
    host = b"%b:%d" % (parsed.host, parsed.port) if parsed.port else parsed.host
    headers[:] = [(b"host", host), *(header for header in headers if header[0] != b"host")]
    path = parsed.path or b"/"
    return b"%b?%b" % (path, parsed.query) if parsed.query else path


def _check_transfer_encoding(version: str, value: bytes) -> None:
    if version == "1.0":
        raise InvalidRequest("HTTP/1.0 has no Transfer-Encoding; send Content-Length or HTTP/1.1.")
    if value.strip().lower() != b"chunked":
        raise InvalidRequest(
            f"Transfer-Encoding must be chunked and nothing else, not {str(value[:100], 'latin-1')!r}."
        )


# Seconds from the connection, or from the first byte after the previous request, to the end of the head.
HEAD_TIMEOUT_S = 60.0
# Seconds for which incoming bytes are still read and dropped: closing earlier would reset the connection, and the
# client would lose the answer.
LINGER_S = 1.0
# Pipelined requests that may wait on one connection; each costs far more memory than its bytes.
MAX_PIPELINED = 64
TLS_HANDSHAKE = b"\x16\x03"
# The size in hexadecimal and two line ends; the rest of a chunk's frame is extensions.
CHUNK_FRAME_BYTES = 20
# Chunk extensions and trailers, which are not used.
MAX_UNREAD_BYTES = 16 * 1024


class BoundedHeadProtocol(HttpToolsProtocol):
    """Refuses heads that are too large (431, 414) or ambiguous (400), and then closes the connection.

    The connection is also closed after a request that asks for an upgrade, which is answered as if it did not, and
    after an answer that began before its request's body was complete.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_body = False
        self._is_chunked = False
        # Sizes of the current or last head: all its bytes since it began with a read, and the bytes of its fields. The
        # second leave out white space, the first leave out the read in which the previous request ended.
        self._raw_bytes = 0
        self._field_bytes = 0
        # Sizes of its body, with chunk frames counted at their usual size, and of the fields after it.
        self._body_bytes = 0
        self._trailer_bytes = 0
        self._num_completed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        # Why the parser was stopped, which is answered after all previous requests.
        self._fault: FoveaError | None = None
        self._refusal: FoveaError | None = None
        self._is_input_over = False
        self._was_input_dropped = False
        self._lingers = False
        self._begins_tls = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn narrows it
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        if self._running is not None and not self._running.response_complete:
            # uvicorn notifies only the last request that was read.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self._is_input_over:
            # No more of a head is parsed than it may have, so that one over the limit is detected however it is split.
            piece = data if self._in_body else data[: MAX_HEAD_BYTES - self._raw_bytes]
            data = data[len(piece) :]
            self._parse(piece)
        if data:
            self._was_input_dropped = True

    def _parse(self, piece: bytes) -> None:
        self._begins_tls = not self._raw_bytes and piece.startswith(TLS_HANDSHAKE)
        num_completed = self._num_completed
        super().data_received(piece)
        if self._is_input_over:
            return
        self._raw_bytes = self._raw_bytes + len(piece) if self._num_completed == num_completed else 0
        if self._in_body:
            if self._is_chunked and self._raw_bytes - self._field_bytes - self._body_bytes > MAX_UNREAD_BYTES:
                self._refuse(_too_much_unread())
        elif self._raw_bytes >= MAX_HEAD_BYTES:
            self._refuse(head_too_large())
        elif self._timer is None and (self._in_head or self._raw_bytes):
            self._expect_head()

    def on_message_begin(self) -> None:
        if self._is_input_over:
            raise InvalidRequest("Nothing more is read from this connection.")
        super().on_message_begin()
        self._in_head = True
        self._body_bytes = 0
        self._trailer_bytes = 0
        self._is_chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        # A field after the body is dropped: it must not pass for one of the head, which has been checked already.
        self._trailer_bytes += len(name) + len(value) + len(b": \r\n")
        if self._trailer_bytes > MAX_UNREAD_BYTES:
            self._stop(_too_much_unread())

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_timer()
        method, version = self.parser.get_method(), self.parser.get_http_version()
        is_upgrade = self.parser.should_upgrade()
        try:
            self._field_bytes = check_size(method, self.url, self.headers)
            body = check_head(method, version, self.headers, is_upgrade=is_upgrade)
        except FoveaError as fault:
            self._stop(fault)
        self._is_chunked = body is Body.CHUNKED
        if not self.url.startswith(b"/"):
            self.url = to_origin_form(self.url, self.headers)
        # RFC 9110, 10.1.1: it is not expected without a body, and HTTP/1.0 does not know it.
        self.expect_100_continue = self.expect_100_continue and body is not Body.NONE and version == "1.1"
        super().on_headers_complete()
        self._in_body = True

    def on_chunk_header(self) -> None:
        self._body_bytes += CHUNK_FRAME_BYTES

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._num_completed += 1
        is_over = self.parser.should_upgrade() or not self.parser.should_keep_alive()
        if is_over or len(self.pipeline) >= MAX_PIPELINED:
            # The parser would take any bytes after an upgrade for a request; bytes after `Connection: close`, also in a
            # trailer, it would skip.
            self.cycle.keep_alive = False
        if not self.cycle.keep_alive:
            self._is_input_over = True

    def on_response_complete(self) -> None:
        if self._lingers:
            self.server_state.total_requests += 1
            self._linger()
            return
        super().on_response_complete()
        if self._refusal is not None and not self._is_answering():
            self._write_refusal(self._refusal)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser refuses; uvicorn calls this."""
        if self._is_input_over:
            return
        # Where a callback of ours raised, the parser's error has that exception as its context.
        error = sys.exception()
        if error is not None and error.__context__ is not None and is_out_of_memory(error.__context__):
            self._refuse(no_memory())
        else:
            self._refuse(self._fault or InvalidRequest(self._parsing_fault(error)))

    def _parsing_fault(self, error: BaseException | None) -> str:
        if self._begins_tls:
            return "This port speaks plain HTTP, but the request used TLS: use http:// instead of https://."
        if isinstance(error, httptools.HttpParserInvalidURLError):
            return "The request is not valid HTTP/1.1: its URL must be percent-encoded."
        return f"The request is not valid HTTP/1.1: {error}."

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing: a request for an upgrade is not worth a warning."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, partial(self._answer, cycle, app))

    async def _answer(
        self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope[WHOLE_BODY_KEY] = not cycle.more_body
        is_old = scope["http_version"] == "1.0"

        async def send_and_close(message: Message) -> None:
            if cycle.more_body and not cycle.response_started:
                # The rest of the body must not be taken for a request, here or by a proxy in between.
                cycle.keep_alive = False
            if is_old:
                _leave_unchunked(cycle, message)
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and not cycle.keep_alive and (cycle.more_body or self._was_input_dropped):
                # uvicorn would close at once, with bytes still in transit.
                cycle.keep_alive = self._lingers = True
            await send(message)

        await app(scope, receive, send_and_close)

    def _stop(self, fault: FoveaError) -> NoReturn:
        """Stop the parser from a callback: it wraps the error, and uvicorn parses no further."""
        self._fault = fault
        raise fault

    def _is_answering(self) -> bool:
        return self._running is not None and not (self._running.response_complete or self._running.disconnected)

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, error: FoveaError) -> None:
        """Answer the request that is being read with an error, after the previous ones are answered."""
        self._is_input_over = True
        self._cancel_timer()
        if self._in_body:
            faulty = self.cycle
            if faulty.response_started:
                self.transport.close()
                return
            # The application sees its client gone, or is not called at all.
            faulty.disconnected = True
            faulty.message_event.set()
            if self.pipeline and self.pipeline[0][0] is faulty:
                self.pipeline.popleft()
        if self._is_answering():
            self._refusal = error
        else:
            self._write_refusal(error)

    def _write_refusal(self, error: FoveaError) -> None:
        if self.transport.is_closing():
            return
        body = orjson.dumps(error.body())
        # The headers that the middleware would add to a request that reached it.
        own = [(b"x-request-id", str(uuid.uuid4()).encode("ascii")), (b"connection", b"close")]
        lines = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in [*error_headers(error, body), *own])]
        self.transport.write(b"".join(lines) + b"\r\n" + body)
        self._linger()

    def _linger(self) -> None:
        self._is_input_over = True
        for cycle in (self.cycle, self._running):
            if cycle is not None:
                cycle.waiting_for_100_continue = False  # uvicorn would write it after the end of what is written
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)


def _leave_unchunked(cycle: RequestResponseCycle, message: Message) -> None:
    """Let a body of unknown length end where the connection does: HTTP/1.0 knows no chunks, which uvicorn writes."""
    if message["type"] == "http.response.start":
        if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
            cycle.chunked_encoding = False
    else:
        cycle.expected_content_length = max(cycle.expected_content_length, len(message.get("body", b"")))


def _too_much_unread() -> FoveaError:
    return TooLarge(f"The body's chunk extensions and trailers exceed {MAX_UNREAD_BYTES} bytes.")


# Descriptors for listeners, files of models and stores, caches, threads' pipes.
RESERVED_DESCRIPTORS = 128
# Refused connections that are being answered at a time; further ones are closed without an answer.
MAX_REFUSALS = 64
REPORT_EVERY_S = 60.0

log = structlog.get_logger("fovea.connections")


def most_connections(wanted: int, descriptors: int) -> int:
    """Return the number wanted, or as many as leave each a second descriptor for what it asks; at least one."""
    return max(1, min(wanted, (descriptors - RESERVED_DESCRIPTORS) // 2))


class ConnectionLimits:
    """The open connections of one process. At most `most` in all, and `client_share` of them of one client.

    Where there is no room, the connection that has been idle for longest is closed, the same client's where it is the
    client's own share that is used up. Where none is idle, the new one is refused.
    """

    def __init__(self, most: int, client_share: float, metrics: Metrics) -> None:
        self.most = most
        self.most_per_client = max(1, int(most * client_share))
        self.num_refusals = 0
        self._rejected = metrics.rejected.labels("connections")
        self._clients: dict[LimitedProtocol, str] = {}
        self._num_of_client: Counter[str] = Counter()
        # Connections without a request in progress, idle for longest first.
        self._idle: dict[LimitedProtocol, None] = {}
        self._reported_at_s = -math.inf

    def admit(self, connection: "LimitedProtocol", client: str) -> bool:
        """Count a new connection; False where there is no room for it."""
        if self._num_of_client[client] >= self.most_per_client:
            has_room = self._close_idle(client)
        else:
            has_room = len(self._clients) < self.most or self._close_idle()
        if not has_room:
            self._report(connection, client)
            return False
        self._clients[connection] = client
        self._num_of_client[client] += 1
        self._idle[connection] = None
        return True

    def forget(self, connection: "LimitedProtocol") -> None:
        """Stop counting a connection that is closed, or about to be."""
        self._idle.pop(connection, None)
        client = self._clients.pop(connection, None)
        if client is None:
            return
        self._num_of_client[client] -= 1
        if not self._num_of_client[client]:
            del self._num_of_client[client]

    def mark_busy(self, connection: "LimitedProtocol") -> None:
        self._idle.pop(connection, None)

    def mark_idle(self, connection: "LimitedProtocol") -> None:
        if connection in self._clients:
            self._idle[connection] = None

    def _close_idle(self, client: str | None = None) -> bool:
        for connection in self._idle:
            if client is None or self._clients[connection] == client:
                self.forget(connection)
                connection.transport.close()
                return True
        return False

    def _report(self, connection: "LimitedProtocol", client: str) -> None:
        self._rejected.inc()
        now_s = connection.loop.time()
        if now_s - self._reported_at_s >= REPORT_EVERY_S:
            self._reported_at_s = now_s
            log.warning(
                "connections_refused", open=len(self._clients), client=client, of_client=self._num_of_client[client]
            )


class LimitedProtocol(BoundedHeadProtocol):
    """HTTP on a connection that `limits` admits; others are answered 503 and closed."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._has_refusal = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        client = client_network(self.client[0]) if self.client else "unknown"
        if self._limits.admit(self, client):
            return
        if self._limits.num_refusals >= MAX_REFUSALS:
            self.transport.abort()
            return
        self._limits.num_refusals += 1
        self._has_refusal = True
        self._refuse(Overloaded("This server has reached its limit of open connections.", code="too_many_connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.forget(self)
        if self._has_refusal:
            self._limits.num_refusals -= 1
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._limits.mark_busy(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._limits.mark_idle(self)
