"""Items answered by vLLM, in place of the own engine's `Stepper`: vLLM batches, this bounds what it is sent.

At most `max_running` items are at vLLM at a time; others wait at a fair gate, where clients take turns, and new guides
at another. vLLM is asked every few seconds whether it runs: while it does not, nothing is accepted, and what runs ends
with an error instead of waiting.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import structlog

from services.core.batching.step_queue import Event
from services.core.batching.stepper import StepLimits
from services.core.errors import DeadlineExceeded, FoveaError, InternalError, InvalidRequest, Overloaded
from services.core.exchange import current_caller
from services.core.fair_gate import FairGate
from services.core.metrics import Metrics
from services.core.store.errors import StoreUnavailable
from services.generate.generation.input_processor import Item
from services.generate.generation.ranking import ItemResult, Ranking
from services.generate.vllm.client import RETRY_AFTER_S, Gone, Unavailable, VllmClient
from services.generate.vllm.engine import VllmEngine
from services.generate.vllm.guides import GuideTurns, blamed

PROBE_S = 2.0
# What runs is given up once vLLM has not answered for so long.
GIVE_UP_S = 30.0


class VllmStepper:
    """Answers items with one engine. Create it on the event loop that submits."""

    def __init__(self, engine: VllmEngine, *, limits: StepLimits, max_running: int, metrics: Metrics) -> None:
        self._engine = engine
        self._limits = limits
        self._metrics = metrics
        self._session = engine.address.connect()
        self._client = VllmClient(engine.address, self._session)
        self._answering = engine.answering(self._client)
        self._gate = FairGate(max_running)
        self._guides = GuideTurns()
        self._waiting: dict[object, tuple[int, float]] = {}  # cost and beginning of each item that waits at the gate
        self._running: set[asyncio.Task[None]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._is_closing = False
        self._watch = asyncio.create_task(self._watching())
        metrics.queue_depth.set_function(lambda: len(self._waiting))
        metrics.queue_cost.set_function(lambda: self._waiting_cost)
        metrics.oldest_queued_seconds.set_function(self._oldest_queued_s)
        metrics.room_demand_ratio.set_function(lambda: len(self._running) / max_running)

    @property
    def is_alive(self) -> bool:
        """Whether it can ever answer again; `VllmEngine.trouble` tells whether it can now."""
        return True

    def check_wait(self, deadline: float | None = None) -> None:
        """Raises Overloaded while vLLM does not answer, and for a deadline that has passed."""
        if self._is_draining:
            raise self._refusal("The service is shutting down.", "draining")
        if self._engine.trouble is not None:
            self._metrics.rejected.labels("broken").inc()
            raise Unavailable("The model's server does not answer.")
        if deadline is not None and time.monotonic() >= deadline:
            raise self._refusal("The request would wait longer than its deadline.", "queue_full")

    async def submit(
        self, item: Item, *, cost: int, deadline: float | None = None
    ) -> AsyncGenerator[Event[ItemResult], None]:
        """Yield an item's events; close the generator to end its requests to vLLM.

        Raises Overloaded where nothing is accepted, Unavailable where vLLM fails, DeadlineExceeded at `deadline` (a
        reading of `time.monotonic()`), and the errors of the item.
        """
        self.check_wait(deadline)
        is_too_much = self._waiting and self._waiting_cost + cost > self._limits.max_queue_cost
        if is_too_much or len(self._waiting) >= self._limits.max_queue_size:
            raise self._refusal("Too many requests are waiting.", "queue_full")
        outbox: asyncio.Queue[Event[ItemResult] | FoveaError] = asyncio.Queue()
        task = asyncio.create_task(self._run(item, cost, current_caller().tenant, outbox))
        self._enter(task)
        try:
            is_last = False
            while not is_last:
                event = await _next(outbox, deadline)
                is_last = event.is_last
                yield event
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def drain(self) -> None:
        """Refuse new items and return when those taken before have ended."""
        self._is_draining = True
        await self._is_idle.wait()

    async def close(self) -> None:
        """Refuse new items, fail those that wait, and return when those that had begun have ended."""
        self._is_closing = True
        await self.drain()
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        await self._session.close()

    def _refusal(self, message: str, code: str) -> Overloaded:
        self._metrics.rejected.labels(code).inc()
        return Overloaded(message, code=code, retry_after_s=RETRY_AFTER_S)

    def _enter(self, task: "asyncio.Task[None]") -> None:
        self._running.add(task)
        self._is_idle.clear()
        task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not self._running:
            self._is_idle.set()

    async def _run(
        self, item: Item, cost: int, tenant: str, outbox: "asyncio.Queue[Event[ItemResult] | FoveaError]"
    ) -> None:
        """Put an item's events into its outbox, and the error that ends them."""
        began, guides = time.monotonic(), getattr(item, "for_vllm", {})
        try:
            async with self._let_in(cost, guides) as compiled:
                queue_s = time.monotonic() - began
                self._metrics.stage_seconds.labels("queue").observe(queue_s)
                async with aclosing(self._answering.run(item, tenant)) as outcomes:
                    async for outcome in outcomes:
                        compiled()
                        is_last = isinstance(outcome, Ranking) or outcome.finish_reason is not None
                        outbox.put_nowait(Event(outcome, is_last, queue_s, time.monotonic() - began))
            self._metrics.stage_seconds.labels("infer").observe(time.monotonic() - began - queue_s)
        except FoveaError as error:
            if isinstance(error, Gone):
                self._engine.trouble = self._engine.trouble or error.message
            if isinstance(error, InvalidRequest):
                error.param = error.param or blamed(guides, error.message)
            outbox.put_nowait(error)
        except asyncio.CancelledError:
            # of a reader that has gone, or because vLLM has been given up
            outbox.put_nowait(Unavailable("The model's server has stopped answering."))
            raise
        except Exception:  # noqa: BLE001 - every item gets its answer
            structlog.get_logger(__name__).exception("answer by vLLM failed")
            outbox.put_nowait(InternalError("The service failed before it answered this request."))

    @asynccontextmanager
    async def _let_in(self, cost: int, guides: Mapping[str, Any]) -> AsyncIterator[Callable[[], None]]:
        """Wait for a permit, and hold it until the block ends, which calls what it is given once vLLM has begun.

        Raises Overloaded if the service stops meanwhile.
        """
        async with AsyncExitStack() as stack:
            key = object()
            self._waiting[key] = cost, time.monotonic()
            try:
                compiled = await stack.enter_async_context(self._guides.turn(guides))
                await stack.enter_async_context(self._gate.holding())
            finally:
                del self._waiting[key]
            self._metrics.running_items.inc()
            stack.callback(self._metrics.running_items.dec)
            if self._is_closing:
                raise Overloaded("The service stopped before it processed this request.")
            yield compiled

    @property
    def _waiting_cost(self) -> int:
        return sum(cost for cost, _ in self._waiting.values())

    def _oldest_queued_s(self) -> float:
        began = next(iter(self._waiting.values()), None)
        return 0.0 if began is None else time.monotonic() - began[1]

    async def _watching(self) -> None:
        """Keep the engine's `trouble`; after vLLM was gone, it may serve another model, so that is compared again."""
        seen_at = time.monotonic()
        while True:
            await asyncio.sleep(PROBE_S)
            trouble = await self._trouble()
            if trouble != self._engine.trouble:
                structlog.get_logger(__name__).warning("vLLM", model=self._engine.model, trouble=trouble)
            self._engine.trouble = trouble
            if trouble is None:
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > GIVE_UP_S:
                for task in tuple(self._running):
                    task.cancel()

    async def _trouble(self) -> str | None:
        try:
            await self._client.probe()
            if self._engine.trouble is not None:
                await self._engine.check(self._client)
        except FoveaError as error:
            return error.message
        except StoreUnavailable as error:
            return str(error)
        return None


async def _next(outbox: "asyncio.Queue[Event[ItemResult] | FoveaError]", deadline: float | None) -> Event[ItemResult]:
    remaining = None if deadline is None or deadline == math.inf else deadline - time.monotonic()
    try:
        came = await asyncio.wait_for(outbox.get(), remaining)
    except TimeoutError:
        raise DeadlineExceeded("The deadline passed before the answer was complete.") from None
    if isinstance(came, FoveaError):
        raise came
    return came
