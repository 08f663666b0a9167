"""The path of a call from its inputs to its embeddings: cache, decoding threads, batches.

A call is processed in slices, so that the largest call needs no more memory or queue places than a few small ones and
shares the device with them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from services.core.batching.batcher import BatchLimits, Submission
from services.core.batching.slices import all_or_first_failure, map_slices
from services.core.cache.result_cache import ResultCache, content_digest, result_key
from services.core.errors import InvalidField, blaming
from services.core.exchange import RequestContext
from services.core.images.inputs import DECODED_AT_ONCE, ImageInput, ImageInputs
from services.core.metrics import Metrics
from services.core.serving.served_models import ServedModels
from services.core.store.manifest import Manifest
from services.embed.call import (
    CallLimits,
    EmbedBatchers,
    EmbedCall,
    Embedded,
    EmbedModel,
    Input,
    PairInput,
    ServedEmbed,
    TextInput,
    parts_of,
)
from services.embed.model.items import Embeddings, Item
from services.embed.outputs import TRAINED_WIDTHS, shortened, shorter_widths, trained_widths
from services.nn.clip_texts import Text

# Below this size, hashing and tokenising take less time than handing them to a thread.
MAX_INLINE_BYTES = 256 * 1024
MAX_INLINE_TEXTS = 8
MAX_INLINE_CHARACTERS = 8 * 1024


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that clients are told, also while it is not in memory."""

    context_length: int
    embedding_width: int
    dtype_name: str

    @classmethod
    def of(cls, engine: EmbedModel) -> "ModelFacts":
        return cls(engine.context_length, engine.embedding_width, engine.dtype_name)


EmbedModels = ServedModels[EmbedModel, ModelFacts, EmbedBatchers]


@dataclass(frozen=True)
class _Job:
    """A call in progress; `conditions` are those under which each image is embedded."""

    served: ServedEmbed
    conditions: tuple[Text | None, ...]
    is_truncating: bool
    dimensions: int | None
    context: RequestContext


@dataclass(frozen=True, eq=False)
class _Image:
    """An image with a digest, not decoded yet, to be read under `conditions`; `num_tokens` counts its own text's."""

    data: bytes
    digest: str
    param: str
    conditions: tuple[Text | None, ...]
    num_tokens: int = 0


_Known = _Image | Text


class Embedder:
    """Computes the embeddings of calls; `inputs` reads their images."""

    def __init__(self, cache: ResultCache, inputs: ImageInputs, metrics: Metrics) -> None:
        self._cache = cache
        self.inputs = inputs
        self._tokenize_seconds = metrics.stage_seconds.labels("tokenize")

    async def embed(self, served: ServedEmbed, call: EmbedCall, context: RequestContext) -> Embedded:
        """Compute all embeddings of a call.

        Raises the error of an invalid input, with its place in `param`, or Overloaded; what was computed before remains
        in the cache for the next attempt.
        """
        named = await self._tokenise_conditions(served.engine, call.conditions)
        job = _Job(served, tuple(named) or (None,), call.truncate, call.dimensions, context)
        done = await map_slices(call.inputs, lambda inputs: self._embed_slice(job, inputs))
        prompt_tokens = sum(text.num_tokens for text in named) + sum(num_tokens for _, num_tokens in done)
        context.usage.input_tokens += prompt_tokens
        return Embedded(
            rows=np.concatenate([rows for rows, _ in done]),
            conditions=[condition for one in call.inputs for condition in _conditions_of(one, call)],
            num_images=sum(parts_of(one)[0] is not None for one in call.inputs),
            prompt_tokens=prompt_tokens,
            model=served.label,
        )

    async def _tokenise_conditions(self, engine: EmbedModel, conditions: Sequence[str]) -> list[Text]:
        def tokenise() -> list[Text]:
            texts = []
            for index, text in enumerate(conditions):
                with blaming(f"condition.{index}" if index else "condition"), self._tokenize_seconds.time():
                    texts.append(engine.prepare_condition(text))
            return texts

        if _are_few_and_short(conditions):
            return tokenise()
        return await self.inputs.threads.run(tokenise)

    async def _embed_slice(self, job: _Job, inputs: Sequence[Input]) -> tuple[Embeddings, int]:
        """Compute the rows of some inputs, and count the tokens of their texts."""
        known = await self._identify(job, inputs)
        wanted = [(one, c) for one in known for c in (one.conditions if isinstance(one, _Image) else (None,))]
        engine = job.served.engine
        options = {"dtype": engine.dtype_name}
        keys = [
            result_key(job.served.digest, _cache_digest(one), condition.digest if condition else None, options)
            for one, condition in wanted
        ]
        values = await self._cache.resolve(
            keys, lambda indices: self._compute(job, [wanted[index] for index in indices])
        )
        rows = np.frombuffer(b"".join(values), "<f4").reshape(len(values), engine.embedding_width)
        return shortened(rows, job.dimensions), sum(one.num_tokens for one in known)

    async def _identify(self, job: _Job, inputs: Sequence[Input]) -> list[_Known]:
        """Fetch URLs, hash images, tokenise texts: only what a cache lookup needs."""
        parts = [parts_of(one) for one in inputs]
        images = [image for image, _ in parts if image is not None]
        fetched = await all_or_first_failure([self.inputs.bytes_of(image.reference, image.param) for image in images])

        def identify() -> list[_Known]:
            data = iter(fetched)
            return [
                self._text(job, text) if image is None else self._image(job, image, text, next(data))
                for image, text in parts
            ]

        began = time.perf_counter()
        texts = [text.text for _, text in parts if text is not None]
        if _are_few_and_short(texts) and sum(map(len, fetched)) <= MAX_INLINE_BYTES:
            known = identify()
        else:
            known = await self.inputs.threads.run(identify)
        if texts:
            job.context.timing.add("tokenize", time.perf_counter() - began)
        return known

    def _text(self, job: _Job, text: TextInput | None, *, is_beside: bool = False) -> Text:
        assert text is not None, "an input has an image or a text"
        prepare = job.served.engine.prepare_beside if is_beside else job.served.engine.prepare_text
        with blaming(text.param), self._tokenize_seconds.time():
            return prepare(text.text, truncate=job.is_truncating)

    def _image(self, job: _Job, image: ImageInput, text: TextInput | None, data: bytes) -> _Image:
        beside = None if text is None else self._text(job, text, is_beside=True)
        conditions, num_tokens = (job.conditions, 0) if beside is None else ((beside,), beside.num_tokens)
        return _Image(data, content_digest(data), image.param, conditions, num_tokens)

    async def _compute(self, job: _Job, wanted: Sequence[tuple[_Known, Text | None]]) -> list[bytes]:
        """Compute the rows that the cache lacks, each as little-endian float32."""
        engine = job.served.engine
        needs = [
            (one, [condition for _, condition in pairs]) for one, pairs in groupby(wanted, key=lambda pair: pair[0])
        ]
        began = time.perf_counter()
        prepared = await all_or_first_failure(
            [self._prepare(engine, one, conditions) for one, conditions in needs], at_once=DECODED_AT_ONCE
        )
        if any(isinstance(one, _Image) for one, _ in needs):
            job.context.timing.add("decode", time.perf_counter() - began)
        items = [item for some in prepared for item in some]
        costs = [engine.cost(item) for item in items]
        submissions = [Submission(item, cost, cost) for item, cost in zip(items, costs, strict=True)]
        answers = await job.served.batcher.submit(submissions, deadline=job.context.deadline)
        job.context.timing.add("queue", max(answer.queue_s for answer in answers))
        job.context.timing.add("infer", max(answer.infer_s for answer in answers))
        rows = np.concatenate([answer.result.rows for answer in answers]).astype("<f4", copy=False)
        return [row.tobytes() for row in rows]

    async def _prepare(self, engine: EmbedModel, one: _Known, conditions: Sequence[Text | None]) -> Sequence[Item]:
        if isinstance(one, Text):
            return [one]
        return await self.inputs.decode(
            one.data,
            one.param,
            lambda pixels: engine.prepare_image(pixels, one.digest, conditions),
            side=engine.image_side,
        )


