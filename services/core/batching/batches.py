"""The queue of items that wait for a batch, the cutting of batches from it, and their running so that only the items at
fault fail.

The padded cost of a batch is its number of items times the highest cost among them: where a batch is padded, a
short item costs as much as the longest beside it. A batch that raises is run again in halves, down to single items; one
that runs out of memory also lowers what later batches may cost.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, groupby, islice
from operator import attrgetter, mul
from typing import Any, Generic, TypeVar

import structlog

from services.core.errors import FoveaError, InternalError, no_memory
from services.core.fair_gate import in_the_way
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")

# Large enough to find items of similar length, small enough that cutting takes microseconds.
WINDOW_BATCHES = 4
# After running out of memory, each batch that nearly used up the budget raises it by this share of itself.
RECOVERY_SHARE = 1 / 64
# Weight of the newest batch in the measured throughput.
THROUGHPUT_SMOOTHING = 0.2
# The latest batches of about one cost of which the fastest counts.
NUM_LATEST = 9
# Of the batches of several clients, every such one may cost twice as much: what larger ones take would stay unknown.
TRIAL_EVERY = 16
LEAST_S = 1e-6  # of a batch: times are divided by
# Seconds that a batch takes at most while several clients are active, or twice its fixed part where that is longer: a
# request waits for the running batch, and then for its own. A batch whose fixed part takes FIXED_SHARE of its time is
# large enough.
FIXED_SHARE = 0.1
SLICE_S = 0.015
# The same for a client that is alone, whose throughput the limit leaves nearly as it is: another may come.
LONE_BATCH_S = 0.5
LONE_FIXED_SHARE = 0.02


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


def _cost_at_most(line: Iterable[QueuedItem[Any]], limit: float) -> bool:
    """Whether the items of a line cost this at most together, without looking at many more."""
    return all(cost <= limit for cost in accumulate(item.cost for item in line))


def padded_cost(items: Sequence[QueuedItem[Any]]) -> int:
    return len(items) * max(item.cost for item in items)


class BatchQueue(Generic[ItemT]):
    """Items in the order of their arrival, a queue for each client; `cost` is the sum of their costs without padding.

    With one client, the oldest item is always in the next batch. With several, it is the oldest item of the client that
    was served the least, by cost, and the rest of the batch is chosen likewise: start-time fair queueing (Goyal, Vin
    and Cheng, 1996). A new client starts at the least of those that wait, so that idle clients accumulate no credit.
    Clients that have little waiting do not wait for a batch that is filled up with items of one that has much: they
    have up to every second batch to themselves when it is their turn.
    """

    def __init__(self, max_batch_size: int) -> None:
        self.cost = 0
        self._max_batch_size = max_batch_size
        # Items leave at the front, when cut, and anywhere, when cancelled; both are cheap in this kind of dict only.
        self._lines: dict[str, OrderedDict[QueuedItem[ItemT], None]] = {}
        # Only while several clients wait: the cost of what each was served.
        self._given: dict[str, float] = {}
        self._was_small = False  # whether the last batch left out the clients that fill batches alone

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, request: Request[Any], cost: int) -> None:
        """Add the items of a request; `cost` is the sum of theirs."""
        client = request.client
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

    @property
    def clients(self) -> Collection[str]:
        """The clients that wait, whatever other threads do meanwhile."""
        return list(self._lines)

    def fills_a_batch(self, max_cost: float) -> bool:
        """Whether a batch cut now has no room for an item that arrives later."""
        return self.cost >= max_cost or len(self) >= self._max_batch_size

    def cut(self, max_cost: float, now: float) -> list[QueuedItem[ItemT]]:
        """Take out the next batch: the item whose turn it is with those nearest to it in length, sorted by length.

        It holds as many of the items next in turn as fit under `max_cost` (padded) and the batch size; the first
        alone where that alone costs more. Expired items leave the queue too. Empty if none is left.
        """
        window = self._next_in_turn(now, max_cost) if len(self._lines) > 1 else self._oldest_wanted(now)
        if not window:
            return []
        first = window[0]
        window.sort(key=attrgetter("length"))
        batch = self._grow(window, window.index(first), max_cost)
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
        self._was_small = False
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

    def _next_in_turn(self, now: float, max_cost: float) -> list[QueuedItem[ItemT]]:
        """Return at most one batch of items, each of the client that was served the least by then.

        No more than one batch, so that choosing similar lengths does not put off one client's items for another's.
        """
        known = [self._given[client] for client in self._lines if client in self._given]
        least = min(known, default=0.0)
        self._given = {client: self._given.get(client, least) for client in self._lines}
        chosen = self._with_little(max_cost)
        turns = [(self._given[client], order, iter(self._lines[client])) for order, client in enumerate(chosen)]
        heapify(turns)
        window: list[QueuedItem[ItemT]] = []
        expired: list[QueuedItem[ItemT]] = []
        while turns and len(window) < self._max_batch_size:
            given, order, line = turns[0]
            for item in line:
                if item.deadline <= now:
                    expired.append(item)
                    continue
                window.append(item)
                heapreplace(turns, (given + item.cost, order, line))
                break
            else:
                heappop(turns)
        for item in expired:
            self._remove(item)
        return window if window or not self._lines else self._next_in_turn(now, max_cost)

    def _with_little(self, max_cost: float) -> Collection[str]:
        """Return the clients of the next batch: those alone that wait for one item or half a batch, in their turn."""
        small = [client for client, line in self._lines.items() if len(line) == 1 or _cost_at_most(line, max_cost / 2)]
        self._was_small = not self._was_small and min(map(self._given.__getitem__, small), default=math.inf) <= min(
            self._given.values()
        )
        return small if self._was_small else self._lines

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


class CostBudget:
    """The maximum cost of a batch: the limit, or less after the device ran out of memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.current = limit

    def shrink(self, failed_cost: int) -> None:
        """Lower the budget to half of a padded cost that did not fit into memory."""
        self.current = max(1, min(self.current, failed_cost // 2))

    def recover(self, cost: int) -> None:
        """Raise the budget after a batch of this padded cost did fit, if it used most of the budget."""
        if self.current < self.limit and 2 * cost > self.current:
            self.current = min(self.limit, self.current + max(1, int(self.current * RECOVERY_SHARE)))


class BatchTimes:
    """A linear model of batch times: `fixed_s` for each batch, and `s_per_cost` for each unit of padded cost.

    The line is fitted by least squares, relative to the times, to the fastest of the latest batches of about each cost
    (between two powers of two): what else the machine does only makes batches slower. However many batches cost the
    same, what others took is not forgotten. While all had about the same cost, or larger ones take no longer, neither
    is known: both are 0.
    """

    def __init__(self) -> None:
        self.fixed_s = 0.0
        self.s_per_cost = 0.0
        self._latest: dict[int, deque[tuple[int, float]]] = {}
        self._fastest: dict[int, tuple[int, float]] = {}
        self._num_shared = 0

    def add(self, cost: int, seconds: float) -> None:
        alike = cost.bit_length()
        latest = self._latest.setdefault(alike, deque(maxlen=NUM_LATEST))
        latest.append((cost, max(seconds, LEAST_S)))
        self._fastest[alike] = min(latest, key=lambda one: one[1] / one[0])
        costs, times = zip(*sorted(self._fastest.values(), reverse=True), strict=True)
        self._fit(costs, list(accumulate(times, min)))  # one that took longer than a larger one was slowed down

    def _fit(self, costs: Sequence[int], times: Sequence[float]) -> None:
        weights = [1 / seconds**2 for seconds in times]
        mean_cost = sum(map(mul, weights, costs)) / sum(weights)
        mean_s = sum(map(mul, weights, times)) / sum(weights)
        spread = joint = 0.0
        for weight, cost, seconds in zip(weights, costs, times, strict=True):
            spread += weight * (cost - mean_cost) ** 2
            joint += weight * (cost - mean_cost) * (seconds - mean_s)
        if joint <= 0:
            self.fixed_s = self.s_per_cost = 0.0
            return
        # A steeper line would make the fixed time negative.
        self.s_per_cost = min(joint / spread, mean_s / mean_cost)
        self.fixed_s = mean_s - self.s_per_cost * mean_cost

    def s_per_cost_in(self, batch_cost: float) -> float:
        """Return the seconds for a unit of cost in batches that cost `batch_cost`; 0 while nothing is known."""
        return self.s_per_cost + self.fixed_s / max(1, batch_cost)  # no item costs less

    def next_shared_cost(self, item_cost: int) -> float:
        """Return what the next batch of several clients may cost if an item costs `item_cost`."""
        self._num_shared += 1
        if self._num_shared % TRIAL_EVERY == 0:
            return 2 * max(self.max_shared_cost, item_cost)
        return self.max_shared_cost if self.s_per_cost else max(self.max_shared_cost, 2 * item_cost)

    @property
    def max_shared_cost(self) -> float:
        """The cost of the largest batch while several clients are active; infinite before the first batch."""
        if not self.s_per_cost:
            cost, seconds = max(self._fastest.values(), default=(math.inf, SLICE_S))
            return SLICE_S * cost / seconds
        return min(self._cost_within(SLICE_S, 0.5), (1 / FIXED_SHARE - 1) * self.fixed_s / self.s_per_cost)

    @property
    def max_lone_cost(self) -> float:
        """The cost of the largest batch of a client that is alone; infinite while nothing is known."""
        return self._cost_within(LONE_BATCH_S, LONE_FIXED_SHARE) if self.s_per_cost else math.inf

    def _cost_within(self, batch_s: float, fixed_share: float) -> float:
        """Return the cost of a batch that takes `batch_s`, or of a longer one with this share of its time fixed."""
        return max(batch_s - self.fixed_s, (1 / fixed_share - 1) * self.fixed_s) / self.s_per_cost


@dataclass(frozen=True)
class Computed(Generic[ItemT, ResultT]):
    """Items with their results; the whole batch began and these items ended at `time.monotonic()` seconds."""

    items: list[QueuedItem[ItemT]]
    results: list[ResultT]
    began: float
    ended: float

    @property
    def cost(self) -> int:
        return padded_cost(self.items)


@dataclass(frozen=True)
class Failed(Generic[ItemT]):
    """Items without results; `error` is the engine's own error for the client, None if it has none.

    `lacked_memory` is whether they could be computed with more free memory.
    """

    items: list[QueuedItem[ItemT]]
    error: FoveaError | None = None
    is_divisible: bool = True
    lacked_memory: bool = False

    def error_for_client(self) -> FoveaError:
        """Return a new exception at each call: one that is raised twice carries the tracebacks of both."""
        if self.lacked_memory:
            return no_memory()
        return self.error or InternalError("The service failed to compute this input.")


class BatchRunner(Generic[ItemT, ResultT]):
    """Runs batches on the calling thread; knows what a batch may cost, and the throughput.

    Errors for which `is_out_of_memory` is true make it try smaller batches from then on.
    """

    def __init__(
        self,
        run_batch: Callable[[Sequence[ItemT]], Sequence[ResultT]],
        budget: CostBudget,
        metrics: Metrics,
        is_out_of_memory: Callable[[BaseException], bool],
    ) -> None:
        self.budget = budget
        self.cost_per_s = 0.0
        self.times = BatchTimes()
        self._run_batch = run_batch
        self._metrics = metrics
        self._is_out_of_memory = is_out_of_memory
        self._logged_causes: set[str] = set()
        self._log = structlog.get_logger(__name__)
        metrics.batch_cost_budget.set(budget.current)

    def run(
        self, items: list[QueuedItem[ItemT]], run_prepared: Callable[[], Sequence[ResultT]] | None = None
    ) -> Iterator[Computed[ItemT, ResultT] | Failed[ItemT]]:
        """Compute the items, yielding each part as soon as it is known; those no longer wanted are left out.

        `run_prepared` computes exactly these items from what was made ready before; it is used while all of them
        are wanted.
        """
        began = time.monotonic()
        self._logged_causes.clear()
        parts = [items]
        while parts:
            planned = parts.pop()
            now = time.monotonic()
            part = [item for item in planned if item.is_wanted(now)]
            if not part:
                continue
            outcome = self._attempt(part, began, run_prepared if len(part) == len(items) else None)
            if isinstance(outcome, Failed) and outcome.is_divisible and len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                yield outcome

    def _attempt(
        self, part: list[QueuedItem[ItemT]], began: float, run_prepared: Callable[[], Sequence[ResultT]] | None
    ) -> Computed[ItemT, ResultT] | Failed[ItemT]:
        attempted = time.monotonic()
        try:
            results = list(run_prepared() if run_prepared else self._run_batch([item.item for item in part]))
        except FoveaError as error:
            # Its traceback would keep the batch in memory until the client is answered.
            return Failed(part, error.with_traceback(None))
        except Exception as error:  # noqa: BLE001 - the batch loop: whatever an engine raises, its waiters are answered
            self._note_error(part, error)
            return Failed(part, lacked_memory=self._is_out_of_memory(error))
        if len(results) != len(part):
            # Which result belongs to which item is unknown, and would be in smaller batches too.
            self._log.error("wrong number of results", num_items=len(part), num_results=len(results))
            return Failed(part, is_divisible=False)
        ended = time.monotonic()
        self._note_success(part, ended - attempted)
        return Computed(part, results, began, ended)

    def _note_error(self, part: list[QueuedItem[ItemT]], error: Exception) -> None:
        is_out_of_memory = self._is_out_of_memory(error)
        if is_out_of_memory:
            self._metrics.out_of_memory.inc()
            if len(part) > 1:
                self.budget.shrink(padded_cost(part))
                self._metrics.batch_cost_budget.set(self.budget.current)
        cause = repr(error)
        if cause not in self._logged_causes:  # the halves of a batch mostly fail for the same one
            self._logged_causes.add(cause)
            self._log.error(
                "batch failed",
                num_items=len(part),
                is_out_of_memory=is_out_of_memory,
                batch_cost_budget=self.budget.current,
                exc_info=error,
            )

    def _note_success(self, part: list[QueuedItem[ItemT]], seconds: float) -> None:
        if self.budget.current < self.budget.limit:
            self.budget.recover(padded_cost(part))
            self._metrics.batch_cost_budget.set(self.budget.current)
        self.times.add(padded_cost(part), seconds)
        cost_per_s = sum(item.cost for item in part) / max(seconds, 1e-6)
        weight = THROUGHPUT_SMOOTHING if self.cost_per_s else 1.0
        self.cost_per_s += weight * (cost_per_s - self.cost_per_s)
