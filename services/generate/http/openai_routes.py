"""OpenAI's chat completions and completions, whole and streamed, and vLLM's `/tokenize`.

Fields that would change the answer and are not supported are refused by name.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Self

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, model_validator

from services.core.errors import InvalidField, InvalidRequest, TooLarge, blaming, check_count
from services.core.exchange import RequestContext, context_of
from services.core.http.bodies import JsonRoute, OpenRequest, refuse_unsupported
from services.generate.generation.generation import AnswerOptions, Generation, Progress
from services.generate.generation.input_processor import InputProcessor
from services.generate.generation.sampling import Sampling
from services.generate.http.citations import check_citations
from services.generate.http.documents import calibration_of, documents_of, reports_of
from services.generate.http.openai_bodies import ChatForm, ChoiceSoFar, CompletionForm, Form, Identity, usage_of
from services.generate.http.openai_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatMessage,
    ChatRequest,
    Completion,
    CompletionChunk,
    CompletionRequest,
    Messages,
    SamplingRequest,
)
from services.generate.http.streaming import DONE, EventStream, event, event_stream_content
from services.generate.service import CallLimits, Charged, GenerateService
from services.generate.vllm.guides import check_guides

# Chat templates only know OpenAI's original role.
TEMPLATE_ROLES = {"developer": "system"}

# Fields that only vLLM can keep to, with the values that change nothing.
OF_VLLM: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
}
# Fields that vLLM, SGLang, llama.cpp and TGI add to OpenAI's, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("structural_tag", "json_schema", "regex", "ebnf", "grammar"), ()),
    **dict.fromkeys(("prompt_embeds", "prompt_logprobs", "truncate_prompt_tokens"), ()),
    **dict.fromkeys(("logits_processors", "stop_token_ids"), ([],)),
    # the plug-in's fields among them, which a client of vLLM may still send
    "vllm_xargs": ({},),
    **dict.fromkeys(("include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("length_penalty", "typical_p"), (1,)),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
}
UNSUPPORTED_IN_CHAT: dict[str, tuple[Any, ...]] = {
    **UNSUPPORTED,
    **dict.fromkeys(("audio", "moderation", "web_search_options"), ()),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    # what tools took the place of
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
}
# Types of `response_format` that vLLM has.
FORMATS = ("json_object", "json_schema", "structural_tag")
ONLY_VLLM = "Only a server of vLLM can do this (FOVEA_GENERATE_ENGINE=vllm)"
# Our own additions to chat.
OF_DOCUMENTS = ("documents", "calibration", "reorder", "citations")
# What clients may take `documents` to be called.
NAMES_OF_DOCUMENTS = dict.fromkeys(("docs", "context", "contexts", "passages"), "documents")
UNSUPPORTED_IN_COMPLETIONS = {**UNSUPPORTED, "add_special_tokens": (True,), "suffix": ("",)}


def check_chat(body: ChatRequest, *, is_over_vllm: bool = False) -> None:
    """Raises InvalidRequest for a field whose omission would make a wrong answer of it."""
    refuse_unsupported(body.model_extra, UNSUPPORTED_IN_CHAT, OF_DOCUMENTS, NAMES_OF_DOCUMENTS)
    _check_for_vllm({**for_vllm(body), **tools_of(body)}, is_over_vllm=is_over_vllm)
    for index, message in enumerate(body.messages):
        if message.tool_calls and not is_over_vllm:
            raise _refusal(f"messages.{index}", f"It calls tools. {ONLY_VLLM}.")
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise _refusal("tool_choice", "Needs tools.")
    if body.top_logprobs is not None and not body.logprobs:
        raise _refusal("top_logprobs", "Requires logprobs to be true.")
    if body.documents is None:
        if body.calibration is not None and body.calibration.enabled is not False:
            raise _refusal("calibration", "Only answers over documents are calibrated; give documents.")
        if body.reorder != "none":
            raise _refusal("reorder", "There is nothing to reorder; give documents.")
    if body.citations:
        check_citations(has_documents=body.documents is not None, is_over_vllm=is_over_vllm)


def for_vllm(body: SamplingRequest) -> dict[str, Any]:
    """The fields that only vLLM can keep to, as a request to it has them."""
    given = {name: getattr(body, name) for name in OF_VLLM}
    return {name: value for name, value in given.items() if value is not None and value not in OF_VLLM[name]}


def tools_of(body: ChatRequest) -> dict[str, Any]:
    """The tools and the rest that makes vLLM call them; empty without tools."""
    if not body.tools:
        return {}
    # vLLM's templates do not see a `strict` that was not given, though they see other nulls
    unset: dict[str, set[str]] = {"function": {"strict"}}
    tools = [tool.model_dump(exclude=unset if tool.function.strict is None else {}) for tool in body.tools]
    asked = {"tools": tools, "tool_choice": body.tool_choice, "parallel_tool_calls": body.parallel_tool_calls}
    return {name: value for name, value in asked.items() if value is not None}


def _check_for_vllm(given: Mapping[str, Any], *, is_over_vllm: bool) -> None:
    if not is_over_vllm:
        for name in given:
            raise _refusal(name, f"{ONLY_VLLM}; leave the field out.")
    form = given.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") in FORMATS):
        raise _refusal("response_format", f"Its type must be text, {' or '.join(FORMATS)}.")
    check_guides(given)


def check_completion(body: CompletionRequest, *, is_over_vllm: bool = False) -> None:
    """Raises InvalidRequest for a field whose omission would make a wrong answer of it."""
    refuse_unsupported(body.model_extra, UNSUPPORTED_IN_COMPLETIONS, OF_DOCUMENTS, NAMES_OF_DOCUMENTS)
    _check_for_vllm(for_vllm(body), is_over_vllm=is_over_vllm)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _refusal("best_of", "Choosing the best of more than n answers is not supported.")
    if body.documents:
        raise _refusal("documents", "Completions take no documents: use /v1/chat/completions or /generate.")
    if body.max_tokens == 0 and not body.echo:
        raise _refusal("max_tokens", "Must be at least 1 unless echo is true.")


def charges(costs: Sequence[int], num_choices: int, *, max_waiting: int, max_queue_cost: int) -> list[int]:
    """Compute each choice's charge for its place in the queue, if answering prompt p costs `costs[p]` tokens.

    The choices of a prompt share its computation, which is charged to the first; the others are charged 1 each. A
    single prompt is charged at most the queue's capacity, so that an idle service accepts it with all its choices.
    Raises TooLarge for requests that even an empty queue could not accept, so that retrying is useless.
    """
    num_answers = num_choices * len(costs)
    param = "n" if num_choices > 1 else "prompt"
    if num_answers > max_waiting:
        raise TooLarge(f"{param}: The request asks for {num_answers} answers; the limit is {max_waiting}.", param=param)
    if len(costs) == 1:
        costs = [max(1, min(costs[0], max_queue_cost - num_choices + 1))]
    total = sum(costs) + num_answers - len(costs)
    if total > max_queue_cost and num_answers > 1:
        raise TooLarge(
            f"prompt: The request's prompts have {total} tokens together; the limit is {max_queue_cost}.",
            param="prompt",
        )
    return [charged for cost in costs for charged in (cost, *[1] * (num_choices - 1))]


def sampling_of(
    body: SamplingRequest, num_logprobs: int | None, vocab_size: int, *, is_greedy: bool = False
) -> Sampling:
    """Read the sampling options, with the route's defaults; `is_greedy` makes greedy decoding the default.

    Raises InvalidField for an unknown token id.
    """
    logit_bias = tuple((int(token_id), bias) for token_id, bias in (body.logit_bias or {}).items())
    for token_id, _ in logit_bias:
        if token_id >= vocab_size:
            raise _unknown_token("logit_bias", token_id, vocab_size)
    # OpenAI's default; over documents, which are our extension, greedy as in `/generate`
    default = 0.0 if is_greedy or (isinstance(body, ChatRequest) and body.documents) else 1.0
    return Sampling(
        temperature=default if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        num_logprobs=num_logprobs,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=logit_bias,
    )


def messages_of(messages: Sequence[ChatMessage], *, has_tools: bool = False) -> list[dict[str, Any]]:
    """Roles and texts for a chat template, with `has_tools` also what belongs to calls of tools.

    Raises InvalidRequest for content other than text, InvalidField for none.
    """
    more = {"tool_calls", "tool_call_id", "name"} if has_tools else set()
    for index, message in enumerate(messages):
        if message.tool_calls and not has_tools:
            raise _refusal(f"messages.{index}", "Calls of tools are not supported here.")
    return [
        {
            "role": TEMPLATE_ROLES.get(message.role, message.role),
            "content": _text_of(message, f"messages.{index}"),
            **message.model_dump(include=more, exclude_none=True),
        }
        for index, message in enumerate(messages)
    ]


def prompts_of(body: CompletionRequest, vocab_size: int) -> list[str | tuple[int, ...]]:
    """The prompts: texts and token ids. Raises InvalidField for a token id that the model does not have."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    several = [one for one in given if not isinstance(one, int)]
    prompts = [one if isinstance(one, str) else tuple(one) for one in several] or [
        tuple(one for one in given if isinstance(one, int))
    ]
    for prompt in prompts:
        if not isinstance(prompt, str) and max(prompt) >= vocab_size:
            raise _unknown_token("prompt", max(prompt), vocab_size)
    return prompts


