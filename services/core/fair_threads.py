"""Threads for the work that requests need beside their batches; clients take turns for them."""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from services.core.fair_gate import FairGate
from services.core.thread_priority import step_back

T = TypeVar("T")


class FairThreads:
    """Runs pieces of work on `num_threads` threads, in the order of a `FairGate`. Used on one event loop.

    The pieces at work have amounts of up to `capacity` in sum, by default one for each thread. `refusal` and
    `max_waiting_of_client` are as in `FairGate`. The threads have the compute thread's priority, so that they leave it
    its share of the processor.
    """

    def __init__(
        self,
        num_threads: int,
        name: str,
        *,
        capacity: int | None = None,
        max_waiting_of_client: float = math.inf,
        refusal: Callable[[], Exception] | None = None,
    ) -> None:
        self._threads = ThreadPoolExecutor(num_threads, name, initializer=step_back)
        self.gate = FairGate(capacity or num_threads, max_waiting_of_client=max_waiting_of_client, refusal=refusal)

    async def run(self, work: Callable[[], T], amount: int = 1) -> T:
        """Run `work` on a thread, with the caller's context variables.

        Cancelled while it waits, it never begins; once begun it keeps its amount to the end. Raises what `work` and
        `FairGate.take` raise.
        """
        permit = await self.gate.take(amount)
        return await self.start(work, partial(self.gate.give_back, permit))

    def start(self, work: Callable[[], T], ended: Callable[[], None]) -> "asyncio.Future[T]":
        """Run `work` on a thread whatever the gate, and then `ended` on the event loop."""
        loop = asyncio.get_running_loop()
        try:
            running = self._threads.submit(copy_context().run, work)
        except RuntimeError:  # the process is about to end
            ended()
            raise

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(ended)

        running.add_done_callback(end)
        return asyncio.wrap_future(running)

    def close(self) -> None:
        """End the threads once they are done; what waits for one is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
