"""Stepwise answers and rankings by the served checkpoint.

A `/generate` request until its first token: `http/generate_routes.py` checks its body and calls
`GenerateService.generate`, which leases a model and asks `Stepper.check_wait` whether the request would wait too long;
in a thread, the route's `_charged` has `generation/input_processor.py` render and tokenise the prompt (`prompts/`) and
tells its cost. Core's `Stepper` queues it and, on the compute thread, has `engine.py`
admit it: `generation/running_batch.py` prefills the prompt, `generation/prompt_calibration.py` estimates the bias of
the documents' positions (`generation/bias.py`) and makes α of what remains, and the prompt's last row (or rows, by
`row_scope`) runs once more (`LanguageModel.rerun`) with the documents' weights rescaled (`calibration.py`, called by
`model/packing.py`). Its logits give the first token (`generation/sampling.py`), which comes back as `Progress`: the
`Stepper` puts it into the call's outbox, and the route's `EventStream` sends it. Estimates of many passes, and beside
other clients all long prompts, are spread over turns of core's `StepRunner` (`GenerateEngine.prepare`), so that other
streams go on meanwhile.

Over vLLM, `vllm/stepper.py` takes the place of the `Stepper`: an answer waits at its gate, then `vllm/answers.py` has
vLLM read the prompt and a prompt for each document, estimates the bias and α from the attention that the plug-in
returns, and asks for the answer with α, which the plug-in applies in vLLM's attention.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from services.core.batching.batcher import Batcher, Submission
from services.core.batching.slices import all_or_first_failure, map_slices
from services.core.batching.step_queue import Event
from services.core.cache.result_cache import content_digest
from services.core.errors import InvalidField, InvalidRequest, blaming
from services.core.exchange import RequestContext, current_caller
from services.core.images.inputs import DECODED_AT_ONCE, ImageInput, ImageInputs
from services.core.images.references import ImageLimits
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import Answering, CheckpointEngine, Served
from services.core.serving.served_models import ServedModels
from services.core.store.manifest import Manifest
from services.generate.generation.generation import Generation, Progress, PromptFacts
from services.generate.generation.input_processor import InputProcessor, Item
from services.generate.generation.ranking import ItemResult, Ranking
from services.generate.model.profile import OFF, CalibrationProfile
from services.generate.model.reranker_engine import Pair, Picture, RerankerEngine
from services.generate.model.vl_reranker_engine import Qwen3VlRerankerEngine
from services.generate.prompts.ranking import RankingJob, RankMethod
from services.generate.prompts.templates import Document, shorten
from services.generate.prompts.turns import PreparationTurns

T = TypeVar("T")

# Questions of one request that are in the queue at a time.
DECIDED_AT_ONCE = 8


class Preparing(CheckpointEngine, Protocol):
    """An engine as calls see it: what makes its items."""

    @property
    def processor(self) -> InputProcessor: ...


class Outcomes(Protocol):
    """The events of one item; close it where its reader goes."""

    def __aiter__(self) -> AsyncIterator[Event[ItemResult]]: ...

    def __anext__(self) -> Awaitable[Event[ItemResult]]: ...

    def aclose(self) -> Awaitable[None]: ...


class Stepping(Answering, Protocol):
    """The own engine's Stepper, or vLLM's: answers items in steps."""

    def check_wait(self, deadline: float | None = None) -> None:
        """Raises Overloaded where an item would wait too long."""

    def submit(self, item: Item, *, cost: int, deadline: float | None = None) -> Outcomes:
        """Ask for an item's events, on behalf of the caller."""


