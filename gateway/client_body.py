"""The body of a request, read whole before the request is sent to a service.

A client that sends slowly then costs the gateway memory for what it has sent, and no permit at a service; and the
request that is sent on has a known length, and can be sent again.
"""

from io import BytesIO

from starlette.types import Receive, Scope

from gateway.settings import GatewaySettings
from services.core.errors import InvalidRequest, Overloaded
from services.core.exchange import announces_body
from services.core.fair_gate import FairGate, Permit
from services.core.metrics import Metrics

# Bodies up to this size are not counted: nearly all are smaller, and the limit on connections bounds them.
UNCOUNTED_BYTES = 256 * 1024
# The share of the memory for long bodies that one client may take.
CLIENT_SHARE = 0.5


class BodyMemory:
    """The gate of the bytes of long bodies held at a time, in all and per client; always enough for one body."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self.max_bytes = max(settings.max_held_body_bytes, settings.max_body_bytes)
        self.max_client_bytes = max(int(CLIENT_SHARE * self.max_bytes), settings.max_body_bytes)
        self._refused = metrics.rejected.labels("body_memory_full")
        self.gate = FairGate(self.max_bytes, max_waiting=0, refusal=self._refusal)
        metrics.gateway_held_body_bytes.set_function(lambda: self.gate.taken)

    async def take(self, client: str, num_bytes: int) -> Permit:
        """Hold bytes for a client. Raises Overloaded where there is no room."""
        return await self.gate.take(num_bytes, {("body", client): self.max_client_bytes})

    def _refusal(self) -> Overloaded:
        self._refused.inc()
        return Overloaded(
            f"The gateway has reached its limit of memory for long bodies: {self.max_bytes} bytes of all clients "
            f"(FOVEA_GATEWAY_MAX_HELD_BODY_BYTES), {self.max_client_bytes} of one.",
            code="body_memory_full",
        )


class ClientBody:
    """One body as it comes in, and the memory that it takes until it is released."""

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self._held: list[Permit] = []
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
            await self._count(len(chunk))
            return chunk
        buffer = BytesIO(chunk)
        buffer.seek(len(chunk))
        while has_more:
            chunk, has_more = await _read_chunk(receive)
            buffer.write(chunk)
            await self._count(buffer.tell())
        return buffer.getvalue()

    def release(self) -> None:
        """Give back the memory."""
        self._content = None
        while self._held:
            self._memory.gate.give_back(self._held.pop())

    async def _count(self, num_bytes: int) -> None:
        if num_bytes > max(UNCOUNTED_BYTES, self._num_counted):
            self._held.append(await self._memory.take(self._client, num_bytes - self._num_counted))
            self._num_counted = num_bytes


async def _read_chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece, and whether more follow."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise InvalidRequest("The client closed the connection before the end of the request body.")
    return message.get("body", b""), message.get("more_body", False)
