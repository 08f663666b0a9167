"""Turns of the threads that prepare requests, which clients share; long work gives its turn to other clients midway.

Threads can't be stopped, so work asks regularly whether its request was cancelled.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from services.core.exchange import current_caller
from services.core.fair_gate import Permit
from services.core.fair_threads import FairThreads
from services.core.thread_priority import num_cores
from services.generate.prompts.abandonment import Abandoned, checked_by

T = TypeVar("T")

# Threads of which all but those that work are held by work that has given its turn away.
NUM_THREADS = 64


class PreparationTurns:
    """Lets as many threads prepare requests as there are processors, and one more, which no single client may take.

    Create it before the event loop that uses it, or on it.
    """

    def __init__(self, num_processors: int | None = None) -> None:
        self._of_client = min(num_processors or num_cores(), NUM_THREADS // 4)
        self._threads = FairThreads(NUM_THREADS, "prepare", capacity=self._of_client + 1)
        self.gate = self._threads.gate
        self.num_paused = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread at its client's turn. If cancelled, the thread ends it at its next `check_wanted`.

        Raises what the work raises.
        """
        turn = _Turn(self, asyncio.get_running_loop(), await self.take())
        before = checked_by.set(turn.check)
        try:
            running = self._threads.start(work, turn.end)
        finally:
            checked_by.reset(before)
        try:
            return await running
        except asyncio.CancelledError:
            turn.is_abandoned.set()
            raise

    async def take(self) -> Permit:
        """Wait for the turn of the caller's client."""
        return await self.gate.take(1, {("preparing", current_caller().client): self._of_client})


class _Turn:
    """The turn of one request's work, without a permit while other clients have it."""

    def __init__(self, turns: PreparationTurns, loop: asyncio.AbstractEventLoop, permit: Permit) -> None:
        self.is_abandoned = threading.Event()
        self._turns = turns
        self._loop = loop
        self._permit: Permit | None = permit
        self._has_worked = False

    def check(self) -> None:
        """Let other clients that wait go first, if it has worked since its own turn came; call it in the thread.

        Raises Abandoned where the request was cancelled.
        """
        if not self._has_worked:
            self._has_worked = True
        elif self._turns.gate.num_waiting and not self.is_abandoned.is_set():
            asyncio.run_coroutine_threadsafe(self._offer(), self._loop).result()
        if self.is_abandoned.is_set():
            raise Abandoned

    def end(self) -> None:
        if self._permit is not None:
            self._turns.gate.give_back(self._permit)
            self._permit = None

    async def _offer(self) -> None:
        # Work that holds a turn must always find a thread.
        has_thread = self._turns.num_paused + self._turns.gate.capacity < NUM_THREADS
        if has_thread and self._turns.gate.has_others_waiting(current_caller().client):
            self.end()
            self._turns.num_paused += 1
            try:
                self._permit = await self._turns.take()
            finally:
                self._turns.num_paused -= 1
