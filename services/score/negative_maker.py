"""Hard negatives for requests: made on threads of their own, of which so many wait and no more."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath

from services.core.errors import Overloaded
from services.core.exchange import Timing
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import LOADING_RETRY_AFTER_S
from services.score.negatives.hard_negatives import HardNegatives, Kind


class NegativeMaker:
    """`load` is called once, by `start`, on one of the threads."""

    def __init__(
        self, load: Callable[[], HardNegatives], *, num_threads: int, max_waiting: int, metrics: Metrics
    ) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(num_threads, "negatives")
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._rejected = metrics.rejected
        self._seconds = metrics.stage_seconds.labels("negatives")
        self._negatives: HardNegatives | None = None

    @property
    def sources(self) -> dict[str, str | None] | None:
        """What they are made with, files without their folders; None until that is loaded."""
        if self._negatives is None:
            return None
        return {name: source and PurePath(source).name for name, source in self._negatives.sources.items()}

    async def start(self) -> None:
        """Load the tagger and the words, and use them once, so that no request pays for first calls."""
        self._negatives = await asyncio.get_running_loop().run_in_executor(self._threads, self._load_warm)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def make(self, caption: str, kinds: Sequence[Kind], seed: int, timing: Timing) -> dict[Kind, str | None]:
        """What `HardNegatives.make` makes. Raises Overloaded where nothing is loaded yet or too many captions wait."""
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

    def _load_warm(self) -> HardNegatives:
        negatives = self._load()
        negatives.make("A black dog sits left of two white cats on a red sofa.", ("negclip", "replace", "relation"), 0)
        return negatives
