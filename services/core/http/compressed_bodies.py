"""Bodies compressed with gzip, decompressed piece by piece under the limit of plain ones."""

import asyncio
import zlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from services.core.exchange import announces_body, forget_headers, header_of
from services.core.metrics import Metrics

PIECE_BYTES = 64 * 1024
GZIP_WINDOW = 16 + zlib.MAX_WBITS
FRAMING = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


class GzipBody:
    """Decompress a body of `Content-Encoding: gzip`; what is further in sees a plain body of unknown length.

    No more is decompressed at a time than a piece, and nothing beyond `max_body_bytes`, so that a small body that would
    grow very large costs neither its memory nor its time. Other encodings are refused.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, metrics: Metrics) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = header_of(scope, b"content-encoding") if scope["type"] == "http" else None
        name = (encoding or "identity").strip().lower()
        if name == "identity" or not announces_body(scope):
            await self.app(scope, receive, send)
            return
        if name not in ("gzip", "x-gzip"):
            raise UnsupportedMediaType(f"Content-Encoding: {name[:100]!r} is not read; send gzip or no encoding.")
        plain = [header for header in scope["headers"] if header[0] not in FRAMING]
        scope["headers"] = [*plain, (b"transfer-encoding", b"chunked")]
        forget_headers(scope)
        await self.app(scope, _Decompressed(self, receive).receive, send)

    def check(self, num_bytes: int) -> None:
        """Raises TooLarge for more bytes than a body may have."""
        if num_bytes > self.max_body_bytes:
            self.metrics.rejected.labels("too_large").inc()
            raise TooLarge(
                f"The request body decompresses to over {self.max_body_bytes} bytes, the limit (FOVEA_MAX_BODY_BYTES).",
                code="body_too_large",
            )


class _Decompressed:
    """The receiving side of one compressed body."""

    def __init__(self, owner: GzipBody, receive: Receive) -> None:
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
        self._owner.check(self._num_bytes)
        return piece
