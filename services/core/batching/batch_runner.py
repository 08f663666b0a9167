"""The running of one batch so that only the items at fault fail.

A batch that raises is run again in halves, down to single items; one that runs out of memory also lowers what
later batches may cost.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from services.core.batching.batch_queue import QueuedItem, padded_cost
from services.core.errors import FoveaError, InternalError, no_memory
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# After running out of memory, each batch that nearly used up the budget raises it by this share of itself.
RECOVERY_SHARE = 1 / 64
# Weight of the newest batch in the measured throughput.
THROUGHPUT_SMOOTHING = 0.2
# Weight of a batch in the fitted batch times, relative to that of the next one.
BATCH_MEMORY = 0.98
FIXED_SHARE = 0.1


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

    The line is fitted to the latest batches by least squares, in which each counts a little less than the next one.
    While all batches seen had the same cost, nothing is known: both are 0, and nothing is bounded by them.
    """

    def __init__(self, max_batch_cost: int) -> None:
        self.fixed_s = 0.0
        self.s_per_cost = 0.0
        # Seconds for a unit of cost in full batches.
        self.full_s_per_cost = 0.0
        # The cost of a batch that spends FIXED_SHARE of its time on the fixed part: a larger one takes longer and
        # hardly raises the throughput.
        self.efficient_cost = math.inf
        self._max_batch_cost = max_batch_cost
        self._weight = 0.0
        self._mean_cost = 0.0
        self._mean_s = 0.0
        self._cost_deviation = 0.0  # sums of squares and of products about the means
        self._joint_deviation = 0.0

    def add(self, cost: int, seconds: float) -> None:
        self._weight = self._weight * BATCH_MEMORY + 1
        from_cost, from_s = cost - self._mean_cost, seconds - self._mean_s
        self._mean_cost += from_cost / self._weight
        self._mean_s += from_s / self._weight
        self._cost_deviation = self._cost_deviation * BATCH_MEMORY + from_cost * (cost - self._mean_cost)
        self._joint_deviation = self._joint_deviation * BATCH_MEMORY + from_cost * (seconds - self._mean_s)
        if self._cost_deviation > 0 and self._joint_deviation > 0:
            # A steeper line would make the fixed time negative.
            self.s_per_cost = min(self._joint_deviation / self._cost_deviation, self._mean_s / self._mean_cost)
            self.fixed_s = self._mean_s - self.s_per_cost * self._mean_cost
            self.full_s_per_cost = self.s_per_cost + self.fixed_s / self._max_batch_cost
            self.efficient_cost = (1 / FIXED_SHARE - 1) * self.fixed_s / self.s_per_cost


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
        self.times = BatchTimes(budget.limit)
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
