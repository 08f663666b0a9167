"""Requests of the score service: how well images and captions fit, and hard negative captions.

A call passes through the cache, the decoding threads, batches of items that are not cached, and batches of pairs.

Images, captions and pairs wait for the model in queues of their own, which take turns batch by batch: encoded pairs
wait for at most one batch of images and one of captions.
"""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from services.core.batching.batcher import Answer, Batcher, Batchers, Submission
from services.core.batching.slices import all_or_first_failure, map_slices
from services.core.cache.result_cache import ResultCache, content_digest, result_key
from services.core.errors import InvalidField, TooLarge, blaming
from services.core.exchange import RequestContext, Timing
from services.core.images.inputs import DECODED_AT_ONCE, ImageInput, ImageInputs
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import Served
from services.core.serving.served_models import ServedModels
from services.nn.clip_texts import Text
from services.score.call import CallLimits, Caption, Explained, ScoreCall, Scored
from services.score.engine import Item, ModelFacts, ScoreEngine
from services.score.model.features import BYTES_FORMAT, Features, as_heatmaps
from services.score.model.pairing import PairItem, Similarities, Weights
from services.score.negatives.negative_maker import NegativeMaker, NegativeWriter
from services.score.second_opinion import SecondOpinion

# Below these limits, hashing and tokenising take less time than waking a thread for them.
MAX_INLINE_BYTES = 256 * 1024
MAX_INLINE_CAPTIONS = 8
MAX_INLINE_CHARACTERS = 8 * 1024
# Captions that a thread tokenises at once; a request can be abandoned between two such batches.
TOKENISED_AT_ONCE = 32


@dataclass(frozen=True)
class ScoreBatchers(Batchers):
    """The queues of one engine, on one compute thread."""

    images: Batcher[Item, Features]
    captions: Batcher[Item, Features]
    pairs: Batcher[PairItem, Similarities]


ServedScore = Served[ScoreEngine, ScoreBatchers]
ScoreModels = ServedModels[ScoreEngine, ModelFacts, ScoreBatchers]


@dataclass(frozen=True)
class ScoreService:
    """Answers calls with the served models; negatives need none."""

    models: ScoreModels
    scorer: "Scorer"
    negatives: NegativeMaker
    limits: CallLimits
    metrics: Metrics
    writer: NegativeWriter | None = None
    second_opinion: SecondOpinion | None = None

    async def score(self, call: ScoreCall, context: RequestContext) -> Scored:
        """Score how well the images and captions of each pair fit.

        Raises InvalidField for a second opinion where no model is configured for it, and what `ServedModels.lease`,
        `Scorer.score` and `SecondOpinion.ask` raise.
        """
        if call.vqa_top_k is None:
            return await self._first_opinion(call, context)
        second = self._configured_second_opinion()
        (image,) = call.images
        image = await second.fetched(image)
        scored = await self._first_opinion(replace(call, images=[image]), context)
        best = np.argsort(-scored.scores, kind="stable")[: call.vqa_top_k].tolist()
        answers = await second.ask(image, [call.captions[place].text for place in best], context)
        found = dict(zip(best, answers, strict=True))
        vqa = [found.get(place) for place in range(len(call.captions))]
        return replace(scored, vqa=vqa, vqa_model=second.model)

    async def _first_opinion(self, call: ScoreCall, context: RequestContext) -> Scored:
        async with self.models.lease(call.model, context) as served:
            return await self.scorer.score(served, call, context)

    def _configured_second_opinion(self) -> SecondOpinion:
        if self.second_opinion is None:
            raise InvalidField(
                "vqa_top_k: No vision-language model is configured. Set FOVEA_SCORE_VQA_URL and FOVEA_SCORE_VQA_MODEL"
                " to the address and the name of one, or leave the field out.",
                param="vqa_top_k",
            )
        return self.second_opinion


@dataclass
class _Stage:
    """Times of the batches of one stage: `queue` until the first began, `infer` from then until the last answer."""

    timing: Timing
    submitted: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    ended: float = 0.0

    def note(self, submitted: float, answers: Sequence[Answer[Any]]) -> None:
        """Record answers that have just arrived, submitted at that `time.perf_counter()`."""
        self.submitted.append(submitted)
        self.queue_s.append(min(answer.queue_s for answer in answers))
        self.ended = time.perf_counter()

    def end(self) -> None:
        if self.submitted:
            waited_s = min(self.queue_s)
            self.timing.add("queue", waited_s)
            self.timing.add("infer", self.ended - min(self.submitted) - waited_s)


