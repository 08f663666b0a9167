"""Continuous batching on the compute thread: items join and leave a running batch at every step.

An item is answered by a stream of events. At each turn of the compute thread items that are no longer wanted are
dropped, waiting ones are admitted while there is room, clients in turn, and the engine makes one step for all running
ones; of long preparations that items need before their steps, it does a bounded piece. Each turn queues behind other
calls that wait for the thread. There is no timer and no polling, so an idle Stepper costs nothing.

Calls and their streams belong to the event loop, the running batch to the compute thread; between them is the queue.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from services.core.batching.batches import CostBudget
from services.core.batching.compute_thread import ComputeThread, Intake, drain_s
from services.core.batching.step_queue import Call, StepQueue, Stream, Work
from services.core.batching.step_runner import Outcome, SteppingEngine, StepRunner
from services.core.errors import FoveaError, is_out_of_memory
from services.core.exchange import current_caller
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")

# This many are accepted however long they would wait: some clients send that many at once.
MIN_IN_FLIGHT = 32


@dataclass(frozen=True)
class StepLimits:
    """Limits in the engine's own unit of cost (e.g. tokens): the cost admitted per turn and the total cost queued.

    `max_wait_s` bounds the expected wait with which a request is still accepted.
    """

    max_admit_cost: int
    max_queue_cost: int
    max_queue_size: int
    max_wait_s: float = math.inf


class Stepper(Intake[Call[EventT]], Generic[ItemT, EventT]):
    """Answers items with one engine. Create it on the event loop that submits; several may share a compute thread.

    `is_out_of_memory` recognises the errors of `admit` that fewer items may avoid.
    """

    expired_message = "The deadline passed before the answer was complete."

    def __init__(
        self,
        engine: SteppingEngine[ItemT, EventT],
        *,
        thread: ComputeThread,
        limits: StepLimits,
        metrics: Metrics,
        is_out_of_memory: Callable[[BaseException], bool] = is_out_of_memory,
    ) -> None:
        super().__init__(thread, metrics)
        self._limits = limits
        self._answering: set[int] = set()  # the identities of the items
        self._queue: StepQueue[ItemT, EventT] = StepQueue()
        self._runner = StepRunner(engine, self._queue, CostBudget(limits.max_admit_cost), metrics, is_out_of_memory)

    @property
    def queue_depth(self) -> int:
        """The number of waiting items."""
        return len(self._queue)

    @property
    def queue_cost(self) -> int:
        """The cost of the waiting items."""
        return self._queue.cost

    @property
    def oldest_queued_s(self) -> float:
        """Seconds that the oldest waiting item has waited, 0 if none waits."""
        return max(0.0, time.monotonic() - self._queue.waits_since())

    def check_wait(self, deadline: float | None = None) -> None:
        """Raises Overloaded where an item that the caller submitted now would wait too long, or past its deadline.

        Costs next to nothing, so that it can be asked before the item is made. `deadline` is as in `submit`.
        """
        self._refuse_if_closed()
        rate = self._runner.full_throughput.cost_per_s
        if not rate or not len(self._queue):
            return
        num_running = len(self._runner.running)
        wait_s = self._queue.cost_ahead(current_caller().client) / rate
        if deadline is not None and time.monotonic() + wait_s >= deadline:
            raise self._refusal("The request would wait longer than its deadline.", wait_s, "deadline_too_near")
        if wait_s > self._limits.max_wait_s and len(self._queue) + num_running > MIN_IN_FLIGHT:
            raise self._refusal("The request would wait too long.", wait_s)

    def submit(self, item: ItemT, *, cost: int, deadline: float | None = None) -> Stream[EventT]:
        """Ask for an item's events, on behalf of the caller; they are computed whether the stream is read or not.

        At `deadline` (a reading of `time.monotonic()`) the item is dropped. Raises Overloaded where the queue is
        draining, broken or full; items of clients that have more waiting are refused in its place. Raises ValueError
        for a cost under 1 and for an item that is still being answered. An item that costs more than the whole queue
        may hold is taken only by an empty one.
        """
        if cost < 1:
            raise ValueError(f"cost is {cost}: an item without a cost would bypass every limit")
        if id(item) in self._answering:
            raise ValueError("the item is being answered already")
        self._refuse_if_closed()
        client = current_caller().client
        others = self._queue.in_the_way(client, cost, self._limits.max_queue_cost, self._limits.max_queue_size)
        wait_s = drain_s(self._queue.cost, self._runner.throughput.cost_per_s)
        self._displace(None if others is None else [work.call for work in others], wait_s)
        call: Call[EventT] = Call(deadline)
        call.work = Work(item, cost, call, client)
        self._answering.add(id(item))
        self._accept(call)
        if self._queue.add(call.work):
            self._thread.post(self._take_turn)
        return Stream(call, partial(self._withdraw, reason="cancelled"), self._metrics)

    async def close(self) -> None:
        """Refuse new items, fail those that wait with Overloaded, and return when those that had begun have ended."""
        await self._close(work.call for work in self._queue.clear())

    # On the event loop

    def _deliver(self, outcomes: Sequence[Outcome[ItemT, EventT]]) -> None:
        with self._delivering():
            for work, outcome in outcomes:
                if work.call.is_settled:
                    continue
                if isinstance(outcome, FoveaError):
                    self._fail(work.call, outcome)
                    continue
                work.call.outbox.put_nowait(outcome)
                if outcome.is_last:
                    self._metrics.stage_seconds.labels("queue").observe(outcome.queue_s)
                    self._metrics.stage_seconds.labels("infer").observe(outcome.elapsed_s - outcome.queue_s)
                    self._settle(work.call)

    def _discard(self, request: Call[EventT]) -> int:
        assert request.work is not None, "a call that is not settled has its work"
        return int(self._queue.discard(request.work))

    def _settle(self, request: Call[EventT]) -> None:
        assert request.work is not None, "a call that is not settled has its work"
        self._answering.discard(id(request.work.item))
        super()._settle(request)

    def _running_requests(self) -> Collection[Call[EventT]]:
        running = self._runner.running.copy()  # at once: the compute thread goes on
        return {work.call for work in running.values()}

    # On the compute thread

    def _take_turn(self) -> None:
        for outcomes in self._runner.take_turn():
            if outcomes:
                self._on_loop(partial(self._deliver, outcomes))
        if self._queue.leave(will_return=self._runner.must_return):
            self._thread.post(self._take_turn)  # behind the turns of others
