"""The one thread of a process that computes, so that no two batches ever share the device.

Calls run one after the other, in the order in which they were posted: users that post one call at a time take turns
fairly. The thread sleeps in the kernel while there is nothing to do. A Batcher and a Stepper take requests for it alike
(`Intake`): whom they refuse and why, how they drain, and how they break down.
"""

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import structlog

from services.core.errors import DeadlineExceeded, FoveaError, InternalError, Overloaded
from services.core.metrics import Metrics
from services.core.thread_priority import step_back

# Seconds for which another client is expected after requests of several clients have arrived.
SHARED_S = 1.0

# Bounds of what a refused client is told to wait, in seconds: the time in which the queue empties, but at most the
# first; the second before anything was measured.
MAX_RETRY_AFTER_S = 30.0
FIRST_RETRY_AFTER_S = 1.0


class ComputeThread:
    """Runs calls one at a time. `start` it once; it keeps the process from ending until `close`.

    `heartbeat` is the Unix time, in seconds, at which a call last began or ended. It and `stalled_for_s` are read
    without a lock, so a probe is answered whatever the thread does.
    """

    def __init__(self, name: str = "compute") -> None:
        self.name = name
        self.heartbeat = time.time()
        self.waiting: tuple[Intake[Any], ...] = ()
        self._newest_client = ""
        self._shared_until = -math.inf
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._is_open = False
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name=name)

    def start(self) -> None:
        self._is_open = True
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether a call that is posted now will be run."""
        return self._is_open

    def stalled_for_s(self) -> float:
        """Return the seconds since the running call began, 0 while there is none, infinity if no call will ever run."""
        if not self._is_open:
            return math.inf
        busy_since = self._busy_since
        return 0.0 if busy_since is None else max(0.0, time.monotonic() - busy_since)

    def post(self, call: Callable[[], None]) -> None:
        """Run a call. It must handle its own errors: what it raises ends the thread."""
        self._calls.put(call)

    def attach(self, waiting: "Intake[Any]") -> None:
        """Notify what takes requests for this thread when it ends."""
        self.waiting = (*self.waiting, waiting)

    def detach(self, waiting: "Intake[Any]") -> None:
        self.waiting = tuple(other for other in self.waiting if other is not waiting)

    def note_client(self, client: str, now: float) -> None:
        """Note that a request of this client has arrived."""
        if client != self._newest_client:
            if self._newest_client:
                self._shared_until = now + SHARED_S
            self._newest_client = client

    def is_shared(self, now: float) -> bool:
        """Whether several clients wait for this thread, in any of its queues, or were active recently."""
        return now < self._shared_until or len({one for waiting in self.waiting for one in waiting.clients}) > 1

    def publish_load(self, metrics: Metrics) -> None:
        """Let the gauges show, whenever they are read, this thread's heartbeat and everything that waits for it."""
        metrics.queue_depth.set_function(lambda: sum(waiting.queue_depth for waiting in self.waiting))
        metrics.queue_cost.set_function(lambda: sum(waiting.queue_cost for waiting in self.waiting))
        metrics.oldest_queued_seconds.set_function(
            lambda: max((waiting.oldest_queued_s for waiting in self.waiting), default=0.0)
        )
        metrics.worker_heartbeat_timestamp_seconds.set_function(lambda: self.heartbeat)

    async def close(self) -> None:
        """Finish the calls posted before, and end the thread; returns when it has ended."""
        if self._is_open:
            self._is_open = False
            self._calls.put(None)
        if self._thread.ident is not None:
            await asyncio.shield(asyncio.wrap_future(self._ended))
            self._thread.join()

    def _work(self) -> None:
        step_back()
        try:
            while (call := self._calls.get()) is not None:
                self._busy_since = time.monotonic()
                self.heartbeat = time.time()
                call()
                del call  # while the thread waits for the next one, nothing that this one used stays in memory
                self._busy_since = None
                self.heartbeat = time.time()
        except BaseException:  # noqa: BLE001 - the outermost handler of this thread
            structlog.get_logger(__name__).critical("compute thread died", thread=self.name, exc_info=True)
        finally:
            self._is_open = False
            for waiting in self.waiting:
                waiting.thread_ended()
            self._ended.set_result(None)


def drain_s(cost: float, cost_per_s: float) -> float:
    """Return the seconds in which a queue empties at a throughput, a guess where none was measured."""
    return cost / cost_per_s if cost_per_s else FIRST_RETRY_AFTER_S


class Outstanding(Protocol):
    """A request that was taken and has no answer yet; `is_settled` never becomes false again."""

    deadline: float
    is_settled: bool
    timer: asyncio.TimerHandle | None

    def fail(self, error: FoveaError) -> None:
        """Tell whoever waits for it."""

    def forget(self) -> None:
        """Drop what refers to its items, so that a reference to the request keeps none in memory."""