@dataclass(frozen=True)
class _Job:
    """One call in progress."""

    served: ServedScore
    context: RequestContext
    stage: _Stage


@dataclass(frozen=True, eq=False)
class _Image:
    """An image with its digest, not yet decoded."""

    data: bytes
    digest: str
    param: str


class Scorer:
    """Answers calls; `inputs` reads their images."""

    def __init__(
        self, cache: ResultCache, inputs: ImageInputs, metrics: Metrics, *, max_heatmap_numbers: int = 1_000_000
    ) -> None:
        self._cache = cache
        self.inputs = inputs
        self._max_heatmap_numbers = max_heatmap_numbers
        self._tokenize_seconds = metrics.stage_seconds.labels("tokenize")
        self._prompt_tokens = metrics.prompt_tokens

    async def score(self, served: ServedScore, call: ScoreCall, context: RequestContext) -> Scored:
        """Score how well the images and captions of each pair fit.

        Raises the error of an image or a caption, with its field in `param`, or Overloaded; features encoded by then
        are in the cache for the next attempt.
        """
        engine = served.engine
        if call.explain:
            engine.check_explains()
        texts = await self._tokenise(engine, call, context.timing)
        if call.explain:
            self._check_heatmaps(engine, texts)
        distinct = {text.digest: text for text in texts}
        job = _Job(served, context, _Stage(context.timing))
        images, captions = await all_or_first_failure(
            [
                _flat(map_slices(call.images, lambda some: self._image_features(job, some))),
                _flat(map_slices(list(distinct.values()), lambda some: self._caption_features(job, some))),
            ]
        )
        job.stage.end()
        features_of = dict(zip(distinct, captions, strict=True))
        pairs = [(images[image], features_of[texts[caption].digest]) for image, caption in call.pairs]
        scored = await self._pair(job, pairs, explain=call.explain)
        explained = None
        if scored.weights is not None:
            rows = zip([texts[caption] for _, caption in call.pairs], scored.weights, strict=True)
            explained = [await self.inputs.threads.run(partial(_explained, engine, *row)) for row in rows]
        prompt_tokens = sum(text.num_tokens for text in texts)
        self._prompt_tokens.inc(prompt_tokens)
        context.usage.input_tokens += prompt_tokens
        return Scored(
            scored.global_cosines,
            scored.local_cosines,
            engine.mix(scored),
            explained,
            num_images=len(images),
            prompt_tokens=prompt_tokens,
            model=served.label,
            logit_scale=engine.logit_scale,
            logit_bias=engine.logit_bias,
        )

    async def _tokenise(self, engine: ScoreEngine, call: ScoreCall, timing: Timing) -> list[Text]:
        """Tokenise all captions, in a thread if there are many, so that the event loop can serve other requests."""

        def tokenise(captions: Sequence[Caption]) -> list[Text]:
            texts = []
            for caption in captions:
                with blaming(caption.param):
                    texts.append(engine.prepare_caption(caption.text, truncate=call.truncate))
            return texts

        began = time.perf_counter()
        is_short = sum(len(caption.text) for caption in call.captions) <= MAX_INLINE_CHARACTERS
        if is_short and len(call.captions) <= MAX_INLINE_CAPTIONS:
            texts = tokenise(call.captions)
        else:
            texts = []
            for start in range(0, len(call.captions), TOKENISED_AT_ONCE):
                some = call.captions[start : start + TOKENISED_AT_ONCE]
                texts += await self.inputs.threads.run(partial(tokenise, some))
        seconds = time.perf_counter() - began
        self._tokenize_seconds.observe(seconds)
        timing.add("tokenize", seconds)
        return texts

    def _check_heatmaps(self, engine: ScoreEngine, texts: Sequence[Text]) -> None:
        num_numbers = sum(text.num_tokens - 1 for text in texts) * engine.num_patches
        if num_numbers > self._max_heatmap_numbers:
            raise TooLarge(
                f"explain: The heatmaps of these captions have {num_numbers} numbers; the limit is"
                f" {self._max_heatmap_numbers}.",
                param="explain",
            )

    async def _image_features(self, job: _Job, images: Sequence[ImageInput]) -> list[Features]:
        fetched = await all_or_first_failure([self.inputs.bytes_of(one.reference, one.param) for one in images])
        if sum(map(len, fetched)) <= MAX_INLINE_BYTES:
            digests = [content_digest(data) for data in fetched]
        else:
            digests = await self.inputs.threads.run(lambda: [content_digest(one) for one in fetched])
        known = [_Image(data, digest, one.param) for data, digest, one in zip(fetched, digests, images, strict=True)]

        async def encode(indices: list[int]) -> list[Features]:
            began = time.perf_counter()
            items = await all_or_first_failure(
                [self._decode(job, known[index]) for index in indices], at_once=DECODED_AT_ONCE
            )
            job.context.timing.add("decode", time.perf_counter() - began)
            return await self._encode(job, job.served.batcher.images, items)

        return await self._resolve(job, [f"image:{digest}" for digest in digests], encode)

    async def _decode(self, job: _Job, image: _Image) -> Item:
        engine = job.served.engine
        return await self.inputs.decode(
            image.data,
            image.param,
            lambda pixels: engine.prepare_image(pixels, image.digest),
            side=engine.image_side,
        )

    async def _caption_features(self, job: _Job, texts: Sequence[Text]) -> list[Features]:
        async def encode(indices: list[int]) -> list[Features]:
            return await self._encode(job, job.served.batcher.captions, [texts[index] for index in indices])

        return await self._resolve(job, [f"text:{text.digest}" for text in texts], encode)

    async def _resolve(
        self, job: _Job, names: Sequence[str], encode: Callable[[list[int]], Awaitable[list[Features]]]
    ) -> list[Features]:
        """Get features from the cache, or from `encode`, which receives the indices of the missing ones.

        Those that this call encoded itself stay on the device.
        """
        engine = job.served.engine
        options = {"dtype": engine.dtype_name, "format": BYTES_FORMAT}
        keys = [result_key(job.served.digest, name, None, options) for name in names]
        encoded: dict[int, Features] = {}

        async def compute(indices: list[int]) -> list[bytes]:
            encoded.update(zip(indices, await encode(indices), strict=True))
            return [encoded[index].to_bytes() for index in indices]

        values = await self._cache.resolve(keys, compute)
        return [
            encoded.get(index) or Features.from_bytes(value, engine.embedding_width)
            for index, value in enumerate(values)
        ]

    async def _encode(self, job: _Job, batcher: Batcher[Item, Features], items: Sequence[Item]) -> list[Features]:
        engine = job.served.engine
        costs = [engine.cost(item) for item in items]
        began = time.perf_counter()
        submissions = [Submission(item, cost, cost) for item, cost in zip(items, costs, strict=True)]
        answers = await batcher.submit(submissions, deadline=job.context.deadline)
        job.stage.note(began, answers)
        return [answer.result for answer in answers]

    async def _pair(self, job: _Job, pairs: Sequence[tuple[Features, Features]], *, explain: bool) -> Similarities:
        """Compute the similarities of images and captions, in order: all those of one image together, and those of
        equal pairs once, so that they are bitwise equal."""
        rows: dict[int, dict[int, int]] = defaultdict(dict)  # of each caption, among the captions of its image
        for image, caption in pairs:
            own = rows[id(image)]
            own.setdefault(id(caption), len(own))
        features = {id(one): one for pair in pairs for one in pair}
        batcher, engine = job.served.batcher.pairs, job.served.engine.pairing
        items = [PairItem(features[image], [features[one] for one in own], explain) for image, own in rows.items()]
        costs = [engine.cost(item) for item in items]
        stage, began = _Stage(job.context.timing), time.perf_counter()
        submissions = [Submission(item, cost, cost) for item, cost in zip(items, costs, strict=True)]
        answers = await batcher.submit(submissions, deadline=job.context.deadline)
        stage.note(began, answers)
        stage.end()
        first_row = dict(zip(rows, accumulate((len(own) for own in rows.values()), initial=0), strict=False))
        order = [first_row[id(image)] + rows[id(image)][id(caption)] for image, caption in pairs]
        return _taken([answer.result for answer in answers], order)


def _taken(results: Sequence[Similarities], order: Sequence[int]) -> Similarities:
    """Concatenate the rows of all results, in this order."""
    weights = [one for result in results for one in result.weights or ()]
    return Similarities(
        np.concatenate([result.global_cosines for result in results])[order],
        np.concatenate([result.local_cosines for result in results])[order],
        [weights[row] for row in order] if weights else None,
    )


def _explained(engine: ScoreEngine, text: Text, weights: Weights) -> Explained:
    grid = engine.grid
    assert grid is not None  # a model without one refuses to explain
    return Explained(engine.pieces(text), as_heatmaps(weights, grid))


async def _flat(slices: Awaitable[list[list[Features]]]) -> list[Features]:
    return [one for some in await slices for one in some]
