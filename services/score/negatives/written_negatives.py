"""Hard negatives that a language model writes while a request waits for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import structlog

from services.core.errors import Overloaded
from services.core.exchange import Timing
from services.core.metrics import Metrics
from services.core.openai_client import Endpoint, EndpointClient, EndpointError, Patience
from services.score.negatives.prompting.checks import Problem, WrittenKind
from services.score.negatives.prompting.prompt_files import load_prompts
from services.score.negatives.prompting.writer import Chat, Reply, Requests, Writer, reply_of

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

    def __init__(
        self, endpoint: Endpoint, model: str, *, timeout_s: float, concurrency: int, max_tokens: int, metrics: Metrics
    ) -> None:
        self.model = model
        self._client = EndpointClient(endpoint, Patience(ATTEMPTS, timeout_s, longest_wait_s=LONGEST_WAIT_S))
        self._requests = Requests(model, endpoint.api, max_tokens)
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
