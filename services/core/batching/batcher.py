"""Dynamic batching on the compute thread: items of many requests in one batch, each request answered on its own.

A batch is cut on the compute thread as soon as it is free: there is no timer, no polling, and no wait for the event
loop between two batches. For an engine that can collate a batch without the device (`CollatingEngine`) the next full
batch is cut and collated on another thread while one runs.

Requests belong to the event loop, the running batch to the compute thread. Between them are the queue and the
prepared batch, under one lock that is never held while anything is computed.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from services.core.batching.batches import BatchQueue, BatchRunner, Computed, CostBudget, Failed, QueuedItem, Request
from services.core.batching.compute_thread import ComputeThread, Intake, drain_s
from services.core.errors import DeadlineExceeded, is_out_of_memory
from services.core.exchange import current_caller
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True)
class BatchLimits:
    """Limits in the engine's own unit of cost (e.g. tokens): the padded cost of a batch, and the cost of the queue."""

    max_batch_cost: int
    max_batch_size: int
    max_queue_cost: int


class Engine(Protocol[ItemT_contra, ResultT_co]):
    """The engine that a Batcher runs, on the compute thread only."""

    def run_batch(self, items: Sequence[ItemT_contra]) -> Sequence[ResultT_co]:
        """Return one result for each item, in order. Of its errors clients are shown FoveaErrors only."""


@runtime_checkable
class CollatingEngine(Engine[ItemT_contra, ResultT_co], Protocol[ItemT_contra, ResultT_co]):
    """An engine part of whose work needs no device: `run_batch(items)` equals `run_collated(collate(items))`."""

    def collate(self, items: Sequence[ItemT_contra]) -> Any:
        """Prepare a batch; called on a thread of its own, while another batch runs."""

    def run_collated(self, batch: Any) -> Sequence[ResultT_co]:
        """Return one result for each collated item, in order; called on the compute thread."""


@dataclass(frozen=True)
class Submission(Generic[ItemT]):
    """One item: its cost alone, at least 1 (else ValueError), and the length by which items are grouped."""

    item: ItemT
    cost: int
    length: int

    def __post_init__(self) -> None:
        if self.cost < 1:
            raise ValueError(f"cost is {self.cost}: an item without a cost would bypass every limit")


class Answer(NamedTuple, Generic[ResultT]):
    """One item's result, the seconds until its batch began, and the seconds from then until it was computed."""

    result: ResultT
    queue_s: float
    infer_s: float


@dataclass(frozen=True)
class _PreparedBatch(Generic[ItemT]):
    """A batch that was cut before its turn; `collated` holds what the engine collated from all its items."""

    items: list[QueuedItem[ItemT]]
    collated: Future[Any]


