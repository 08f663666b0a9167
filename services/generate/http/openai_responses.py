"""OpenAI's `/v1/responses` for text: a translation to chat completions and back. Nothing is stored."""

import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from services.core.errors import InvalidRequest
from services.core.http.bodies import JsonRoute, OpenRequest
from services.core.strict_requests import JsonList, StrictRequest
from services.generate.http.chat_dialects import NOT_READ, ChatDialect, answer_chat, check_fields, of_types, renaming
from services.generate.http.openai_routes import ONLY_VLLM, check_chat
from services.generate.http.openai_schemas import (
    OVER_VLLM,
    TEMPERATURE_DESCRIPTION,
    ChatMessage,
    ChatRequest,
    PromptText,
    check_messages,
)
from services.generate.http.streaming import event_stream_content
from services.generate.service import CallLimits, GenerateService

# OpenAI's fields that would change the answer, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("background", "store"), (False,)),
    **dict.fromkeys(("conversation", "previous_response_id", "prompt", "access_programs", "context_management"), ()),
    **dict.fromkeys(("documents", "calibration", "citations", "image", "max_tool_calls", "moderation"), ()),
    "include": ([], ["reasoning.encrypted_content"]),
    "parallel_tool_calls": (True, False),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory", "24h"),
    "reasoning": ({}, {"effort": "none"}),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
REASON = "This route stores nothing, and answers text with text alone; /v1/chat/completions does more"
# Names elsewhere of what has another name here.
SYNONYMS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    "messages": "input",
    "response_format": "text",
    "system": "instructions",
}
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}


class ResponsesText(StrictRequest):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = Field(None, description="Of an earlier answer, and not read.")
    logprobs: list[Any] | None = Field(None, description="Of an earlier answer, and not read.")
    prompt_cache_breakpoint: dict[str, Any] | None = Field(None, description=NOT_READ)


class ResponsesMessage(StrictRequest):
    """One turn, or an earlier answer's message as it came."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | JsonList[Annotated[ResponsesText, of_types("input_text", "output_text")]]
    id: str | None = Field(None, description="Of an earlier answer, and not read, as the next two.")
    status: str | None = None
    phase: str | None = None


class ResponsesFormat(StrictRequest):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponsesTextOptions(StrictRequest):
    format: ResponsesFormat | None = Field(None, description=f"{OVER_VLLM}, if its type is not `text`.")
    verbosity: Literal["medium"] | None = None


def check_input(given: Any) -> Any:
    """Check the messages before they are read, and return them. Raises TooLarge for too many messages or parts."""
    with renaming(NAMES):
        return check_messages(given)


class ResponsesRequest(OpenRequest):
    """A text, or the messages of a conversation, to be answered with a text."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    input: Annotated[
        PromptText | Annotated[JsonList[Annotated[ResponsesMessage, of_types("message")]], Field(min_length=1)],
        BeforeValidator(check_input),
    ]
    instructions: str | None = Field(None, description="A message of the system's before the input.")
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Without it, as many as there is room for."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description=TEMPERATURE_DESCRIPTION)
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    text: ResponsesTextOptions | None = None
    metadata: dict[str, str] | None = Field(None, description="Returned with the answer.")
    prompt_cache_key: str | None = Field(None, description=NOT_READ)
    safety_identifier: str | None = Field(None, description=NOT_READ)
    user: str | None = Field(None, description=NOT_READ)
    stream: bool | None = None


class ResponsesOutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class ResponsesOutput(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[ResponsesOutputText]


class ResponsesIncomplete(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponsesInputDetails(BaseModel):
    cached_tokens: int = Field(description="Prompt tokens whose computation was reused from earlier requests.")
    cache_write_tokens: int


class ResponsesOutputDetails(BaseModel):
    reasoning_tokens: int


class ResponsesUsage(BaseModel):
    input_tokens: int
    input_tokens_details: ResponsesInputDetails
    output_tokens: int
    output_tokens_details: ResponsesOutputDetails
    total_tokens: int


class ResponsesAnswer(BaseModel):
    """The answer, with the request's own options; null where those of the model or the service held."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds.")
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    incomplete_details: ResponsesIncomplete | None
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    output: list[ResponsesOutput]
    usage: ResponsesUsage | None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    text: dict[str, Any]
    metadata: dict[str, str]
    error: None
    previous_response_id: None
    background: bool
    store: bool
    parallel_tool_calls: bool
    tool_choice: Literal["none"]
    tools: list[Any]
    truncation: Literal["disabled"]


class ResponsesEvent(BaseModel):
    """An event of a stream: `response.created`, `response.in_progress`, `response.output_item.added`,
    `response.content_part.added`, `response.output_text.delta`, the same three with `.done`, and `response.completed`
    or `response.incomplete`."""

    type: str
    sequence_number: int
    response: ResponsesAnswer | None = None
    item: ResponsesOutput | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    part: ResponsesOutputText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[Any] | None = None


def responses_router(service: GenerateService) -> APIRouter:
    """Create the route of OpenAI's responses."""
    router = APIRouter(tags=["openai"], route_class=JsonRoute)
    stream = event_stream_content(ResponsesEvent, has_done=False)

    @router.post(
        "/v1/responses",
        responses={
            200: {"model": ResponsesAnswer, "content": stream, "description": "The answer; with `stream`, its events"}
        },
    )
    async def responses(request: Request, body: ResponsesRequest) -> Response:
        """OpenAI's responses for text, by a server that stores nothing: a conversation is sent whole each time."""
        return await answer_chat(service, request, chat_request(service.limits, body), ResponseAnswer(body))

    return router


def chat_request(limits: CallLimits, body: ResponsesRequest) -> ChatRequest:
    """Translate a request to chat completions. Raises InvalidRequest for what can't be kept to, InvalidField for an
    unknown field."""
    check_fields(body, UNSUPPORTED, SYNONYMS, REASON)
    given = [ChatMessage(role="user", content=body.input)] if isinstance(body.input, str) else map(_turn, body.input)
    system = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    with renaming(NAMES):
        chat = ChatRequest(
            model=body.model,
            messages=[*system, *given],
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            response_format=_format(body.text, is_over_vllm=limits.is_over_vllm),
            stream=body.stream,
        )
        check_chat(chat, is_over_vllm=limits.is_over_vllm)
    return chat


def _turn(message: ResponsesMessage) -> ChatMessage:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return ChatMessage(role=message.role, content=text)


def _format(options: ResponsesTextOptions | None, *, is_over_vllm: bool) -> dict[str, Any] | None:
    """Translate the form of an answer. Raises InvalidRequest for any but text without vLLM."""
    asked = options.format if options is not None else None
    if asked is None or asked.type == "text":
        return None
    if not is_over_vllm:
        raise InvalidRequest(f"text.format: {ONLY_VLLM}; leave the field out.", param="text.format")
    if asked.type == "json_object":
        return {"type": "json_object"}
    schema = asked.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}


class ResponseAnswer(ChatDialect):
    """One answer in the form of OpenAI's responses."""

    names = NAMES

    def __init__(self, body: ResponsesRequest) -> None:
        super().__init__()
        self._body = body
        self._id, self._item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._number = -1

    def whole(self) -> dict[str, Any]:
        is_cut = self.choice.finish_reason == "length"
        usage = self.usage
        return {
            **self._response("incomplete" if is_cut else "completed"),
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item("incomplete" if is_cut else "completed", self._part())],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }

    def opening(self) -> Iterator[dict[str, Any]]:
        begun = self._response("in_progress")
        yield self._event("created", response=begun)
        yield self._event("in_progress", response=begun)
        yield self._event("output_item.added", output_index=0, item=self._item("in_progress"))
        yield self._of_part("content_part.added", part={**self._part(), "text": ""})

    def delta(self, text: str) -> Iterator[dict[str, Any]]:
        yield self._of_part("output_text.delta", delta=text, logprobs=[])

    def closing(self) -> Iterator[dict[str, Any]]:
        whole = self.whole()
        yield self._of_part("output_text.done", text=self.choice.text, logprobs=[])
        yield self._of_part("content_part.done", part=self._part())
        yield self._event("output_item.done", output_index=0, item=whole["output"][0])
        yield self._event(whole["status"], response=whole)

    def _event(self, name: str, **members: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{name}", "sequence_number": self._number, **members}

    def _of_part(self, name: str, **members: Any) -> dict[str, Any]:
        return self._event(name, item_id=self._item_id, output_index=0, content_index=0, **members)

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.choice.text, "annotations": [], "logprobs": []}

    def _item(self, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
        item = {"id": self._item_id, "type": "message", "role": "assistant"}
        return {**item, "status": status, "content": list(parts)}

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            "usage": None,
            **{name: getattr(body, name) for name in ("instructions", "max_output_tokens", "temperature", "top_p")},
            "text": {"format": {"type": "text"}, **text},
            "metadata": body.metadata or {},
            **dict.fromkeys(("error", "previous_response_id")),
            **dict.fromkeys(("background", "store", "parallel_tool_calls"), False),
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
        }
