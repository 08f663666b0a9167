"""HTTP/1.1 as uvicorn speaks it, strict where a request could be read in two ways, and with bounds on its head.

The application sees a request when its head is whole; until then nothing else limits its size or its time. Answers
leave in the order of their requests, refusals included, and a connection whose next bytes are in doubt is closed.
"""

import asyncio
import sys
import uuid
from functools import partial
from typing import Any, NoReturn

import httptools
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from services.core.errors import FoveaError, InvalidRequest, TooLarge, is_out_of_memory, no_memory
from services.core.exchange import WHOLE_BODY_KEY
from services.core.http.error_responses import error_headers
from services.core.http.request_heads import (
    MAX_HEAD_BYTES,
    Body,
    check_head,
    check_size,
    head_too_large,
    to_origin_form,
)

# From the connection, or from the first byte after the request before, to the end of the head.
HEAD_TIMEOUT_S = 60.0
# What is still under way is read and dropped for so long: a connection closed on it is reset, the answer unread.
LINGER_S = 1.0
# Requests that wait on one connection for those before them; each costs far more memory than its bytes.
MAX_PIPELINED = 64
TLS_HANDSHAKE = b"\x16\x03"
# The size in hexadecimal and two line ends; what a chunk has besides is extensions.
CHUNK_FRAME_BYTES = 20
# Chunk extensions and trailers, which nobody reads.
MAX_UNREAD_BYTES = 16 * 1024


class BoundedHeadProtocol(HttpToolsProtocol):
    """Refuses what is too large (431, 414) or can be read in two ways (400), and ends the connection with it.

    The connection ends also after a request that asks for an upgrade, which gets its answer as if it did not, and
    after an answer that began before its request's body was whole.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_body = False
        self._is_chunked = False
        # Of the head that is being read or was read last: all bytes where it began with a read, and those of its
        # fields. The second miss white space, the first miss the read in which the request before it ended.
        self._raw_bytes = 0
        self._field_bytes = 0
        # Of its body, chunk frames counted at their usual size; and of the fields after it.
        self._body_bytes = 0
        self._trailer_bytes = 0
        self._num_completed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        # Why the parser was stopped, and what is answered once all requests before are.
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
            # uvicorn tells only the last request that was read.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self._is_input_over:
            # Of a head no more is read than it may have, so that one over the limit is seen however it is cut.
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
        # A field after the body is dropped: it must not pass for one of the head, which others have looked at.
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
        # RFC 9110, 10.1.1: nobody waits for it without a body, and HTTP/1.0 does not know it.
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
            # What follows an upgrade the parser would take for a request, whatever it is; what follows
            # `Connection: close`, also in a trailer, it would pass over.
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
        """What uvicorn calls for whatever its parser refuses."""
        if self._is_input_over:
            return
        # The parser's error stands for whatever a call of ours raised, which is then its context.
        error = sys.exception()
        if error is not None and error.__context__ is not None and is_out_of_memory(error.__context__):
            self._refuse(no_memory())
        else:
            self._refuse(self._fault or InvalidRequest(self._parsing_fault(error)))

    def _parsing_fault(self, error: BaseException | None) -> str:
        if self._begins_tls:
            return "This port speaks plain HTTP, and the request came by TLS: write http:// in place of https://."
        if isinstance(error, httptools.HttpParserInvalidURLError):
            return "The request is not valid HTTP/1.1: its URL must be percent-encoded."
        return f"The request is not valid HTTP/1.1: {error}."

    def _unsupported_upgrade_warning(self) -> None:
        """A request that asks for an upgrade is nothing to warn of."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, partial(self._answer, cycle, app))

    async def _answer(
        self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope[WHOLE_BODY_KEY] = not cycle.more_body

        async def send_and_close(message: Message) -> None:
            if cycle.more_body and not cycle.response_started:
                # What comes of the body later must not be taken for a request, here or by a proxy in between.
                cycle.keep_alive = False
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and not cycle.keep_alive and (cycle.more_body or self._was_input_dropped):
                # uvicorn would close at once, on bytes that are under way.
                cycle.keep_alive = self._lingers = True
            await send(message)

        await app(scope, receive, send_and_close)

    def _stop(self, fault: FoveaError) -> NoReturn:
        """End the parsing that calls from within: the parser makes the error its own, and uvicorn goes no further."""
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
        """Answer the request that is being read with an error, when those before it are answered."""
        self._is_input_over = True
        self._cancel_timer()
        if self._in_body:
            faulty = self.cycle
            if faulty.response_started:
                self.transport.close()
                return
            # The application finds its client gone, or is not asked at all.
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
        # What the middleware would add, had the request come so far.
        own = [(b"x-request-id", str(uuid.uuid4()).encode("ascii")), (b"connection", b"close")]
        lines = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in [*error_headers(error, body), *own])]
        self.transport.write(b"".join(lines) + b"\r\n" + body)
        self._linger()

    def _linger(self) -> None:
        self._is_input_over = True
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)


def _too_much_unread() -> FoveaError:
    return TooLarge(f"The body's chunk extensions and trailers have over {MAX_UNREAD_BYTES} bytes.")