PairBatcher = Batcher[Pair, float]
AnyEngine = Preparing | RerankerEngine
AnyBatcher = Stepping | PairBatcher
ServedGenerate = Served[Preparing, Stepping]
ServedReranker = Served[RerankerEngine, PairBatcher]


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that clients are told; `context_length` limits a prompt and its answer together.

    `reranker` is the kind of a model that only ranks, None for a language model; only that may have a chat template.
    """

    context_length: int
    profile: CalibrationProfile
    reranker: str | None = None
    has_chat_template: bool = False

    @classmethod
    def of(cls, engine: AnyEngine) -> "ModelFacts":
        if isinstance(engine, RerankerEngine):
            return cls(engine.context_length, OFF, engine.kind)
        processor = engine.processor
        has_chat_template = processor.tokenizer.chat_template is not None
        return cls(processor.context_length, processor.profile, has_chat_template=has_chat_template)


GenerateModels = ServedModels[AnyEngine, ModelFacts, AnyBatcher]


@dataclass(frozen=True)
class CallLimits:
    """Limits of one request; a request beyond them is rejected with the limit and its value.

    An empty queue has room for `max_waiting` answers and `max_queue_cost` tokens. `is_over_vllm` allows the fields that
    only vLLM can keep to.
    """

    max_documents: int = 256
    max_tokens: int = 2048
    max_choices: int = 16
    max_waiting: int = 1024
    max_queue_cost: int = 262_144
    is_over_vllm: bool = False
    images: ImageLimits = field(default_factory=ImageLimits)


class Charged(NamedTuple):
    """An answer to be generated, and its charge for a place in the queue."""

    generation: Generation
    cost: int


@dataclass(frozen=True)
class RankCall:
    """Documents to be ranked for a query; those with more than `max_document_tokens` tokens are cut.

    `method` None is `calibrated` for a language model, and for a reranker the only one that it has. `instruct` is an
    instruction for models that were trained to read one, None for their own. `images` are those of documents by their
    places, and of the query at QUERY.
    """

    query: str
    documents: Sequence[Document]
    method: RankMethod | None = None
    model: str | None = None
    max_document_tokens: int | None = None
    instruct: str | None = None
    images: Mapping[int, ImageInput] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranked:
    """A ranking; `model` is the `name@version` that made it.

    `cut` are the places of the documents that were cut because the call asked for it, `too_long` of those that a
    reranker cut to its `context_length` together with the query.
    """

    ranking: Ranking
    model: str
    cut: Sequence[int] = ()
    too_long: Sequence[int] = ()
    context_length: int = 0


@dataclass(frozen=True)
class GenerateService:
    """Answers calls. A model is leased once per call and kept until the call is answered; clients take `turns` at the
    threads that prepare."""

    models: GenerateModels
    limits: CallLimits
    inputs: ImageInputs
    metrics: Metrics
    turns: PreparationTurns = field(default_factory=PreparationTurns)

    async def generate(
        self, model: str | None, prepare: Callable[[InputProcessor], Sequence[Charged]], context: RequestContext
    ) -> AsyncGenerator[tuple[int, Progress], None]:
        """Yield the steps of all answers that `prepare` returns, as they arrive, each with the index of its answer.

        `prepare` runs in a thread. Closing the generator ends its answers within one step. Raises what
        `_lease`, `prepare`, `Stepper.submit` and its streams raise.
        """
        async with self._lease(model, context) as served:
            asked = await self._in_thread(lambda: prepare(served.engine.processor), context)
            # only one of the concurrent answers may add to the request's `Server-Timing`
            prompts = [None, *(one.generation.prompt for one in asked)]
            runs = [
                self._run(served, one, context, is_timed=place == 0, counts_prompt=one.generation.prompt is not before)
                for place, (one, before) in enumerate(zip(asked, prompts, strict=False))
            ]
            if len(runs) > 1:
                async with aclosing(interleaved(runs)) as steps:
                    async for step in steps:
                        yield step
            else:
                async with aclosing(runs[0]) as only:
                    async for progress in only:
                        yield 0, progress

    async def tokenize(
        self, model: str | None, tokens: Callable[[InputProcessor], list[int]], context: RequestContext
    ) -> tuple[list[int], int]:
        """Return the result of `tokens`, run in a thread, and the limit of a prompt and its answer together."""
        async with self._lease(model, context) as served:
            processor = served.engine.processor
            return await self._in_thread(lambda: tokens(processor), context), processor.context_length

    async def rank(self, call: RankCall, context: RequestContext) -> Ranked:
        """Rank documents by their relevance to a query. Raises what `generate` raises, but ranks by rerankers too."""
        async with self.models.lease(call.model, context) as served:
            engine, documents = served.engine, call.documents
            reads_instruct = isinstance(engine, RerankerEngine) and engine.reads_instruct
            if call.instruct is not None and not reads_instruct:
                told = (
                    f"{served.name} is a {served.manifest.kind}, which ranks without instructions; leave the field out."
                )
                raise InvalidRequest(f"instruct: {told}", param="instruct")
            if call.images and not isinstance(engine, Qwen3VlRerankerEngine):
                param = next(iter(call.images.values())).param
                told = f"{served.name} is a {served.manifest.kind}, which reads text only; leave images out."
                raise InvalidRequest(f"{param}: {told}", param=param)
            cut: dict[int, str] = {}
            if call.max_document_tokens is not None:
                tokenizer = engine.tokenizer if isinstance(engine, RerankerEngine) else engine.processor.tokenizer
                shortened = partial(_shortened, tokenizer, documents, call.max_document_tokens)
                cut = await self._in_thread(shortened, context)
                documents = [replace(one, text=cut.get(index, one.text)) for index, one in enumerate(documents)]
            call = replace(call, documents=documents)
            if isinstance(engine, RerankerEngine):
                ranked = await self._score(cast(ServedReranker, served), call, context)
            else:
                ranked = await self._rank(cast(ServedGenerate, served), call, context)
            return replace(ranked, cut=tuple(cut))

    async def _rank(self, served: ServedGenerate, call: RankCall, context: RequestContext) -> Ranked:
        """Rank by a language model."""
        served.batcher.check_wait(context.deadline)
        processor, method = served.engine.processor, call.method or "calibrated"
        with blaming("documents"):
            prepare = partial(processor.prepare_ranking, call.query, call.documents, method)
            job = await self._in_thread(prepare, context)
        return Ranked(await self._ranking(served, job, context), served.label)

    async def _score(self, served: ServedReranker, call: RankCall, context: RequestContext) -> Ranked:
        """Rank by a reranker."""
        engine = served.engine
        if call.method is not None:
            told = f"{served.name} is a {engine.kind}, which ranks by its own score; leave the field out."
            raise InvalidRequest(f"method: {told}", param="method")
        pictures = await self._pictures(engine, call.images) if isinstance(engine, Qwen3VlRerankerEngine) else {}
        prepare = partial(engine.prepare, call.query, call.documents, call.instruct, pictures)
        pairs = await self._in_thread(prepare, context)
        # equal documents must have equal scores, which differ in their last bits between batches
        distinct = list(dict.fromkeys(pairs))
        began, queue_s = time.perf_counter(), list[float]()

        async def submit(some: Sequence[Pair]) -> list[float]:
            submissions = [Submission(pair, pair.cost, len(pair.input_ids)) for pair in some]
            answers = await served.batcher.submit(submissions, deadline=context.deadline)
            queue_s.append(min(answer.queue_s for answer in answers))
            return [answer.result for answer in answers]

        scores = [score for some in await map_slices(distinct, submit) for score in some]
        context.timing.add("queue", min(queue_s))
        context.timing.add("infer", time.perf_counter() - began - min(queue_s))
        scored = dict(zip(distinct, scores, strict=True))
        ranking = Ranking.of_logits([scored[pair] for pair in pairs], sum(len(pair.input_ids) for pair in pairs))
        self.metrics.prompt_tokens.inc(ranking.prompt_tokens)
        context.usage.input_tokens += ranking.prompt_tokens
        too_long = tuple(place for place, pair in enumerate(pairs) if pair.is_cut)
        return Ranked(ranking, served.label, too_long=too_long, context_length=engine.context_length)

    async def _pictures(self, engine: Qwen3VlRerankerEngine, images: Mapping[int, ImageInput]) -> dict[int, Picture]:
        """Fetch and decode the images of a call."""
        fetched = await all_or_first_failure(
            [self.inputs.bytes_of(one.reference, one.param) for one in images.values()]
        )
        digests = await self.inputs.threads.run(lambda: [content_digest(data) for data in fetched])

        async def decoded(one: ImageInput, data: bytes, digest: str) -> Picture:
            with blaming(one.param):
                return await self.inputs.decode(data, one.param, lambda image: engine.picture(image, digest))

        reads = [decoded(*one) for one in zip(images.values(), fetched, digests, strict=True)]
        return dict(zip(images, await all_or_first_failure(reads, at_once=DECODED_AT_ONCE), strict=True))

    async def decide(
        self, model: str, prepare: Sequence[Callable[[InputProcessor], RankingJob]], context: RequestContext
    ) -> list[Ranked]:
        """Rank the options of each question, a few at a time. Raises what `generate` and `_check_follows` raise."""
        async with self._lease(model, context) as served:
            _check_follows(served)
            processor = served.engine.processor
            jobs = [await self._in_thread(partial(one, processor), context) for one in prepare]
            rankings = [self._ranking(served, job, context, is_timed=place == 0) for place, job in enumerate(jobs)]
            return [Ranked(one, served.label) for one in await all_or_first_failure(rankings, at_once=DECIDED_AT_ONCE)]

    async def _ranking(
        self, served: ServedGenerate, job: RankingJob, context: RequestContext, *, is_timed: bool = True
    ) -> Ranking:
        cost = served.engine.processor.cost(job)
        async with aclosing(served.batcher.submit(job, cost=cost, deadline=context.deadline)) as stream:
            event = await anext(stream)
        assert isinstance(event.value, Ranking), "a ranking is answered at once"
        if is_timed:
            _add_timing(context, event, None)
        self.metrics.prompt_tokens.inc(event.value.prompt_tokens)
        context.usage.input_tokens += event.value.prompt_tokens
        return event.value

    @asynccontextmanager
    async def _lease(self, model: str | None, context: RequestContext) -> AsyncIterator[ServedGenerate]:
        """Lease the version of a language model that answers this call.

        Raises what `ServedModels.lease` raises, InvalidRequest for a reranker, which is not loaded for this, and
        Overloaded if the request would wait too long, before any work is done for it.
        """
        resident = await self.models.find(model)
        if (facts := resident.description) is not None and facts.reranker is not None:
            raise _only_ranks(resident.checkpoint.name, facts.reranker)
        async with self.models.hold(resident, context, asked=model) as served:
            if isinstance(served.engine, RerankerEngine):  # a version of another kind has taken its place
                raise _only_ranks(served.name, served.engine.kind)
            generating = cast(ServedGenerate, served)
            generating.batcher.check_wait(context.deadline)
            yield generating

    async def _in_thread(self, work: Callable[[], T], context: RequestContext) -> T:
        """Tokenise in a thread when it is the client's turn, so that the event loop and other clients are served.

        Cancelling a request ends its work.
        """
        began = asyncio.get_running_loop().time()
        prepared = await self.turns.run(work)
        seconds = asyncio.get_running_loop().time() - began
        self.metrics.stage_seconds.labels("tokenize").observe(seconds)
        context.timing.add("tokenize", seconds)
        return prepared

    async def _run(
        self,
        served: ServedGenerate,
        asked: Charged,
        context: RequestContext,
        *,
        is_timed: bool,
        counts_prompt: bool,
    ) -> AsyncGenerator[Progress, None]:
        """Yield the steps of one answer until its last. Submits at the first step."""
        previous: Event[ItemResult] | None = None
        num_tokens, usage = 0, context.usage
        generation = replace(asked.generation, tenant=current_caller().tenant)
        async with aclosing(served.batcher.submit(generation, cost=asked.cost, deadline=context.deadline)) as stream:
            async for event in stream:
                progress = event.value
                assert isinstance(progress, Progress), "a generation is answered in steps"
                if is_timed:
                    _add_timing(context, event, previous)
                self._measure(event, previous, progress.num_tokens - num_tokens)
                usage.output_tokens += progress.num_tokens - num_tokens
                if progress.facts is not None:
                    self._measure_prompt(progress.facts)
                    usage.input_tokens += progress.facts.prompt_tokens if counts_prompt else 0
                if progress.finish_reason is not None:
                    usage.finish_reasons.append(progress.finish_reason)
                previous, num_tokens = event, progress.num_tokens
                yield progress

    def _measure(self, event: Event[ItemResult], previous: Event[ItemResult] | None, num_new_tokens: int) -> None:
        if previous is None:
            self.metrics.time_to_first_token_seconds.observe(event.elapsed_s)
        else:
            self.metrics.inter_token_latency_seconds.observe(event.elapsed_s - previous.elapsed_s)
        self.metrics.generated_tokens.inc(num_new_tokens)

    def _measure_prompt(self, facts: PromptFacts) -> None:
        self.metrics.prompt_tokens.inc(facts.prompt_tokens)
        self.metrics.cached_prompt_tokens.inc(facts.cached_tokens)
        self.metrics.calibration_passes.inc(facts.calibration_passes)


def _add_timing(context: RequestContext, event: Event[ItemResult], previous: Event[ItemResult] | None) -> None:
    """Add the times since the previous event. Once a stream's head is sent, only the log shows them."""
    if previous is None:
        context.timing.add("queue", event.queue_s)
    context.timing.add("infer", event.elapsed_s - (previous.elapsed_s if previous else event.queue_s))


