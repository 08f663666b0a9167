"""OpenAI's chat completions and completions, whole and streamed."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from services.core.errors import blaming, check_count
from services.core.http.bodies import JsonRoute
from services.generate.engine import AnswerOptions, GenerateEngine
from services.generate.generation.running_batch import Generation, Progress
from services.generate.http.generate_calls import begun_with_text, calibration_of, documents_of, reports_of
from services.generate.http.openai_bodies import ChatForm, ChoiceSoFar, CompletionForm, Form, Identity, usage_of
from services.generate.http.openai_calls import (
    charges,
    check_chat,
    check_completion,
    messages_of,
    prompts_of,
    sampling_of,
    stops_of,
)
from services.generate.http.openai_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    Completion,
    CompletionChunk,
    CompletionRequest,
)
from services.generate.http.streaming import DONE, EventStream, event, event_stream_content, interleaved
from services.generate.service import CallLimits, GenerateService, ServedGenerate

# OpenAI's, where a completion names no number.
COMPLETION_MAX_TOKENS = 16


@dataclass(frozen=True)
class Prepared:
    """A request as the model takes it: `generations` are its choices, so many a prompt, each charged its cost."""

    generations: Sequence[Generation]
    costs: Sequence[int]
    choices_per_prompt: int
    form: Form


def openai_router(service: GenerateService) -> APIRouter:
    """The routes that answer as OpenAI's do."""
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post(
        "/v1/chat/completions",
        responses=_responses(ChatCompletion, ChatCompletionChunk),
    )
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """OpenAI's chat; `documents` are what the last message of the user asks about, and calibrated as asked."""
        check_chat(body)
        return await _answer(service, request, body)

    @router.post(
        "/v1/completions",
        responses=_responses(Completion, CompletionChunk),
    )
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """OpenAI's completions: each prompt is continued as it stands."""
        check_completion(body)
        return await _answer(service, request, body)

    return router


