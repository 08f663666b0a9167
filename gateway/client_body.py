"""The body of a request, read whole before the request is sent to a service.

A client that sends slowly then costs the gateway memory for what it has sent, and no permit at a service; and the
request that is sent on has a known length, and can be sent again.
"""

from collections import Counter
from io import BytesIO

from starlette.types import Receive, Scope

from gateway.settings import GatewaySettings
from services.core.errors import InvalidRequest, Overloaded
from services.core.exchange import announces_body
from services.core.metrics import Metrics

# Bodies up to this size are not counted: nearly all are smaller, and the limit on connections bounds them.
UNCOUNTED_BYTES = 256 * 1024
# The share of the memory for long bodies that one client may take.
CLIENT_SHARE = 0.5


class BodyMemory:
    """A limit on the bytes of long bodies held at a time, in all and per client; always enough for one body."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self.max_bytes = max(settings.max_held_body_bytes, settings.max_body_bytes)
        self.max_client_bytes = max(int(CLIENT_SHARE * self.max_bytes), settings.max_body_bytes)
        self._held: Counter[str] = Counter()
        self._gauge = metrics.gateway_held_body_bytes
        self._refused = metrics.rejected.labels("body_memory_full")

    def take(self, client: str, num_bytes: int) -> None:
        """Raises Overloaded where there is no room."""
        num_held = self._held[client]
        if num_held + num_bytes > self.max_client_bytes or self._held.total() + num_bytes > self.max_bytes:
            self._refused.inc()
            raise Overloaded(
                f"The gateway has reached its limit of memory for long bodies: {self.max_bytes} bytes of all clients "
                f"(FOVEA_GATEWAY_MAX_HELD_BODY_BYTES), {self.max_client_bytes} of one.",
                code="body_memory_full",
            )
        self._held[client] += num_bytes
        self._gauge.inc(num_bytes)

    def give_back(self, client: str, num_bytes: int) -> None:
        self._held[client] -= num_bytes
        if not self._held[client]:
            del self._held[client]
        self._gauge.dec(num_bytes)


class ClientBody:
    """One body as it comes in, and the memory that it takes until it is released."""

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self._num_counted = 0
        self._content: bytes | None = None

    async def read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the whole body, once; None where none is announced. Raises InvalidRequest where the client leaves before
        its end, Overloaded where there is no room for it."""
        if self._content is None and announces_body(scope):
            self._content = await self._read_whole(receive)
        return self._content

    async def _read_whole(self, receive: Receive) -> bytes:
        chunk, has_more = await _read_chunk(receive)
        if not has_more:
            self._count(len(chunk))
            return chunk
        buffer = BytesIO(chunk)
        buffer.seek(len(chunk))
        while has_more:
            chunk, has_more = await _read_chunk(receive)
            buffer.write(chunk)
            self._count(buffer.tell())
        return buffer.getvalue()

    def release(self) -> None:
        self._content = None
        if self._num_counted:
            self._memory.give_back(self._client, self._num_counted)
            self._num_counted = 0

    def _count(self, num_bytes: int) -> None:
        if num_bytes > UNCOUNTED_BYTES:
            self._memory.take(self._client, num_bytes - self._num_counted)
            self._num_counted = num_bytes


async def _read_chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece, and whether more follow."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise InvalidRequest("The client closed the connection before the end of the request body.")
    return message.get("body", b""), message.get("more_body", False)
