"""OpenAI's chat completions and completions, whole and streamed."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from services.core.errors import blaming, check_count
from services.core.exchange import RequestContext, context_of
from services.core.http.bodies import JsonRoute
from services.generate.generation.generation import Generation, Progress
from services.generate.generation.input_processor import InputProcessor
from services.generate.generation.options import AnswerOptions
from services.generate.http.generate_calls import calibration_of, documents_of, reports_of
from services.generate.http.openai_bodies import ChatForm, ChoiceSoFar, CompletionForm, Form, Identity, usage_of
from services.generate.http.openai_calls import (
    charges,
    check_chat,
    check_completion,
    for_vllm,
    is_with_tools,
    messages_of,
    prompts_of,
    sampling_of,
    stops_of,
    tools_of,
)
from services.generate.http.openai_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    Completion,
    CompletionChunk,
    CompletionRequest,
)
from services.generate.http.streaming import DONE, EventStream, event, event_stream_content
from services.generate.service import CallLimits, Charged, GenerateService

# OpenAI's default for completions.
COMPLETION_MAX_TOKENS = 16


def openai_router(service: GenerateService) -> APIRouter:
    """Create OpenAI's routes for chat completions and completions."""
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post(
        "/v1/chat/completions",
        responses=_responses(ChatCompletion, ChatCompletionChunk),
    )
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """OpenAI's chat completions; the user's last message asks about `documents`, with `calibration` applied."""
        check_chat(body, is_over_vllm=service.limits.is_over_vllm)
        return await _answer(service, request, body)

    @router.post(
        "/v1/completions",
        responses=_responses(Completion, CompletionChunk),
    )
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """OpenAI's completions: each prompt is continued verbatim."""
        check_completion(body, is_over_vllm=service.limits.is_over_vllm)
        return await _answer(service, request, body)

    return router


def _responses(whole: type[BaseModel], chunk: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {
            "model": whole,
            "content": event_stream_content(chunk),
            "description": "The answer; with `stream`, its chunks",
        }
    }


async def _answer(service: GenerateService, request: Request, body: ChatRequest | CompletionRequest) -> Response:
    check_count("n", body.n or 1, service.limits.max_choices, "answers")
    answer = Answer(body, context_of(request.scope), _form(service.limits, body))
    steps = service.generate(body.model, partial(_prepare, service.limits, body), answer.context)
    if body.stream:
        return await EventStream.begin(_events(steps, answer))
    async with aclosing(steps):
        async for place, progress in steps:
            answer.choice(place).add(progress)
    choices = answer.choices
    content = {**answer.form.whole(answer.identity, choices), "usage": usage_of(choices)}
    return Response(orjson.dumps(content), media_type="application/json")


class Answer:
    """One answer, whose choices are accumulated over their steps."""

    def __init__(self, body: ChatRequest | CompletionRequest, context: RequestContext, form: Form) -> None:
        self.body = body
        self.context = context
        self.form = form
        self._is_chat = isinstance(body, ChatRequest)
        self._id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._choices: dict[int, ChoiceSoFar] = {}

    @property
    def identity(self) -> Identity:
        """Known from the first step."""
        model = self.context.model
        assert model is not None, "what has answered has a name"
        return Identity(self._id, self._created, model, system_fingerprint=f"fp_{model.rpartition('@')[2]}")

    def choice(self, place: int) -> ChoiceSoFar:
        if place not in self._choices:
            prompt = place // (self.body.n or 1)
            self._choices[place] = ChoiceSoFar(place, prompt, is_reply=self._is_chat)
        return self._choices[place]

    @property
    def choices(self) -> list[ChoiceSoFar]:
        """Choices that have begun, in order."""
        return [self._choices[place] for place in sorted(self._choices)]


async def _events(steps: AsyncGenerator[tuple[int, Progress], None], answer: Answer) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of all choices as they arrive; nothing is sent before the first, so errors keep their status."""
    options, form = answer.body.stream_options, answer.form
    includes_usage = options is not None and bool(options.include_usage)
    extra = {"usage": None} if includes_usage else {}
    async with aclosing(steps):
        async for place, progress in steps:
            identity, choice = answer.identity, answer.choice(place)
            if choice.facts is None:
                for chunk in form.opening(identity, choice):
                    yield event({**chunk, **extra})
            for chunk in form.chunks(identity, choice, choice.add(progress)):
                yield event({**chunk, **extra})
    if includes_usage:
        yield event({**form.bare(answer.identity), "usage": usage_of(answer.choices)})
    yield DONE


def _form(limits: CallLimits, body: ChatRequest | CompletionRequest) -> Form:
    if isinstance(body, ChatRequest):
        given = body.documents or ()
        reports = (lambda facts: reports_of(documents_of(given, limits.max_documents), facts)) if given else None
        return ChatForm(bool(body.logprobs), reports)
    return CompletionForm(body.logprobs)


def _prepare(limits: CallLimits, body: ChatRequest | CompletionRequest, processor: InputProcessor) -> Sequence[Charged]:
    """Prepare all choices, those of one prompt together, each with its charge.

    Raises what the processor's `prepare_*` raise, and errors of fields that no schema can check.
    """
    if isinstance(body, ChatRequest):
        generations = [_prepare_chat(limits, processor, body)]
    else:
        generations = _prepare_completion(limits, processor, body)
    num_choices = body.n or 1
    costs = charges(
        [processor.cost(generation) for generation in generations],
        num_choices,
        max_waiting=limits.max_waiting,
        max_queue_cost=limits.max_queue_cost,
    )
    choices = [choice for generation in generations for choice in generation.choices(num_choices)]
    return [Charged(choice, cost) for choice, cost in zip(choices, costs, strict=True)]


def _prepare_chat(limits: CallLimits, processor: InputProcessor, body: ChatRequest) -> Generation:
    documents = documents_of(body.documents or (), limits.max_documents)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    options = AnswerOptions(
        max_tokens=_max_tokens(limits, body.max_completion_tokens or body.max_tokens),
        sampling=sampling_of(body, num_logprobs, processor.vocab_size, is_greedy=processor.is_greedy),
        stop=stops_of(body),
        calibration=calibration_of(body.calibration, processor.profile, processor.num_layers),
        reorder=body.reorder,
        ignore_eos=body.ignore_eos,
        for_vllm={**for_vllm(body), **tools_of(body), "stream": bool(body.stream)},
    )
    messages = messages_of(body.messages, has_tools=is_with_tools(body))
    generation = processor.prepare_chat(messages, documents, options)
    # if the request has no `max_tokens`, the service's limit applies as well as the context
    return replace(generation, max_tokens=min(generation.max_tokens, limits.max_tokens))


def _prepare_completion(limits: CallLimits, processor: InputProcessor, body: CompletionRequest) -> list[Generation]:
    options = AnswerOptions(
        max_tokens=_max_tokens(limits, COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens),
        sampling=sampling_of(body, body.logprobs, processor.vocab_size, is_greedy=processor.is_greedy),
        stop=stops_of(body),
        ignore_eos=body.ignore_eos,
        echo=bool(body.echo),
        for_vllm=for_vllm(body),
    )
    prompts = prompts_of(body, processor.vocab_size)
    with blaming("prompt"):
        return [processor.prepare_completion(prompt, options) for prompt in prompts]


def _max_tokens(limits: CallLimits, asked: int | None) -> int | None:
    if asked is not None:
        check_count("max_tokens", asked, limits.max_tokens, "tokens")
    return asked
