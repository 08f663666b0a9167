"""A vision-language model's opinion of the best captions of a request: VQAScore after CLIP."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from services.core.batching.slices import all_or_first_failure
from services.core.errors import DeadlineExceeded, Overloaded
from services.core.exchange import RequestContext
from services.core.images.inputs import ImageInput, ImageInputs
from services.core.metrics import Metrics
from services.core.openai_client import Endpoint, EndpointClient, EndpointError, Patience
from services.score.second_opinion.vqa_score import jpeg_url, request_body, yes_probability

ATTEMPTS = 3
LONGEST_WAIT_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class OpinionLimits:
    """Seconds to wait for one answer, requests at a time of all callers together, and pixels of a sent image's side."""

    timeout_s: float
    concurrency: int
    max_side: int


class SecondOpinion:
    """Asks a model behind an OpenAI-compatible address; usable between the ends of `opened`."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        inputs: ImageInputs,
        limits: OpinionLimits,
        metrics: Metrics,
    ) -> None:
        self.model = model
        self._inputs = inputs
        self._max_side = limits.max_side
        self._client = EndpointClient(endpoint, Patience(ATTEMPTS, limits.timeout_s, longest_wait_s=LONGEST_WAIT_S))
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._seconds = metrics.stage_seconds.labels("vqa")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep connections open during the block."""
        async with self._client:
            yield

    async def fetched(self, image: ImageInput) -> ImageInput:
        """The image with its bytes, so that both models see the same. Raises what `ImageInputs.bytes_of` raises."""
        return ImageInput(await self._inputs.bytes_of(image.reference, image.param), image.param)

    async def ask(self, image: ImageInput, captions: Sequence[str], context: RequestContext) -> list[float | None]:
        """Return the VQAScore of each caption, or None where the model refuses or answers neither yes nor no.

        `image` has its bytes. Raises Overloaded if a question stays unanswered or answers come without
        log-probabilities, and DeadlineExceeded.
        """
        began = time.perf_counter()
        remaining_s = None if math.isinf(context.deadline) else context.deadline - time.monotonic()
        try:
            async with asyncio.timeout(remaining_s):
                url = await self._url_of(image)
                distinct = dict.fromkeys(captions)
                scores = await all_or_first_failure([self._one(url, caption) for caption in distinct])
        except TimeoutError:
            raise DeadlineExceeded("The vision-language model did not answer in time.") from None
        finally:
            context.timing.add("vqa", time.perf_counter() - began)
            self._seconds.observe(time.perf_counter() - began)
        found = dict(zip(distinct, scores, strict=True))
        return [found[caption] for caption in captions]

    async def _url_of(self, image: ImageInput) -> str:
        assert isinstance(image.reference, bytes)
        return await self._inputs.decode(image.reference, image.param, lambda pixels: jpeg_url(pixels, self._max_side))

    async def _one(self, image_url: str, caption: str) -> float | None:
        try:
            async with self._slots:
                answer = await self._client.ask(request_body(self.model, image_url, caption))
        except EndpointError as error:
            log.warning("vqa_failed", reason=str(error))
            if error.is_refusal:
                return None
            raise _failed("does not answer") from None
        if not answer.first_token:
            raise _failed("answers without log-probabilities, which its score needs")
        return yes_probability(answer.first_token)


def _failed(told: str) -> Overloaded:
    return Overloaded(f"The vision-language model that gives a second opinion {told}.", code="vqa_failed")