def _only_ranks(name: str, kind: str) -> InvalidRequest:
    told = f"model: {name} is a {kind}, which only ranks documents, at /v1/rerank, /v2/rerank and /rerank."
    return InvalidRequest(told, param="model")


def follows_instructions(facts: ModelFacts, manifest: Manifest) -> bool:
    """Whether a model was taught to follow instructions, so that its probabilities mean something: it has a chat
    template, and was not trained without a base, as the starters are on their one form of question."""
    return facts.has_chat_template and not (manifest.training and manifest.base is None)


def _check_follows(served: ServedGenerate) -> None:
    """Raises InvalidField for a model that does not follow instructions."""
    if not follows_instructions(ModelFacts.of(served.engine), served.manifest):
        told = f"{served.name} was not taught to follow instructions, so it can't decide. A language model that was,"
        raise InvalidField(f"model: {told} with a chat template, a student or a model of score can.", param="model")


def _shortened(tokenizer: Any, documents: Sequence[Document], max_tokens: int) -> dict[int, str]:
    """The places and shortened texts of documents that are too long."""
    texts = [shorten(tokenizer, document.text, max_tokens) for document in documents]
    return {index: text for index, text in enumerate(texts) if text is not None}


async def interleaved(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of all streams, each with the place of its stream, until all have ended.

    Raises the first stream's exception. All streams are closed in any case.
    """
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        async with aclosing(_as_they_come(streams)) as items:
            async for place, item in items:
                yield place, item


async def _as_they_come(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    coming = {asyncio.create_task(_next(stream)): place for place, stream in enumerate(streams)}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=coming.__getitem__):
                items = task.result()
                place = coming.pop(task)
                if items:
                    coming[asyncio.create_task(_next(streams[place]))] = place
                    yield place, items[0]
    finally:
        for task in coming:
            task.cancel()
        # a stream can only be closed once nothing reads it
        await asyncio.gather(*coming, return_exceptions=True)


async def _next(stream: AsyncGenerator[T, None]) -> list[T]:
    """Return a list of the next item; empty after the last."""
    try:
        return [await anext(stream)]
    except StopAsyncIteration:
        return []