RequestT = TypeVar("RequestT", bound=Outstanding)


class Intake(ABC, Generic[RequestT]):
    """Takes requests for a compute thread, each of which gets exactly one end. Create it on their event loop."""

    # What a client is told whose deadline passes.
    expired_message: str

    def __init__(self, thread: ComputeThread, metrics: Metrics) -> None:
        self._thread = thread
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._outstanding: set[RequestT] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._is_broken = False
        thread.attach(self)
        thread.publish_load(metrics)

    @property
    @abstractmethod
    def queue_depth(self) -> int:
        """The number of waiting items."""

    @property
    def clients(self) -> Collection[str]:
        """The clients whose requests wait."""
        return ()

    @property
    @abstractmethod
    def queue_cost(self) -> int:
        """The cost of the waiting items, without padding."""

    @property
    @abstractmethod
    def oldest_queued_s(self) -> float:
        """Seconds that the oldest waiting item has waited, 0 if none waits."""

    @abstractmethod
    def _discard(self, request: RequestT) -> int:
        """Take what waits of a request out of the queue; returns the number of its items."""

    @abstractmethod
    def _running_requests(self) -> Collection[RequestT]:
        """Return the requests of which something is being computed."""

    @property
    def is_alive(self) -> bool:
        """Whether what is submitted can be answered: false for good once the thread or the delivery has failed."""
        return self._thread.is_alive and not self._is_broken

    async def drain(self) -> None:
        """Refuse new requests and return when those taken before have ended."""
        self._is_draining = True
        await self._is_idle.wait()

    async def _close(self, waiting: Iterable[RequestT]) -> None:
        """Refuse new requests, fail those that wait with Overloaded, and return when the others have ended."""
        self._is_draining = True
        for request in waiting:
            self._fail(request, Overloaded("The service stopped before it processed this request."))
        await self.drain()
        self._thread.detach(self)

    def thread_ended(self) -> None:
        """Fail what waits; called once, on the thread as it ends."""
        self._on_loop(self._break_down)

    def _refuse_if_closed(self) -> None:
        if not self.is_alive:
            self._metrics.rejected.labels("broken").inc()
            raise Overloaded("The service cannot process requests until it is restarted.")
        if self._is_draining:
            self._metrics.rejected.labels("draining").inc()
            raise Overloaded("The service is shutting down.", code="draining")

    def _refusal(self, message: str, wait_s: float, code: str = "queue_full") -> Overloaded:
        """Count and return the refusal of a request that may come again once the queue has emptied."""
        self._metrics.rejected.labels(code).inc()
        return Overloaded(message, code=code, retry_after_s=min(MAX_RETRY_AFTER_S, wait_s))

    def _displace(self, others: Sequence[RequestT] | None, wait_s: float) -> None:
        """Refuse what is in the way of a request in a full queue. Raises Overloaded where that is itself (None)."""
        if others is None:
            raise self._refusal("Too many requests are waiting.", wait_s)
        for request in others:
            self._fail(request, self._refusal("Too many requests of this client are waiting.", wait_s), "displaced")

    def _accept(self, request: RequestT) -> None:
        self._outstanding.add(request)
        self._is_idle.clear()
        if request.deadline < math.inf:
            request.timer = self._loop.call_later(request.deadline - time.monotonic(), self._expire, request)

    def _expire(self, request: RequestT) -> None:
        self._fail(request, DeadlineExceeded(self.expired_message), "deadline")

    def _fail(self, request: RequestT, error: FoveaError, reason: str = "failed") -> None:
        if not request.is_settled:
            self._withdraw(request, reason)
            request.fail(error)

    def _withdraw(self, request: RequestT, reason: str) -> None:
        if request.is_settled:
            return
        num_dropped = self._discard(request)
        self._settle(request)  # if it runs, the next turn finds it so
        if num_dropped:
            self._metrics.dropped_items.labels(reason).inc(num_dropped)

    def _settle(self, request: RequestT) -> None:
        request.is_settled = True
        if request.timer is not None:
            request.timer.cancel()  # which also drops its reference to the request
        request.forget()
        self._outstanding.discard(request)
        if not self._outstanding:
            self._is_idle.set()

    @contextmanager
    def _delivering(self) -> Iterator[None]:
        """Break down where the block raises: no waiter may be left without an answer."""
        try:
            yield
        except Exception:  # noqa: BLE001 - the delivering half of the loop
            structlog.get_logger(__name__).critical("delivery failed", exc_info=True)
            self._break_down()

    def _break_down(self) -> None:
        self._is_broken = True
        # Requests of the batch that broke it must not be told to try again elsewhere.
        suspects = self._running_requests()
        for request in tuple(self._outstanding):
            error = InternalError if request in suspects else Overloaded
            self._fail(request, error("The service failed before it answered this request."))

    def _on_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # a closed loop has no waiters left
            self._loop.call_soon_threadsafe(call)
