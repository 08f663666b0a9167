"""Continuous batching on the compute thread: items join and leave a running batch at every step.

An item is answered by a stream of events. At each turn of the compute thread items that are no longer wanted are
dropped, waiting ones are admitted while there is room, clients in turn, and the engine makes one step for all running
ones; of long preparations that items need before their steps, it does a bounded piece. Each turn queues behind other
calls that wait for the thread. There is no timer and no polling, so an idle Stepper costs nothing.

Calls and their streams belong to the event loop, the running batch to the compute thread; between them is the queue.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import structlog

from services.core.batching.batch_runner import CostBudget
from services.core.batching.batcher import FIRST_RETRY_AFTER_S, MAX_RETRY_AFTER_S
from services.core.batching.compute_thread import ComputeThread
from services.core.batching.step_queue import Call, StepQueue, Stream, Work
from services.core.batching.step_runner import Outcome, SteppingEngine, StepRunner
from services.core.caller import current_caller
from services.core.errors import DeadlineExceeded, FoveaError, InternalError, Overloaded, is_out_of_memory
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


class Stepper(Generic[ItemT, EventT]):
    """Answers items with one engine. Create it on the event loop that submits; several may share a compute thread.

    `is_out_of_memory` recognises the errors of `admit` that fewer items may avoid.
    """

    def __init__(
        self,
        engine: SteppingEngine[ItemT, EventT],
        *,
        thread: ComputeThread,
        limits: StepLimits,
        metrics: Metrics,
        is_out_of_memory: Callable[[BaseException], bool] = is_out_of_memory,
    ) -> None:
        self._thread = thread
        self._limits = limits
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._outstanding: dict[int, Call[EventT]] = {}  # by the identity of their items
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._is_broken = False
        self._queue: StepQueue[ItemT, EventT] = StepQueue()
        self._runner = StepRunner(engine, self._queue, CostBudget(limits.max_admit_cost), metrics, is_out_of_memory)
        thread.attach(self)
        thread.publish_load(metrics)

    @property
    def is_alive(self) -> bool:
        """Whether what is submitted can be answered: false for good once the thread or the delivery has failed."""
        return self._thread.is_alive and not self._is_broken

    @property
    def queue_depth(self) -> int:
        """The number of items that wait for a place."""
        return len(self._queue)

    @property
    def queue_cost(self) -> int:
        """The cost of the items that wait for a place."""
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
            raise self._refusal("The request would wait longer than its deadline.", wait_s)
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
        if id(item) in self._outstanding:
            raise ValueError("the item is being answered already")
        self._refuse_if_closed()
        client = current_caller().client
        self._make_place(client, cost)
        call: Call[EventT] = Call(deadline)
        call.work = Work(item, cost, call, client)
        self._outstanding[id(item)] = call
        self._is_idle.clear()
        if call.deadline < math.inf:
            call.timer = self._loop.call_later(call.deadline - time.monotonic(), self._expire, call)
        if self._queue.add(call.work):
            self._thread.post(self._take_turn)
        return Stream(call, partial(self._withdraw, reason="cancelled"), self._metrics)

    async def drain(self) -> None:
        """Refuse new items and return when those taken before have ended."""
        self._is_draining = True
        await self._is_idle.wait()

    async def close(self) -> None:
        """Refuse new items, fail those that wait with Overloaded, and return when those that had begun have ended."""
        self._is_draining = True
        for work in self._queue.clear():
            self._end(work.call, Overloaded("The service stopped before it processed this request."), "failed")
        await self.drain()
        self._thread.detach(self)

    def thread_ended(self) -> None:
        self._on_loop(self._break_down)

    # On the event loop

    def _refuse_if_closed(self) -> None:
        if not self.is_alive:
            self._metrics.rejected.labels("broken").inc()
            raise Overloaded("The service cannot process requests until it is restarted.")
        if self._is_draining:
            self._metrics.rejected.labels("draining").inc()
            raise Overloaded("The service is shutting down.", code="draining")

    def _make_place(self, client: str, cost: int) -> None:
        leaving = self._queue.in_the_way(client, cost, self._limits.max_queue_cost, self._limits.max_queue_size)
        rate = self._runner.throughput.cost_per_s
        wait_s = self._queue.cost / rate if rate else FIRST_RETRY_AFTER_S
        if leaving is None:
            raise self._refusal("Too many requests are waiting.", wait_s)
        for work in leaving:
            self._end(work.call, self._refusal("Too many requests of this client are waiting.", wait_s), "displaced")

    def _refusal(self, message: str, wait_s: float) -> Overloaded:
        self._metrics.rejected.labels("queue_full").inc()
        return Overloaded(message, code="queue_full", retry_after_s=min(MAX_RETRY_AFTER_S, wait_s))

    def _expire(self, call: Call[EventT]) -> None:
        self._end(call, DeadlineExceeded("The deadline passed before the answer was complete."), "deadline")

    def _deliver(self, outcomes: Sequence[Outcome[ItemT, EventT]]) -> None:
        try:
            for work, outcome in outcomes:
                if work.call.is_settled:
                    continue
                if isinstance(outcome, FoveaError):
                    self._end(work.call, outcome, "failed")
                    continue
                work.call.outbox.put_nowait(outcome)
                if outcome.is_last:
                    self._metrics.stage_seconds.labels("queue").observe(outcome.queue_s)
                    self._metrics.stage_seconds.labels("infer").observe(outcome.elapsed_s - outcome.queue_s)
                    self._settle(work.call)
        except Exception:  # noqa: BLE001 - the delivering half of the loop: no stream may be left without its end
            structlog.get_logger(__name__).critical("delivery failed", exc_info=True)
            self._break_down()

    def _end(self, call: Call[EventT], error: FoveaError, reason: str) -> None:
        if not call.is_settled:
            self._withdraw(call, reason=reason)
            call.outbox.put_nowait(error)

    def _withdraw(self, call: Call[EventT], *, reason: str) -> None:
        if call.is_settled:
            return
        assert call.work is not None, "a call that is not settled has its work"
        was_waiting = self._queue.discard(call.work)
        self._settle(call)  # if it runs, the next turn finds it so
        if was_waiting:
            self._metrics.dropped_items.labels(reason).inc()

    def _settle(self, call: Call[EventT]) -> None:
        call.is_settled = True
        if call.timer is not None:
            call.timer.cancel()  # which also drops its reference to the call
        assert call.work is not None, "a call that is not settled has its work"
        del self._outstanding[id(call.work.item)]
        call.work = None
        if not self._outstanding:
            self._is_idle.set()

    def _break_down(self) -> None:
        self._is_broken = True
        running = self._runner.running.copy()  # at once: the compute thread goes on
        # Items of the batch that broke it must not be told to try again elsewhere.
        suspects = {work.call for work in running.values()}
        for call in tuple(self._outstanding.values()):
            error = InternalError if call in suspects else Overloaded
            self._end(call, error("The service failed before it answered this request."), "failed")

    # On the compute thread

    def _take_turn(self) -> None:
        for outcomes in self._runner.take_turn():
            if outcomes:
                self._on_loop(partial(self._deliver, outcomes))
        if self._queue.leave(will_return=self._runner.must_return):
            self._thread.post(self._take_turn)  # behind the turns of others

    def _on_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # a closed loop has no readers left
            self._loop.call_soon_threadsafe(call)
