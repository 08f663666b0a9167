"""The queue of items that wait for a batch, and the cutting of batches from it.

The padded cost of a batch is its number of items times the highest cost among them: where a batch is padded, a
short item costs as much as the longest beside it.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

from services.core.errors import FoveaError
from services.core.fair_gate import in_the_way

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

# Large enough to find items of similar length, small enough that cutting takes microseconds.
WINDOW_BATCHES = 4
# Seconds for which another client is expected after requests of several clients have arrived.
SHARED_S = 1.0


class Request(Generic[AnswerT]):
    """One submitted request: its items, and the answers so far. Times are readings of `time.monotonic()`, in seconds.

    Only the event loop writes it; the compute thread reads `is_settled`, which never becomes false again.
    """

    __slots__ = ("answers", "client", "deadline", "future", "is_settled", "items", "num_missing", "queued_at", "timer")

    def __init__(self, future: asyncio.Future[list[AnswerT]], num_items: int, deadline: float, client: str) -> None:
        self.future = future
        self.client = client
        self.deadline = deadline
        self.queued_at = time.monotonic()
        self.items: list[QueuedItem[Any]] = []
        self.answers: list[AnswerT | None] = [None] * num_items
        self.num_missing = num_items
        self.is_settled = False
        self.timer: asyncio.TimerHandle | None = None  # of the deadline

    def fail(self, error: FoveaError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def forget(self) -> None:
        self.items.clear()  # they refer to it: a cycle would wait for the garbage collector, images and all


class QueuedItem(Generic[ItemT]):
    """One queued item; `cost` is without padding, `length` its sort key, `index` its position in the request."""

    __slots__ = ("cost", "deadline", "index", "item", "length", "request")

    def __init__(self, item: ItemT, cost: int, length: int, request: Request[Any], index: int) -> None:
        self.item = item
        self.cost = cost
        self.length = length
        self.deadline = request.deadline
        self.request = request
        self.index = index

    def is_wanted(self, now: float) -> bool:
        """Whether its request still waits for it."""
        return self.deadline > now and not self.request.is_settled


def padded_cost(items: Sequence[QueuedItem[Any]]) -> int:
    return len(items) * max(item.cost for item in items)


class BatchQueue(Generic[ItemT]):
    """Items in the order of their arrival, a queue for each client; `cost` is the sum of their costs without padding.

    With one client, the oldest item is always in the next batch. With several, it is the oldest item of the client that
    was served the least, by cost, and the rest of the batch is chosen likewise: start-time fair queueing (Goyal, Vin
    and Cheng, 1996). A new client starts at the least of those that wait, so that idle clients accumulate no credit.
    """

    def __init__(self, max_batch_size: int) -> None:
        self.cost = 0
        self._max_batch_size = max_batch_size
        self._newest_client = ""
        self._shared_until = -math.inf
        # Items leave at the front, when cut, and anywhere, when cancelled; both are cheap in this kind of dict only.
        self._lines: dict[str, OrderedDict[QueuedItem[ItemT], None]] = {}
        # Only while several clients wait: the cost of what each was served.
        self._given: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, request: Request[Any], cost: int) -> None:
        """Add the items of a request; `cost` is the sum of theirs."""
        client = request.client
        if client != self._newest_client:
            if self._newest_client:
                self._shared_until = request.queued_at + SHARED_S
            self._newest_client = client
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = OrderedDict()
        for item in request.items:
            line[item] = None
        self.cost += cost

    def discard(self, item: QueuedItem[ItemT]) -> bool:
        """Take an item out; False if it was not there."""
        line = self._lines.get(item.request.client)
        if line is None or item not in line:
            return False
        self._remove(item)
        return True

    def clear(self) -> list[QueuedItem[ItemT]]:
        """Take all items out."""
        items = [item for line in self._lines.values() for item in line]
        self._lines.clear()
        self.cost = 0
        return items

    def oldest(self) -> QueuedItem[ItemT] | None:
        heads = (next(iter(line)) for line in self._lines.values())
        return min(heads, key=lambda item: item.request.queued_at, default=None)

    def cost_of(self, client: str) -> int:
        """Return the cost of one client's items, without padding."""
        return sum(item.cost for item in self._lines.get(client, ()))

    def cost_ahead(self, client: str, cost: int) -> int:
        """Return the cost computed before a new request of this client; none of the others' shares exceeds its own."""
        num_clients = len(self._lines) + (client not in self._lines)
        return self.cost if num_clients == 1 else min(self.cost, (self.cost_of(client) + cost) * num_clients)

    def in_the_way(self, client: str, cost: int, max_cost: int) -> Sequence[Request[Any]] | None:
        """Return the requests that must leave for one of this client, see `services.core.fair_gate.in_the_way`."""

        def newest(name: str) -> Iterator[tuple[Request[Any], float]]:
            for request, items in groupby(reversed(self._lines[name]), key=attrgetter("request")):
                yield request, sum(item.cost for item in items)

        shares = {name: self.cost_of(name) for name in self._lines}
        return in_the_way(shares, (client, cost), newest, lambda freed, _: self.cost - freed + cost <= max_cost)

    def fills_a_batch(self, max_cost: int) -> bool:
        """Whether a batch cut now has no room for an item that arrives later."""
        return self.cost >= max_cost or len(self) >= self._max_batch_size

    def cut(self, max_cost: int, now: float, max_shared_cost: float = math.inf) -> list[QueuedItem[ItemT]]:
        """Take out the next batch: the item whose turn it is with those nearest to it in length, sorted by length.

        It holds as many of the items next in turn as fit under `max_cost` (padded) and the batch size; the first
        alone where that alone costs more. While several clients are active it costs at most `max_shared_cost`, so
        that a request that arrives now does not wait for a large batch of another client. Expired items leave the
        queue too. Empty if none is left.
        """
        window = self._next_in_turn(now) if len(self._lines) > 1 else self._oldest_wanted(now)
        if not window:
            return []
        first = window[0]
        window.sort(key=attrgetter("length"))
        limit = min(max_cost, max_shared_cost) if now < self._shared_until else max_cost
        batch = self._grow(window, window.index(first), limit)
        if self._given:
            for item in batch:
                self._given[item.request.client] += item.cost
                self._remove(item)
        else:
            self._remove_all(batch)
        return batch

    def _remove_all(self, items: Sequence[QueuedItem[ItemT]]) -> None:
        """Remove many items of one client, faster than `_remove` does one by one: most batches have a single client."""
        client = items[0].request.client
        line = self._lines[client]
        cost = 0
        for item in items:
            del line[item]
            cost += item.cost
        self.cost -= cost
        if not line:
            del self._lines[client]

    def _remove(self, item: QueuedItem[ItemT]) -> None:
        client = item.request.client
        line = self._lines[client]
        del line[item]
        self.cost -= item.cost
        if not line:
            del self._lines[client]

    def _oldest_wanted(self, now: float) -> list[QueuedItem[ItemT]]:
        """Return enough of the only waiting client's oldest items to choose from."""
        self._given.clear()
        while self._lines:
            (line,) = self._lines.values()
            oldest = list(islice(line, WINDOW_BATCHES * self._max_batch_size))
            wanted = [item for item in oldest if item.deadline > now]
            if len(wanted) < len(oldest):
                for item in oldest:
                    if item.deadline <= now:
                        self._remove(item)
            if wanted:
                return wanted
        return []

    def _next_in_turn(self, now: float) -> list[QueuedItem[ItemT]]:
        """Return at most one batch of items, each of the client that was served the least by then.

        No more than one batch, so that choosing similar lengths does not put off one client's items for another's.
        """
        for item in [item for line in self._lines.values() for item in line if item.deadline <= now]:
            self._remove(item)
        known = [self._given[client] for client in self._lines if client in self._given]
        least = min(known, default=0.0)
        self._given = {client: self._given.get(client, least) for client in self._lines}
        turns = [(self._given[client], order, iter(line)) for order, (client, line) in enumerate(self._lines.items())]
        heapify(turns)
        window: list[QueuedItem[ItemT]] = []
        while turns and len(window) < self._max_batch_size:
            given, order, line = turns[0]
            for item in line:
                window.append(item)
                heapreplace(turns, (given + item.cost, order, line))
                break
            else:
                heappop(turns)
        return window

    def _grow(self, window: list[QueuedItem[ItemT]], start: int, max_cost: float) -> list[QueuedItem[ItemT]]:
        """Extend a batch around one item: first by shorter ones, which add no padding to it, then by longer ones."""
        if len(window) <= self._max_batch_size and padded_cost(window) <= max_cost:
            return window
        low, high, highest = start, start + 1, window[start].cost

        def has_room_for(item: QueuedItem[ItemT]) -> bool:
            size = high - low + 1
            return size <= self._max_batch_size and size * max(highest, item.cost) <= max_cost

        while low > 0 and has_room_for(window[low - 1]):
            low -= 1
            highest = max(highest, window[low].cost)
        while high < len(window) and has_room_for(window[high]):
            highest = max(highest, window[high].cost)
            high += 1
        return window[low:high]