def _text_of(message: ChatMessage, param: str) -> str:
    if message.function_call is not None:
        raise _refusal(param, "Functions are not supported; use tools.")
    if message.content is None:
        if message.tool_calls:
            return ""
        raise InvalidField(f"{param}.content: The message has no content.", param=f"{param}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for index, part in enumerate(message.content):
        where = f"{param}.content.{index}"
        if part.type != "text":
            raise InvalidRequest(f"{where}: Only text parts are supported, not {part.type[:40]!r}.", param=where)
        if part.text is None:
            raise InvalidField(f"{where}.text: The part has no text.", param=f"{where}.text")
        texts.append(part.text)
    return "".join(texts)


def _refusal(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {reason}", param=param)


def _unknown_token(param: str, token_id: int, vocab_size: int) -> InvalidField:
    return InvalidField(
        f"{param}: Token {token_id} is not in the model's vocabulary of {vocab_size} tokens.", param=param
    )


# OpenAI's default for completions.
COMPLETION_MAX_TOKENS = 16


def openai_router(service: GenerateService) -> APIRouter:
    """Create OpenAI's routes for chat completions and completions."""
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/chat/completions", responses=_responses(ChatCompletion, ChatCompletionChunk))
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """OpenAI's chat completions; the user's last message asks about `documents`, with `calibration` applied."""
        check_chat(body, is_over_vllm=service.limits.is_over_vllm)
        return await _answer(service, request, body)

    @router.post("/v1/completions", responses=_responses(Completion, CompletionChunk))
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
    steps = service.generate(body.model, partial(charged_choices, service.limits, body), answer.context)
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
        yield event({**form.chunk(answer.identity), "usage": usage_of(answer.choices)})
    yield DONE


def _form(limits: CallLimits, body: ChatRequest | CompletionRequest) -> Form:
    if isinstance(body, ChatRequest):
        given = body.documents or ()
        reports = (lambda facts: reports_of(documents_of(given, limits.max_documents), facts)) if given else None
        return ChatForm(bool(body.logprobs), reports, cites=body.citations)
    return CompletionForm(body.logprobs)


def charged_choices(
    limits: CallLimits, body: ChatRequest | CompletionRequest, processor: InputProcessor
) -> Sequence[Charged]:
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
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    options = AnswerOptions(
        max_tokens=_max_tokens(limits, getattr(body, field), field),
        sampling=sampling_of(body, num_logprobs, processor.vocab_size, is_greedy=processor.is_greedy),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        calibration=calibration_of(body.calibration, processor.profile, processor.num_layers),
        reorder=body.reorder,
        cite=body.citations,
        ignore_eos=body.ignore_eos,
        for_vllm={**for_vllm(body), **tools_of(body), "stream": bool(body.stream)},
    )
    has_tools = bool(body.tools) or any(message.tool_calls for message in body.messages)
    messages = messages_of(body.messages, has_tools=has_tools)
    generation = processor.prepare_chat(messages, documents, options)
    # if the request has no `max_tokens`, the service's limit applies as well as the context
    return replace(generation, max_tokens=min(generation.max_tokens, limits.max_tokens))


def _prepare_completion(limits: CallLimits, processor: InputProcessor, body: CompletionRequest) -> list[Generation]:
    options = AnswerOptions(
        max_tokens=_max_tokens(limits, COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens),
        sampling=sampling_of(body, body.logprobs, processor.vocab_size, is_greedy=processor.is_greedy),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        ignore_eos=body.ignore_eos,
        echo=bool(body.echo),
        for_vllm=for_vllm(body),
    )
    prompts = prompts_of(body, processor.vocab_size)
    with blaming("prompt"):
        return [processor.prepare_completion(prompt, options) for prompt in prompts]


def _max_tokens(limits: CallLimits, asked: int | None, field: str = "max_tokens") -> int | None:
    if asked is not None:
        check_count(field, asked, limits.max_tokens, "tokens")
    return asked


# Fields of vLLM's `/tokenize`, with the values that change nothing.
OF_TOKENIZE: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
    "return_token_strs": (False,),
    "tools": ([],),
}


class TokenizeRequest(OpenRequest):
    """Either a text, tokenised as `/v1/completions` would, or messages, as `/v1/chat/completions` would."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    prompt: str | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def holds_one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a request holds either a prompt or messages")
        return self


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int = Field(description="Most tokens of a prompt and its answer together.")
    tokens: list[int]


def tokenize_router(service: GenerateService) -> APIRouter:
    """Create the route that tokenises."""
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/tokenize")
    async def tokenize(request: Request, body: TokenizeRequest) -> TokenizeAnswer:
        """The tokens of a prompt, in vLLM's form; a text that no prompt could hold is refused."""
        refuse_unsupported(body.model_extra, {**OF_TOKENIZE, "add_special_tokens": (body.messages is None,)})

        def tokens(processor: InputProcessor) -> list[int]:
            if body.messages is not None:
                return list(processor.tokens_of_chat(messages_of(body.messages)))
            return list(processor.tokens_of_text(body.prompt or ""))

        found, limit = await service.tokenize(body.model, tokens, context_of(request.scope))
        return TokenizeAnswer(count=len(found), max_model_len=limit, tokens=found)

    return router
