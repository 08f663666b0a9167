"""What a Batcher and a Stepper have in common: whom they refuse and why, how they drain, and how they break down."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

import structlog

from services.core.batching.compute_thread import ComputeThread
from services.core.errors import DeadlineExceeded, FoveaError, InternalError, Overloaded
from services.core.metrics import Metrics

# Bounds of what a refused client is told to wait, in seconds: the time in which the queue empties, but at most the
# first; the second before anything was measured.
MAX_RETRY_AFTER_S = 30.0
FIRST_RETRY_AFTER_S = 1.0


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

    def thread_ended(self) -> None:
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
