"""The requests of the score service: how well images and captions fit, and captions made false."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePath

from services.core.errors import InvalidField, Overloaded, TooLarge
from services.core.exchange import RequestContext, Timing
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import LOADING_RETRY_AFTER_S, ServedCheckpoint
from services.score.engine import ScoreEngine
from services.score.negatives.hard_negatives import HardNegatives
from services.score.negatives.kinds import Kind
from services.score.scorer import CallLimits, ScoreBatchers, ScoreCall, Scored, Scorer


@dataclass(frozen=True)
class ScoreService:
    """Answers calls by the checkpoint that serves; negatives need none."""

    checkpoint: ServedCheckpoint[ScoreEngine, ScoreBatchers]
    scorer: Scorer
    negatives: "NegativeMaker"
    limits: CallLimits
    metrics: Metrics

    async def score(self, call: ScoreCall, context: RequestContext) -> Scored:
        """Score how well the images and captions of each pair fit.

        Raises NotFound for a model that is not the served one, and what `Scorer.score` raises.
        """
        with self.checkpoint.lease() as served:
            context.model = served.label
            self.checkpoint.check_model(served, call.model)
            return await self.scorer.score(served, call, context)

    async def make_negatives(
        self, caption: str, kinds: Sequence[Kind], seed: int, context: RequestContext
    ) -> dict[Kind, str | None]:
        """Hard negatives of a caption, None of a kind that it allows none of.

        Raises InvalidField for a blank caption, TooLarge for one over the limit, and what `NegativeMaker.make` raises.
        """
        if not caption.strip():
            raise InvalidField("caption: The text is empty.", param="caption")
        if (num_characters := len(caption)) > (limit := self.limits.max_negative_characters):
            raise TooLarge(f"caption: The text has {num_characters} characters; the limit is {limit}.", param="caption")
        return await self.negatives.make(caption, list(dict.fromkeys(kinds)), seed, context.timing)


class NegativeMaker:
    """Makes hard negatives on threads of its own, of which at most `max_waiting` captions wait for one.

    `load` is called once, by `start`, on one of the threads.
    """

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
        """Sources of the negatives, files without their folders; None until they are loaded."""
        if self._negatives is None:
            return None
        return {name: source and PurePath(source).name for name, source in self._negatives.sources.items()}

    async def start(self) -> None:
        """Load the tagger and the words, and use them once, so that no request pays for first calls."""
        self._negatives = await asyncio.get_running_loop().run_in_executor(self._threads, self._load_warm)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """End the threads when the block ends."""
        try:
            yield
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def make(self, caption: str, kinds: Sequence[Kind], seed: int, timing: Timing) -> dict[Kind, str | None]:
        """Make hard negatives of a caption. Raises Overloaded where nothing is loaded yet or too many captions wait."""
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
