"""The body of a request, taken from the client no faster than the service takes it."""

from collections.abc import AsyncIterator

from starlette.types import Receive

from services.core.errors import FoveaError, InvalidRequest

# A body up to this size is read before it is sent: one write instead of many, and it can be sent again.
REPLAYABLE_BYTES = 256 * 1024


class ClientBody:
    """A body too long, or of unknown length, to be held: each chunk is asked for when the last one was written.

    `failure` is why the client's side ended it early, None otherwise: it reaches the client session wrapped in one
    of the session's own exceptions.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_started = False
        self.failure: FoveaError | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_started = True
        has_more = True
        while has_more:
            try:
                chunk, has_more = await read_chunk(self._receive)
            except FoveaError as failure:
                self.failure = failure
                raise
            if chunk:
                yield chunk


async def read_whole(receive: Receive) -> bytes:
    """A short body in one piece. Raises InvalidRequest where the client leaves before its end."""
    chunk, has_more = await read_chunk(receive)
    if not has_more:
        return chunk
    chunks = [chunk]
    while has_more:
        chunk, has_more = await read_chunk(receive)
        chunks.append(chunk)
    return b"".join(chunks)


async def read_chunk(receive: Receive) -> tuple[bytes, bool]:
    """The next piece, and whether more follow."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise InvalidRequest("The client closed the connection before the end of the request body.")
    return message.get("body", b""), message.get("more_body", False)