class Batcher(Intake[Request[Answer[ResultT]]], Generic[ItemT, ResultT]):
    """Answers items with one engine. Create it on the event loop that submits; several may share a compute thread.

    `is_out_of_memory` recognises the errors that a smaller batch may avoid.
    """

    expired_message = "The deadline passed before the request was computed."

    def __init__(
        self,
        engine: Engine[ItemT, ResultT],
        *,
        thread: ComputeThread,
        limits: BatchLimits,
        metrics: Metrics,
        is_out_of_memory: Callable[[BaseException], bool] = is_out_of_memory,
    ) -> None:
        super().__init__(thread, metrics)
        self._limits = limits
        self._queue_seconds = metrics.stage_seconds.labels("queue")
        self._infer_seconds = metrics.stage_seconds.labels("infer")

        self._lock = threading.Lock()
        self._queue: BatchQueue[ItemT] = BatchQueue(limits.max_batch_size)
        self._prepared: _PreparedBatch[ItemT] | None = None
        self._has_turn = False  # whether the compute thread was asked for a turn that it has not ended yet

        budget = CostBudget(limits.max_batch_cost)
        self._runner: BatchRunner[ItemT, ResultT] = BatchRunner(engine.run_batch, budget, metrics, is_out_of_memory)
        self._running: list[QueuedItem[ItemT]] = []
        self._collating = engine if isinstance(engine, CollatingEngine) else None
        self._collators = ThreadPoolExecutor(1, f"{thread.name}-collate")  # starts no thread before its first use

    @property
    def queue_depth(self) -> int:
        """The number of waiting items, those of a prepared batch included."""
        with self._lock:
            return len(self._queue) + (len(self._prepared.items) if self._prepared else 0)

    @property
    def clients(self) -> Collection[str]:
        return self._queue.clients

    @property
    def queue_cost(self) -> int:
        """The cost of the waiting items, without padding."""
        with self._lock:
            return self._queue.cost + (sum(item.cost for item in self._prepared.items) if self._prepared else 0)

    @property
    def oldest_queued_s(self) -> float:
        """Seconds that the oldest waiting item has waited, 0 if none waits."""
        with self._lock:
            waiting = list(self._prepared.items) if self._prepared else []
            if (oldest := self._queue.oldest()) is not None:
                waiting.append(oldest)
        return max((time.monotonic() - item.request.queued_at for item in waiting), default=0.0)

    @property
    def is_shared(self) -> bool:
        """Whether several clients are active, so that one must leave the others their turns."""
        return self._thread.is_shared(time.monotonic())

    async def submit(
        self, submissions: Sequence[Submission[ItemT]], *, deadline: float | None = None
    ) -> list[Answer[ResultT]]:
        """Answer all items, in order. They enter the queue together or not at all, and fail together.

        Cancelling takes what is not yet running out of the queue. Raises Overloaded at once where the queue is full,
        draining or broken, DeadlineExceeded at `deadline` (a reading of `time.monotonic()`), and InternalError or
        the engine's own FoveaError for an item that could not be computed. Items that together cost more than the
        whole queue may hold are taken only by an empty one.
        """
        if not submissions:
            return []
        request = self._admit(submissions, math.inf if deadline is None else deadline)
        try:
            return await request.future
        except DeadlineExceeded:
            self._metrics.cancelled.labels("deadline").inc()
            raise
        finally:
            self._withdraw(request, "cancelled")

    async def close(self) -> None:
        """Refuse new requests, fail those in the queue with Overloaded, and return when those that run are answered.

        A batch whose requests were all given up may still be running then.
        """
        with self._lock:
            waiting = self._queue.clear() + (self._prepared.items if self._prepared else [])
            self._prepared = None
        await self._close(item.request for item in waiting)
        self._collators.shutdown(wait=False)

    # On the event loop

    def _admit(self, submissions: Sequence[Submission[ItemT]], deadline: float) -> Request[Answer[ResultT]]:
        self._refuse_if_closed()
        request: Request[Answer[ResultT]] = Request(
            self._loop.create_future(), len(submissions), deadline, current_caller().client
        )
        cost = 0
        for index, submission in enumerate(submissions):
            cost += submission.cost
            request.items.append(QueuedItem(submission.item, submission.cost, submission.length, request, index))
        with self._lock:
            is_admitted = self._queue.cost == 0 or self._has_room(request, cost)
            if is_admitted:
                self._thread.note_client(request.client, request.queued_at)
                self._queue.add(request, cost)
                self._ask_for_turn()
        if not is_admitted:
            with self._lock:
                others = self._queue.in_the_way(request.client, cost, self._limits.max_queue_cost)
                wait_s = drain_s(self._queue.cost, self._runner.cost_per_s)
            self._displace(others, wait_s)
            return self._admit(submissions, deadline)
        self._accept(request)
        return request

    def _has_room(self, request: Request[Answer[ResultT]], cost: int) -> bool:
        """Raises Overloaded where what is queued before it takes too long for the deadline."""
        if self._queue.cost + cost > self._limits.max_queue_cost:
            return False
        if request.deadline < math.inf:
            self._check_deadline(request, cost)
        return True

    def _check_deadline(self, request: Request[Answer[ResultT]], cost: int) -> None:
        s_per_cost = self._runner.times.s_per_cost_in(self._batch_cost(request.queued_at))
        if request.queued_at + (self._queue.cost + cost) * s_per_cost <= request.deadline:
            return
        ahead = self._queue.cost_ahead(request.client, cost)
        expected_s = (ahead + cost) * s_per_cost
        if request.queued_at + expected_s > request.deadline:
            message = f"The expected wait is about {expected_s:.1f} s, which is longer than the request's deadline."
            wait_s = drain_s(self._queue.cost, self._runner.cost_per_s)
            raise self._refusal(message, wait_s, "deadline_too_near")

    def _deliver(self, outcome: Computed[ItemT, ResultT] | Failed[ItemT]) -> None:
        with self._delivering():
            if isinstance(outcome, Failed):
                for item in outcome.items:
                    self._fail(item.request, outcome.error_for_client())
            else:
                self._answer(outcome)

    def _answer(self, batch: Computed[ItemT, ResultT]) -> None:
        self._metrics.batch_size.observe(len(batch.items))
        self._metrics.batch_cost.observe(batch.cost)
        self._metrics.batch_padding_ratio.observe(1 - sum(item.cost for item in batch.items) / batch.cost)
        infer_s = batch.ended - batch.began
        for item, result in zip(batch.items, batch.results, strict=True):
            request = item.request
            if request.is_settled:
                continue
            queue_s = batch.began - request.queued_at
            request.answers[item.index] = Answer(result, queue_s, infer_s)
            request.num_missing -= 1
            if not request.num_missing:
                self._queue_seconds.observe(queue_s)
                self._infer_seconds.observe(infer_s)
                self._settle(request)
                if not request.future.done():
                    request.future.set_result(request.answers)

    def _discard(self, request: Request[Answer[ResultT]]) -> int:
        with self._lock:
            return sum(self._queue.discard(item) for item in request.items)

    def _running_requests(self) -> Collection[Request[Answer[ResultT]]]:
        return {item.request for item in self._running}

    # On either side, with the lock held

    def _ask_for_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._thread.post(self._take_turn)
        else:
            self._prepare_next()

    def _prepare_next(self) -> None:
        """Cut and collate a full batch ahead of its turn, unless other clients would have to wait for it."""
        if self._collating is None or self._prepared is not None or self._thread.is_shared(time.monotonic()):
            return
        if self._queue.fills_a_batch(self._max_cost) and (items := self._cut()):
            collated = self._collators.submit(self._collating.collate, [item.item for item in items])
            self._prepared = _PreparedBatch(items, collated)

    @property
    def _max_cost(self) -> float:
        return min(self._runner.budget.current, self._runner.times.max_lone_cost)

    def _batch_cost(self, now: float) -> float:
        """Return what a full batch costs now."""
        return min(self._max_cost, self._runner.times.max_shared_cost if self._thread.is_shared(now) else math.inf)

    def _cut(self) -> list[QueuedItem[ItemT]]:
        now, max_cost = time.monotonic(), self._max_cost
        if self._thread.is_shared(now):  # a request that arrives now does not wait for a large batch of another client
            oldest = self._queue.oldest()
            max_cost = min(max_cost, self._runner.times.next_shared_cost(oldest.cost if oldest else 1))
        return self._queue.cut(max_cost, now)

    # On the compute thread

    def _take_turn(self) -> None:
        with self._lock:
            prepared, self._prepared = self._prepared, None
            self._running = prepared.items if prepared else self._cut()
            self._prepare_next()
        if self._running:
            run_prepared = partial(self._run_collated, prepared.collated) if prepared else None
            for outcome in self._runner.run(self._running, run_prepared):
                self._on_loop(partial(self._deliver, outcome))
        with self._lock:
            self._running = []
            self._has_turn = self._prepared is not None or bool(self._queue)
            if self._has_turn:
                self._thread.post(self._take_turn)  # behind the turns of others

    def _run_collated(self, collated: Future[Any]) -> Sequence[ResultT]:
        assert self._collating is not None, "only a collating engine's batches are prepared"
        return self._collating.run_collated(collated.result())


@dataclass(frozen=True)
class Batchers:
    """The batchers of one engine, a field for each kind of item.

    A batch of several kinds would be charged as if all its items were padded to the most costly kind, and a time
    fitted to such batches fits none of them.
    """

    @property
    def is_alive(self) -> bool:
        return all(batcher.is_alive for batcher in self._all)

    async def drain(self) -> None:
        """Refuse new requests and return when all accepted ones are answered."""
        for batcher in self._all:
            await batcher.drain()

    async def close(self) -> None:
        """Refuse new requests, fail waiting ones, and return when nothing is running."""
        for batcher in self._all:
            await batcher.close()

    @property
    def _all(self) -> "list[Batcher[Any, Any]]":
        return [getattr(self, kind.name) for kind in fields(self)]
