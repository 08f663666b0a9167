"""The one thread of a process that computes, so that no two batches ever share the device.

Calls run one after the other, in the order in which they were posted: users that post one call at a time take turns
fairly. The thread sleeps in the kernel while there is nothing to do.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import structlog

from services.core.errors import Overloaded
from services.core.metrics import Metrics
from services.core.thread_priority import step_back

T = TypeVar("T")


class Waiting(Protocol):
    """An object whose work waits for the compute thread."""

    @property
    def queue_depth(self) -> int: ...
    @property
    def queue_cost(self) -> int: ...
    @property
    def oldest_queued_s(self) -> float: ...

    def thread_ended(self) -> None:
        """Called once, on the thread as it ends: nothing that still waits for it will be computed."""


class ComputeThread:
    """Runs calls one at a time. `start` it once; it keeps the process from ending until `close`.

    `heartbeat` is the Unix time, in seconds, at which a call last began or ended. It and `stalled_for_s` are read
    without a lock, so a probe is answered whatever the thread does.
    """

    def __init__(self, name: str = "compute") -> None:
        self.name = name
        self.heartbeat = time.time()
        self.waiting: tuple[Waiting, ...] = ()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._busy_since: float | None = None
        self._is_open = False
        self._has_ended = False
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

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call; returns what it returns and raises what it raises. Cancelled before its turn, it never runs.

        Raises Overloaded where the thread does not run, or ends before it has answered.
        """
        if not self._is_open:
            raise _no_thread()
        answer: Future[T] = Future()

        def call_and_answer() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        self.post(call_and_answer)
        if self._has_ended:  # between the check above and now
            self._refuse_unanswered()
        return await asyncio.wrap_future(answer)

    def post(self, call: Callable[[], None]) -> None:
        """Run a call without waiting for it. It must handle its own errors: what it raises ends the thread."""
        self._calls.put(call)

    def attach(self, waiting: Waiting) -> None:
        """Notify the object when the thread ends."""
        self.waiting = (*self.waiting, waiting)

    def detach(self, waiting: Waiting) -> None:
        self.waiting = tuple(other for other in self.waiting if other is not waiting)

    def publish_load(self, metrics: Metrics) -> None:
        """Let the gauges show, whenever they are read, this thread's heartbeat and everything that waits for it."""
        metrics.queue_depth.set_function(lambda: sum(waiting.queue_depth for waiting in self.waiting))
        metrics.queue_cost.set_function(lambda: sum(waiting.queue_cost for waiting in self.waiting))
        metrics.oldest_queued_seconds.set_function(
            lambda: max((waiting.oldest_queued_s for waiting in self.waiting), default=0.0)
        )
        metrics.worker_heartbeat_timestamp_seconds.set_function(lambda: self.heartbeat)

    async def close(self) -> None:
        """Refuse new calls, finish those posted before, end the thread; returns when it has ended."""
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
            self._has_ended = True
            self._refuse_unanswered()
            for waiting in self.waiting:
                waiting.thread_ended()
            self._ended.set_result(None)

    def _refuse_unanswered(self) -> None:
        # Two threads may be here: a set hands each answer to one of them.
        while self._unanswered:
            with suppress(KeyError):
                answer = self._unanswered.pop()
                if answer.running() or answer.set_running_or_notify_cancel():
                    answer.set_exception(_no_thread())


def _no_thread() -> Overloaded:
    return Overloaded("The service cannot process requests any more: its compute thread has ended.")
