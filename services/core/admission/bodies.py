"""Limits on request bodies before they are parsed: their pace, their size, the number of JSON values in one, and the
memory of all together.
"""

import asyncio
import time
import zlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.admission.json_scan import JsonScan
from services.core.errors import BodyTimeout, InvalidRequest, Overloaded, TooLarge, UnsupportedMediaType
from services.core.exchange import WHOLE_BODY_KEY, announces_body, forget_headers, header_of
from services.core.fair_gate import FairGate, Permit
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings, variable_of


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


PIECE_BYTES = 64 * 1024
GZIP_WINDOW = 16 + zlib.MAX_WBITS
FRAMING = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


class BodyLimit:
    """Refuse a body of over `max_body_bytes`: by its announced length, by the bytes that arrive and, of one with
    `Content-Encoding: gzip`, by those that it decompresses to. Other encodings are refused.

    What is further in sees a decompressed body as a plain one of unknown length. No more is decompressed at a time than
    a piece, and nothing beyond the limit, so that a small body that would grow very large costs neither its memory nor
    its time.

    Starlette's own limit answers in plain text, even in place of a response made further in, so it cannot carry the
    error envelope.
    """

    def __init__(self, app: ASGIApp, settings: ProcessSettings, metrics: Metrics) -> None:
        self.app = app
        self.max_body_bytes = settings.max_body_bytes
        self.setting = variable_of(type(settings), "max_body_bytes")
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not announces_body(scope):
            await self.app(scope, receive, send)
            return
        announced = header_of(scope, b"content-length") or ""
        if announced.isdecimal():  # the server passes on no more
            self.check(int(announced), f"has {announced} bytes")
        else:
            receive = self._counted(receive)
        name = (header_of(scope, b"content-encoding") or "identity").strip().lower()
        if name in ("gzip", "x-gzip"):
            plain = [header for header in scope["headers"] if header[0] not in FRAMING]
            scope["headers"] = [*plain, (b"transfer-encoding", b"chunked")]
            forget_headers(scope)
            receive = _Decompressed(self, receive).receive
        elif name != "identity":
            raise UnsupportedMediaType(f"Content-Encoding: {name[:100]!r} is not read; send gzip or no encoding.")
        await self.app(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            self.check(received, f"has at least {received} bytes")
            return message

        return receive_counted

    def check(self, num_bytes: int, told: str) -> None:
        """Raises TooLarge for more bytes than a body may have."""
        if num_bytes > self.max_body_bytes:
            self.metrics.rejected.labels("too_large").inc()
            raise TooLarge(
                f"The request body {told}; the limit is {self.max_body_bytes} ({self.setting}).", code="body_too_large"
            )


class _Decompressed:
    """The receiving side of one compressed body."""

    def __init__(self, owner: BodyLimit, receive: Receive) -> None:
        self._owner = owner
        self._receive = receive
        self._inflate = zlib.decompressobj(GZIP_WINDOW)
        self._input = b""
        self._has_more = True
        self._is_over = False
        self._num_bytes = 0

    async def receive(self) -> Message:
        """Return the next piece. Raises InvalidRequest for what is no gzip, TooLarge beyond the limit."""
        while not self._is_over:
            if piece := self._next_piece():
                # so that other requests have a turn between the pieces of one that came in a few bytes
                await asyncio.sleep(0)
                return {"type": "http.request", "body": piece, "more_body": True}
            if not self._has_more:
                self._is_over = True
                if not self._inflate.eof:
                    raise InvalidRequest("The body is not valid gzip: it is truncated.")
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._input, self._has_more = message.get("body", b""), message.get("more_body", False)
        return await self._receive()

    def _next_piece(self) -> bytes:
        if self._inflate.eof:
            if self._input or self._inflate.unused_data:
                raise InvalidRequest("The body is not valid gzip: something follows its end.")
            return b""
        try:
            piece = self._inflate.decompress(self._input, PIECE_BYTES)
        except zlib.error:
            raise InvalidRequest("The body is not valid gzip.") from None
        self._input = self._inflate.unconsumed_tail
        self._num_bytes += len(piece)
        self._owner.check(self._num_bytes, f"decompresses to at least {self._num_bytes} bytes")
        return piece


# Bodies up to this size are not counted against the budget, and hold too few values to take long to parse.
FREE_BODY_BYTES = 256 * 1024
# Photographs, and batches of small ones: they don't wait behind bodies that are larger.
MEDIUM_BODY_BYTES = 8 * 1024 * 1024
# Budget of the medium ones, beside that of the large ones and as a share of it.
MEDIUM_SHARE = 0.5


class BodyBudget:
    """Hold bodies until they are answered, and count the values of JSON while it is read.

    Large ones are held within `max_held_bytes` in sum, medium ones within half of that.

    A body of unknown length counts as `max_body_bytes` once it is not small any more. Raises TooLarge, and Overloaded
    where as many bytes of the client wait as may be held.
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, max_held_bytes: int, max_json_values: int, metrics: Metrics
    ) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.max_json_values = max_json_values
        self._rejected = metrics.rejected
        self._large = self._gate(max_held_bytes)
        self._medium = self._gate(int(MEDIUM_SHARE * max_held_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = header_of(scope, b"content-length") or ""
        length = int(announced) if announced.isdecimal() else None
        is_chunked = header_of(scope, b"transfer-encoding") is not None
        if not is_chunked and (length or 0) <= min(FREE_BODY_BYTES, self.max_json_values):
            await self.app(scope, receive, send)
            return
        scan = JsonScan(self.max_json_values) if _is_json(scope) else None
        body = _CountedBody(self, receive, None if is_chunked else length, scan)
        try:
            await self.app(scope, body.receive, send)
        finally:
            body.let_go()

    def gate_for(self, num_bytes: int) -> FairGate:
        """Return the gate of the budget that a body of this size counts against."""
        return self._medium if num_bytes <= MEDIUM_BODY_BYTES else self._large

    def refusal(self, scan: JsonScan) -> TooLarge:
        """The error for a body with too many values."""
        self._rejected.labels("too_large").inc()
        return scan.refusal()

    def _gate(self, capacity: int) -> FairGate:
        return FairGate(capacity, max_waiting_of_client=capacity, refusal=self._refusal)

    def _refusal(self) -> Overloaded:
        self._rejected.labels("bodies_full").inc()
        return Overloaded("Too many large request bodies are waiting to be read.", code="bodies_full")


class _CountedBody:
    """The receiving side of one request whose body may be large."""

    def __init__(self, owner: BodyBudget, receive: Receive, length: int | None, scan: JsonScan | None) -> None:
        self._owner = owner
        self._receive = receive
        self._length = length
        self._num_received = 0
        self._has_more = True
        self._scan = scan
        self._held: tuple[FairGate, Permit] | None = None

    async def receive(self) -> Message:
        """Return the next message. Waits for the budget before the first byte, or before the body stops being small."""
        if self._has_more and self._held is None and (self._length or self._num_received) > FREE_BODY_BYTES:
            await self._hold(self._length or self._owner.max_body_bytes)
        message = await self._receive()
        piece: bytes = message.get("body", b"")
        self._has_more = message.get("more_body", False)
        self._num_received += len(piece)
        if self._scan is not None:
            self._scan.feed(piece)
            if self._scan.is_over:
                raise self._owner.refusal(self._scan)
        return message

    def let_go(self) -> None:
        if self._held is not None:
            gate, permit = self._held
            gate.give_back(permit)

    async def _hold(self, num_bytes: int) -> None:
        gate = self._owner.gate_for(num_bytes)
        self._held = gate, await gate.take(min(num_bytes, gate.capacity))


def _is_json(scope: Scope) -> bool:
    content_type = header_of(scope, b"content-type")
    return content_type is None or "json" in content_type.lower()
