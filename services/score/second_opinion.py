"""VQAScore (Lin et al., "Evaluating text-to-visual generation with image-to-text generation", 2024).

    VQAScore(I, T) = P("Yes" | I, 'Does this figure show "T"? Please answer yes or no.')

under a vision-language model: the probability that the first token of its answer is "yes", in any spelling.
"""

import asyncio
import base64
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import structlog
from PIL import Image

from services.core.batching.slices import all_or_first_failure
from services.core.errors import DeadlineExceeded, Overloaded
from services.core.exchange import RequestContext
from services.core.images.inputs import ImageInput, ImageInputs
from services.core.metrics import Metrics
from services.core.openai_client import Endpoint, EndpointClient, EndpointError, Patience

# The most that OpenAI's API returns, and vLLM's by default.
NUM_TOP_TOKENS = 20
JPEG_QUALITY = 95
# What stands around a word in a token: spaces and marks, and the signs that vocabularies of SentencePiece and of bytes
# have for spaces and line breaks, which some servers return.
AROUND_WORDS = " \t\n.,:;!\"'`*“”‘’▁ĠĊ"


def question(caption: str) -> str:
    """The question about a caption, as the paper asks it."""
    return f'Does this figure show "{caption}"? Please answer yes or no.'


def request_body(model: str, image_url: str, caption: str) -> dict[str, Any]:
    """A chat completion of one token, with the most probable tokens in its place."""
    parts = [
        {"type": "image_url", "image_url": {"url": image_url}},
        {"type": "text", "text": question(caption)},
    ]
    return {
        "model": model,
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": NUM_TOP_TOKENS,
    }


def yes_probability(first_token: Mapping[str, float]) -> float | None:
    """The probability of "yes" from the log-probabilities of an answer's first token.

    None if neither "yes" nor "no" is among them: then the model did not answer the question.
    """
    total = {"yes": 0.0, "no": 0.0}
    for token, logprob in first_token.items():
        word = token.strip(AROUND_WORDS).lower()
        if word in total:
            total[word] += math.exp(logprob)
    return min(total["yes"], 1.0) if any(total.values()) else None


def jpeg_url(image: Image.Image, max_side: int) -> str:
    """Encode an RGB image, at most `max_side` pixels wide and high, as a data URL."""
    smaller = image.copy()
    smaller.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    encoded = BytesIO()
    smaller.save(encoded, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"


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
