"""Limits on request bodies before they are parsed: the number of JSON values in one, the memory of all together.

Small bodies pass as they come. Of larger ones a process holds a bounded number of bytes at a time; further requests
wait for their turn, with their bodies left on the connection.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.admission.json_scan import JsonScan
from services.core.errors import Overloaded, TooLarge
from services.core.exchange import header_of
from services.core.fair_budget import FairBudget
from services.core.metrics import Metrics

# Bodies up to this size are not counted against the budget, and hold too few values to take long to parse.
FREE_BODY_BYTES = 256 * 1024
# Photographs, and batches of small ones: they don't wait behind bodies that are larger.
MEDIUM_BODY_BYTES = 8 * 1024 * 1024
# Budget of the medium ones, beside that of the large ones and as a share of it.
MEDIUM_SHARE = 0.5


class BodyBudget:
    """Hold bodies within `max_held_bytes`, large ones and half as much of medium ones, until they are answered, and
    count the values of JSON while it is read.

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
        self._large = self._budget(max_held_bytes)
        self._medium = self._budget(int(MEDIUM_SHARE * max_held_bytes))

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

    def budget_for(self, num_bytes: int) -> FairBudget:
        """Return the budget that a body of this size counts against."""
        return self._medium if num_bytes <= MEDIUM_BODY_BYTES else self._large

    def refusal(self, scan: JsonScan) -> TooLarge:
        """The error for a body with too many values."""
        self._rejected.labels("too_large").inc()
        return scan.refusal()

    def _budget(self, capacity: int) -> FairBudget:
        return FairBudget(capacity, max_waiting=capacity, refusal=self._refusal)

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
        self._held: tuple[FairBudget, int] | None = None

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
            budget, amount = self._held
            budget.give_back(amount)

    async def _hold(self, num_bytes: int) -> None:
        budget = self._owner.budget_for(num_bytes)
        amount = min(num_bytes, budget.capacity)
        await budget.take(amount)
        self._held = budget, amount


def _is_json(scope: Scope) -> bool:
    content_type = header_of(scope, b"content-type")
    return content_type is None or "json" in content_type.lower()