@dataclass(frozen=True)
class EmbedService:
    """Answers calls with the served models; `batch_limits` are those of each one's batcher."""

    models: EmbedModels
    embedder: Embedder
    limits: CallLimits
    batch_limits: BatchLimits
    metrics: Metrics

    async def embed(self, call: EmbedCall, context: RequestContext) -> Embedded:
        """Compute all embeddings of a call.

        Raises InvalidField for an embedding width that the model was not trained for, and what `ServedModels.lease` and
        `Embedder.embed` raise.
        """
        async with self.models.lease(call.model, context) as served:
            _check_dimensions(served, call)
            return await self.embedder.embed(served, call, context)


def widths_of(manifest: Manifest) -> str | None:
    """Return the widths that a manifest says its model was trained to be cut to."""
    return trained_widths((manifest.source or {}).get(TRAINED_WIDTHS))


def _check_dimensions(served: ServedEmbed, call: EmbedCall) -> None:
    """Raises InvalidField for a width that a model was not trained for, with those that it was."""
    dimensions, width = call.dimensions, served.engine.embedding_width
    if dimensions is None or dimensions == width:
        return
    trained = widths_of(served.manifest)
    shorter = shorter_widths(trained, width)
    if dimensions in shorter:
        return
    if shorter:
        reason = f"{served.name} was trained for {trained} numbers, at most {width}, not for {dimensions}."
    else:
        reason = (
            f"{served.name} gives {width} numbers: its checkpoint does not say that it was trained for fewer "
            "(Matryoshka). If it was, import it with --dimensions; embeddings as int8 or binary are smaller, too."
        )
    raise InvalidField(f"{call.dimensions_in}: {reason}", param=call.dimensions_in)


def _conditions_of(one: Input, call: EmbedCall) -> Sequence[str | None]:
    match one:
        case PairInput():
            return (one.text.text,)
        case ImageInput():
            return call.conditions or (None,)
        case TextInput():
            return (None,)


def _are_few_and_short(texts: Sequence[str]) -> bool:
    return len(texts) <= MAX_INLINE_TEXTS and sum(map(len, texts)) <= MAX_INLINE_CHARACTERS


def _cache_digest(one: _Known) -> str:
    """Compute a cache key that is never equal for a text and an image."""
    return f"image:{one.digest}" if isinstance(one, _Image) else f"text:{one.digest}"