def _responses(whole: type[BaseModel], chunk: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": whole, "content": event_stream_content(chunk), "description": "Whole, or its chunks"}}


async def _answer(service: GenerateService, request: Request, body: ChatRequest | CompletionRequest) -> Response:
    check_count("n", body.n or 1, service.limits.max_choices, "answers")
    if body.stream:
        return await EventStream.begin(_events(service, request, body))
    with service.lease(request, body.model) as served:
        prepared = await _prepare(service, request, served, body)
        identity = _identity(request, served, body)
        choices = _choices(prepared)
        async with aclosing(_progress(service, request, served, prepared)) as steps:
            async for place, progress in steps:
                choices[place].add(progress)
    answer = {**prepared.form.whole(identity, choices), "usage": usage_of(choices)}
    return Response(orjson.dumps(answer), media_type="application/json")


async def _events(
    service: GenerateService, request: Request, body: ChatRequest | CompletionRequest
) -> AsyncGenerator[bytes, None]:
    """The chunks of all choices as they come; before the first nothing is sent, so that an error has its status."""
    includes_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    extra = {"usage": None} if includes_usage else {}
    with service.lease(request, body.model) as served:
        prepared = await _prepare(service, request, served, body)
        identity, form = _identity(request, served, body), prepared.form
        choices = _choices(prepared)
        async with aclosing(_progress(service, request, served, prepared)) as steps:
            async for place, progress in steps:
                choice = choices[place]
                if choice.facts is None:
                    for chunk in form.opening(identity, choice):
                        yield event({**chunk, **extra})
                choice.add(progress)
                for chunk in form.chunks(identity, choice, progress):
                    yield event({**chunk, **extra})
        if includes_usage:
            yield event({**form.bare(identity), "usage": usage_of(choices)})
        yield DONE


async def _prepare(
    service: GenerateService, request: Request, served: ServedGenerate, body: ChatRequest | CompletionRequest
) -> Prepared:
    """Raises what the engine's `prepare_*` raise, and the errors of the fields that no schema can check."""
    if isinstance(body, ChatRequest):
        return await service.prepare(request, partial(_prepare_chat, service.limits, served.engine, body))
    return await service.prepare(request, partial(_prepare_completion, service.limits, served.engine, body))


def _prepare_chat(limits: CallLimits, engine: GenerateEngine, body: ChatRequest) -> Prepared:
    documents = documents_of(body.documents or (), limits.max_documents)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    options = AnswerOptions(
        max_tokens=_max_tokens(limits, body.max_completion_tokens or body.max_tokens),
        sampling=sampling_of(body, num_logprobs, engine.vocab_size),
        stop=stops_of(body),
        calibration=calibration_of(body.calibration, engine.profile, engine.num_layers),
        reorder=body.reorder,
        ignore_eos=body.ignore_eos,
    )
    generation = _capped(engine.prepare_chat(messages_of(body), documents, options), limits)
    reports = partial(reports_of, documents) if documents else None
    return _prepared(limits, engine, [generation], body.n or 1, ChatForm(bool(body.logprobs), reports))


def _prepare_completion(limits: CallLimits, engine: GenerateEngine, body: CompletionRequest) -> Prepared:
    options = AnswerOptions(
        max_tokens=_max_tokens(limits, body.max_tokens or COMPLETION_MAX_TOKENS),
        sampling=sampling_of(body, body.logprobs, engine.vocab_size),
        stop=stops_of(body),
        ignore_eos=body.ignore_eos,
    )
    prompts = prompts_of(body, engine.vocab_size)
    with blaming("prompt"):
        generations = [engine.prepare_completion(prompt, options) for prompt in prompts]
    echoes = [prompt for prompt in prompts if isinstance(prompt, str)] if body.echo else []
    return _prepared(limits, engine, generations, body.n or 1, CompletionForm(body.logprobs, echoes))


def _prepared(
    limits: CallLimits, engine: GenerateEngine, generations: Sequence[Generation], num_choices: int, form: Form
) -> Prepared:
    costs = charges(
        [engine.cost(generation) for generation in generations],
        num_choices,
        max_waiting=limits.max_waiting,
        max_queue_cost=limits.max_queue_cost,
    )
    choices = [choice for generation in generations for choice in generation.choices(num_choices)]
    return Prepared(choices, costs, num_choices, form)


def _max_tokens(limits: CallLimits, asked: int | None) -> int | None:
    if asked is not None:
        check_count("max_tokens", asked, limits.max_tokens, "tokens")
    return asked


def _capped(generation: Generation, limits: CallLimits) -> Generation:
    """Where no number was asked for, the limit holds as well as the context."""
    return replace(generation, max_tokens=min(generation.max_tokens, limits.max_tokens))


def _progress(
    service: GenerateService, request: Request, served: ServedGenerate, prepared: Prepared
) -> AsyncGenerator[tuple[int, Progress], None]:
    """What the steps bring for each choice, by its place."""
    runs = [
        service.run(request, served, generation, cost=cost, is_timed=place == 0)
        for place, (generation, cost) in enumerate(zip(prepared.generations, prepared.costs, strict=True))
    ]
    # white space at the beginning of a continuation parts it from its prompt
    is_chat = isinstance(prepared.form, ChatForm)
    return interleaved([begun_with_text(run) for run in runs] if is_chat else runs)


def _choices(prepared: Prepared) -> list[ChoiceSoFar]:
    return [
        ChoiceSoFar(place, prompt=place // prepared.choices_per_prompt) for place in range(len(prepared.generations))
    ]


def _identity(request: Request, served: ServedGenerate, body: ChatRequest | CompletionRequest) -> Identity:
    prefix = "chatcmpl" if isinstance(body, ChatRequest) else "cmpl"
    return Identity(
        id=f"{prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=request.state.model,
        system_fingerprint=f"fp_{served.digest[:12]}",
    )
