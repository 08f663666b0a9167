"""What waits for a batch, and how a batch is cut from it.

The padded cost of a batch is its number of items times the highest cost among them: where a batch is padded, a
short item costs as much as the longest beside it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

# Enough choice to put items of like length together, little enough that cutting takes microseconds.
WINDOW_BATCHES = 4


class Request(Generic[AnswerT]):
    """One submit: its items, and the answers so far. Times are readings of `time.monotonic()`, in seconds.

    The event loop alone writes it; the compute thread reads `is_settled`, which never turns back.
    """

    __slots__ = ("answers", "deadline", "future", "is_settled", "items", "num_missing", "queued_at")

    def __init__(self, future: asyncio.Future[list[AnswerT]], num_items: int, deadline: float) -> None:
        self.future = future
        self.deadline = deadline
        self.queued_at = time.monotonic()
        self.items: list[QueuedItem[Any]] = []
        self.answers: list[AnswerT | None] = [None] * num_items
        self.num_missing = num_items
        self.is_settled = False


class QueuedItem(Generic[ItemT]):
    """One item on its way; `cost` is its own, `length` what it is sorted by, `index` its place in its request."""

    __slots__ = ("cost", "deadline", "index", "item", "length", "request")

    def __init__(self, item: ItemT, cost: int, length: int, request: Request[Any], index: int) -> None:
        self.item = item
        self.cost = cost
        self.length = length
        self.deadline = request.deadline
        self.request = request
        self.index = index

    def is_wanted(self, now: float) -> bool:
        """Whether somebody still waits for it."""
        return self.deadline > now and not self.request.is_settled


def padded_cost(items: Sequence[QueuedItem[Any]]) -> int:
    return len(items) * max(item.cost for item in items)


class BatchQueue(Generic[ItemT]):
    """Items in the order of their arrival; `cost` is the sum of their own costs."""

    def __init__(self, max_batch_size: int) -> None:
        self.cost = 0
        self._max_batch_size = max_batch_size
        # Items leave at its front, when cut, and anywhere, when cancelled; both are cheap in this kind of dict only.
        self._items: OrderedDict[QueuedItem[ItemT], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: QueuedItem[ItemT]) -> None:
        self._items[item] = None
        self.cost += item.cost

    def discard(self, item: QueuedItem[ItemT]) -> bool:
        """Take an item out; False if it was not there."""
        if item not in self._items:
            return False
        self._remove(item)
        return True

    def clear(self) -> list[QueuedItem[ItemT]]:
        """Take all items out."""
        items = list(self._items)
        self._items.clear()
        self.cost = 0
        return items

    def oldest(self) -> QueuedItem[ItemT] | None:
        return next(iter(self._items), None)

    def fills_a_batch(self, max_cost: int) -> bool:
        """Whether a batch cut now has no room for an item that arrives later."""
        return len(self._items) >= self._max_batch_size or self.cost >= max_cost

    def cut(self, max_cost: int, now: float) -> list[QueuedItem[ItemT]]:
        """Take out the next batch: the oldest item with those nearest to it in length, sorted by length.

        It holds as many of the oldest few batches' worth of items as fit under `max_cost` (padded) and the batch
        size; the oldest alone where that alone costs more. Expired items leave the queue too. Empty if none is left.
        """
        window = self._oldest_wanted(now)
        if not window:
            return []
        oldest = window[0]
        window.sort(key=attrgetter("length"))
        batch = self._grow(window, window.index(oldest), max_cost)
        for item in batch:
            self._remove(item)
        return batch

    def _remove(self, item: QueuedItem[ItemT]) -> None:
        del self._items[item]
        self.cost -= item.cost

    def _oldest_wanted(self, now: float) -> list[QueuedItem[ItemT]]:
        while self._items:
            oldest = list(islice(self._items, WINDOW_BATCHES * self._max_batch_size))
            wanted = [item for item in oldest if item.deadline > now]
            if len(wanted) < len(oldest):
                for item in oldest:
                    if item.deadline <= now:
                        self._remove(item)
            if wanted:
                return wanted
        return []

    def _grow(self, window: list[QueuedItem[ItemT]], start: int, max_cost: int) -> list[QueuedItem[ItemT]]:
        """Around one item: first the shorter ones, which add no padding cost to it, then the longer ones."""
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
