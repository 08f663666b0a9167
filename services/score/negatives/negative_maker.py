"""Creation of hard negatives: by rules in a thread, and by a language model behind an endpoint."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Literal, Protocol

import structlog

from services.core.errors import Overloaded
from services.core.exchange import Timing
from services.core.fair_threads import FairThreads
from services.core.metrics import Metrics
from services.core.openai_client import Endpoint, EndpointClient, EndpointError, Patience
from services.core.serving.served_checkpoint import LOADING_RETRY_AFTER_S
from services.score.negatives.hard_negatives import Kind
from services.score.negatives.prompting.checks import Problem, WrittenKind
from services.score.negatives.prompting.prompt_files import load_prompts
from services.score.negatives.prompting.writer import Chat, Reply, Requests, Writer, reply_of

# Captions of one client.
MAX_WAITING = 256


class Negatives(Protocol):
    """A maker of hard negatives, used by one thread at a time; `sources` names the files that it reads."""

    @property
    def sources(self) -> Mapping[str, str | None]: ...

    def make(self, caption: str, kinds: Sequence[Kind], seed: int) -> dict[Kind, str | None]: ...


class NegativeMaker:
    """Makes hard negatives in its own thread; at most `max_waiting` captions of a client wait for it.

    `load` is called once, by `start`, on the thread.
    """

    def __init__(self, load: Callable[[], Negatives], *, max_waiting: int = MAX_WAITING, metrics: Metrics) -> None:
        self._load = load
        self._threads = FairThreads(1, "negatives", max_waiting_of_client=max_waiting, refusal=self._refusal)
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
        self._negatives = await self._threads.run(self._load_warm)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """End the thread at the end of the block."""
        try:
            yield
        finally:
            self._threads.close()

    async def make(self, caption: str, kinds: Sequence[Kind], seed: int, timing: Timing) -> dict[Kind, str | None]:
        """Make hard negatives of a caption. Raises Overloaded if nothing is loaded yet or too many captions wait."""
        negatives = self._negatives
        if negatives is None:
            self._rejected.labels("loading").inc()
            raise Overloaded("Hard negatives are not loaded yet.", code="loading", retry_after_s=LOADING_RETRY_AFTER_S)
        began = time.perf_counter()
        try:
            return await self._threads.run(partial(negatives.make, caption, kinds, seed))
        finally:
            timing.add("negatives", time.perf_counter() - began)
            self._seconds.observe(time.perf_counter() - began)

    def _refusal(self) -> Overloaded:
        self._rejected.labels("queue_full").inc()
        return Overloaded("Too many captions are waiting for hard negatives.", code="queue_full")

    def _load_warm(self) -> Negatives:
        negatives = self._load()
        negatives.make("A black dog sits left of two white cats on a red sofa.", ("negclip", "replace", "relation"), 0)
        return negatives


ATTEMPTS = 3
LONGEST_WAIT_S = 5.0

# Why there is no text: a broken promise, or a model that refuses the caption or does not answer.
Lack = Problem | Literal["refused", "unanswered"]

log = structlog.get_logger()


@dataclass(frozen=True)
class WrittenNegative:
    """A caption's negative of one type, or the reason that there is none."""

    kind: WrittenKind
    text: str
    reason: Lack | None = None


class NegativeWriter:
    """Has a model behind an OpenAI-compatible address write negatives; usable between the ends of `opened`.

    At most `concurrency` requests are on their way to it, of all callers together.
    """

    def __init__(self, endpoint: Endpoint, model: str, *, timeout_s: float, concurrency: int, metrics: Metrics) -> None:
        self.model = model
        self._client = EndpointClient(endpoint, Patience(ATTEMPTS, timeout_s, longest_wait_s=LONGEST_WAIT_S))
        self._requests = Requests(model, endpoint.api)
        self._writer = Writer(load_prompts())
        self._slots = asyncio.Semaphore(concurrency)
        self._seconds = metrics.stage_seconds.labels("teacher")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep connections open during the block."""
        async with self._client:
            yield

    async def write(
        self, captions: Sequence[str], kinds: Sequence[WrittenKind], seed: int, timing: Timing
    ) -> list[list[WrittenNegative]]:
        """Write a negative of each type for each caption.

        Raises Overloaded if the model has answered nothing, whatever the reason is.
        """
        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [[group.create_task(self._one(text, kind, seed)) for kind in kinds] for text in captions]
        finally:
            timing.add("teacher", time.perf_counter() - began)
            self._seconds.observe(time.perf_counter() - began)
        written = [[task.result() for task in of_caption] for of_caption in tasks]
        if all(one.reason == "unanswered" for of_caption in written for one in of_caption):
            raise Overloaded("The language model that writes hard negatives does not answer.", code="teacher_failed")
        return written

    async def _one(self, caption: str, kind: WrittenKind, seed: int) -> WrittenNegative:
        try:
            found = await self._writer.write(caption, kind, self._ask, seed)
        except EndpointError as error:
            log.warning("teacher_failed", kind=kind, reason=str(error))
            return WrittenNegative(kind, "", "refused" if error.is_refusal else "unanswered")
        return WrittenNegative(kind, found.text, found.problem)

    async def _ask(self, chat: Chat) -> Reply:
        async with self._slots:
            return reply_of(await self._client.ask(self._requests.body(chat)))
