"""Creation of hard negatives in separate threads."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Protocol

from services.core.errors import Overloaded
from services.core.exchange import Timing
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import LOADING_RETRY_AFTER_S
from services.score.negatives.hard_negatives import Kind


class Negatives(Protocol):
    """A maker of hard negatives, used by one thread at a time or several; `sources` names the files that it reads."""

    @property
    def sources(self) -> Mapping[str, str | None]: ...

    def make(self, caption: str, kinds: Sequence[Kind], seed: int) -> dict[Kind, str | None]: ...


class NegativeMaker:
    """Makes hard negatives in its own threads; at most `max_waiting` captions wait for one.

    `load` is called once, by `start`, on one of the threads.
    """

    def __init__(self, load: Callable[[], Negatives], *, num_threads: int, max_waiting: int, metrics: Metrics) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(num_threads, "negatives")
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._rejected = metrics.rejected
        self._seconds = metrics.stage_seconds.labels("negatives")
        self._negatives: Negatives | None = None

    @property
    def sources(self) -> dict[str, str | None] | None:
        """Sources of the negatives, file names without their folders; None until they are loaded."""
        if self._negatives is None:
            return None
        return {name: source and PurePath(source).name for name, source in self._negatives.sources.items()}

    async def start(self) -> None:
        """Load the tagger and the words, and use them once, so that no request waits for first-call costs."""
        self._negatives = await asyncio.get_running_loop().run_in_executor(self._threads, self._load_warm)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """End the threads at the end of the block."""
        try:
            yield
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def make(self, caption: str, kinds: Sequence[Kind], seed: int, timing: Timing) -> dict[Kind, str | None]:
        """Make hard negatives of a caption. Raises Overloaded if nothing is loaded yet or too many captions wait."""
        negatives = self._negatives
        if negatives is None:
            self._rejected.labels("loading").inc()
            raise Overloaded("Hard negatives are not loaded yet.", code="loading", retry_after_s=LOADING_RETRY_AFTER_S)
        if self._num_waiting >= self._max_waiting:
            self._rejected.labels("queue_full").inc()
            raise Overloaded("Too many captions are waiting for hard negatives.", code="queue_full")
        self._num_waiting += 1
        began = time.perf_counter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, negatives.make, caption, kinds, seed)
        finally:
            self._num_waiting -= 1
            timing.add("negatives", time.perf_counter() - began)
            self._seconds.observe(time.perf_counter() - began)

    def _load_warm(self) -> Negatives:
        negatives = self._load()
        negatives.make("A black dog sits left of two white cats on a red sofa.", ("negclip", "replace", "relation"), 0)
        return negatives
