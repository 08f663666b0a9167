"""Anthropic's `/v1/messages` and its count of tokens, over documents with citations: a translation to chat completions.

Each text of a document, and each block of its content, is a document of the chat, and what a citation can name: the
attention of an answer tells documents apart, and no places in them.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from services.core.documents import DocumentInput
from services.core.errors import InvalidRequest
from services.core.http.bodies import JsonRoute, OpenRequest
from services.core.http.error_responses import AnthropicError, anthropic_error_body, error_responses
from services.core.strict_requests import JsonList, StrictRequest
from services.generate.citations import sentences
from services.generate.http.chat_dialects import (
    NOT_READ,
    ChatDialect,
    answer_chat,
    check_fields,
    count_chat,
    of_types,
    renaming,
)
from services.generate.http.citations import check_citations
from services.generate.http.openai_routes import check_chat
from services.generate.http.openai_schemas import (
    OVER_VLLM,
    TEMPERATURE_DESCRIPTION,
    ChatMessage,
    ChatRequest,
    Stop,
    check_messages,
)
from services.generate.http.streaming import event_stream_content
from services.generate.service import CallLimits, GenerateService

MAX_STOPS = 16
FINISH_REASONS = {"stop": "end_turn", "length": "max_tokens"}
# Anthropic's fields that would change the answer, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "mcp_servers"), ([],)),
    **dict.fromkeys(("container", "context_management", "diagnostics", "inference_geo", "output_format"), ()),
    "output_config": ({},),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),
    "user_profile_id": (),
}
REASON = "This route reads text and documents and answers with text alone"
# Names elsewhere of what has another name here.
SYNONYMS = {"documents": "messages", "instructions": "system", "stop": "stop_sequences"}
NAMES = {"documents": "messages", "stop": "stop_sequences"}


class AnthropicText(StrictRequest):
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = Field(None, description=NOT_READ)
    citations: list[Any] | None = Field(None, description="Of an earlier answer, and not read.")


class AnthropicPlainSource(StrictRequest):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class AnthropicContentSource(StrictRequest):
    """Each of its blocks is a document of the prompt, and cited by its place; a plain string is one block."""

    type: Literal["content"]
    content: str | Annotated[JsonList[Annotated[AnthropicText, of_types("text")]], Field(min_length=1)]


class AnthropicCitations(StrictRequest):
    enabled: bool | None = None


class AnthropicDocument(StrictRequest):
    """A document that the user's last message asks about."""

    type: Literal["document"]
    source: Annotated[
        Annotated[AnthropicPlainSource, Tag("a plain source")]
        | Annotated[AnthropicContentSource, Tag("a content source")],
        Discriminator(lambda given: "a content source" if _type_of(given) == "content" else "a plain source"),
        of_types("text", "content"),
    ]
    title: str | None = None
    context: str | None = Field(None, description="Read by the model before the text, and never cited.")
    citations: AnthropicCitations | None = Field(
        None, description="Enable them for all documents or for none; refused over vLLM."
    )
    cache_control: dict[str, Any] | None = Field(None, description=NOT_READ)


def _type_of(given: Any) -> Any:
    return given.get("type") if isinstance(given, dict) else getattr(given, "type", None)


AnthropicBlock = Annotated[
    Annotated[AnthropicText, Tag("a text block")] | Annotated[AnthropicDocument, Tag("a document block")],
    Discriminator(lambda given: "a document block" if _type_of(given) == "document" else "a text block"),
    of_types("text", "document"),
]


class AnthropicMessage(StrictRequest):
    role: Literal["user", "assistant", "system"]
    content: str | JsonList[AnthropicBlock]


class AnthropicPrompt(OpenRequest):
    """A conversation as the model reads it, with the documents in the user's messages."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    messages: Annotated[JsonList[AnthropicMessage], Field(min_length=1), BeforeValidator(check_messages)] = Field(
        description="The last is not the assistant's: an answer that has begun can't be continued."
    )
    system: str | JsonList[Annotated[AnthropicText, of_types("text")]] | None = None
    cache_control: dict[str, Any] | None = Field(None, description=NOT_READ)


class AnthropicRequest(AnthropicPrompt):
    """A conversation in the form of Anthropic's messages, answered over documents where there are any."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[JsonList[Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description=f"{TEMPERATURE_DESCRIPTION} Also 0 over documents."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = Field(None, description=f"{OVER_VLLM}, if it is above 0.")
    metadata: dict[str, Any] | None = Field(None, description=NOT_READ)
    stream: bool = False


class AnthropicCitation(BaseModel):
    """A document that supports the sentence: a whole text by its characters, or a block of content by its place."""

    type: Literal["char_location", "content_block_location"]
    cited_text: str
    document_index: int = Field(description="Its place among all documents of the request, from 0.")
    document_title: str | None
    start_char_index: int | None = None
    end_char_index: int | None = None
    start_block_index: int | None = None
    end_block_index: int | None = None


class AnthropicAnswerText(BaseModel):
    type: Literal["text"]
    text: str
    citations: list[AnthropicCitation] | None = Field(description="The most attended first; null if there are none.")


class AnthropicUsage(BaseModel):
    input_tokens: int = Field(description="Those that were not reused from earlier requests.")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicAnswer(BaseModel):
    """The answer; one that cites has a block for each sentence."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    content: list[AnthropicAnswerText]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"]
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicTokens(BaseModel):
    input_tokens: int


class AnthropicEvent(BaseModel):
    """An event of a stream: `message_start`, `content_block_start`, `ping`, `content_block_delta`,
    `content_block_stop`, `message_delta` or `message_stop`. Citations come after all text, by the index of its block.
    """

    type: str
    index: int | None = None
    message: dict[str, Any] | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: AnthropicUsage | None = None


class AnthropicRoute(JsonRoute):
    """Route with errors in the form that Anthropic's clients read."""

    error_body = staticmethod(anthropic_error_body)


# In the newer one temperature, top_p and top_k are gone; here they stay, for models that are sampled by them.
Version = Annotated[Literal["2023-06-01", "2026-10-21"], Header(alias="anthropic-version")]


def anthropic_router(service: GenerateService) -> APIRouter:
    """Create the routes of Anthropic's messages."""
    router = APIRouter(tags=["anthropic"], route_class=AnthropicRoute, responses=error_responses(AnthropicError))
    stream = event_stream_content(AnthropicEvent, error=AnthropicError, has_done=False)

    @router.post(
        "/v1/messages",
        responses={
            200: {"model": AnthropicAnswer, "content": stream, "description": "The answer; with `stream`, its events"}
        },
    )
    async def messages(request: Request, body: AnthropicRequest, version: Version = "2023-06-01") -> Response:
        """Anthropic's messages: the user's last message asks about the documents, and the answer cites them."""
        chat, passages = chat_request(service.limits, body)
        return await answer_chat(service, request, chat, MessagesAnswer(passages if chat.citations else ()))

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request, body: AnthropicPrompt, version: Version = "2023-06-01") -> AnthropicTokens:
        """The number of tokens that the same messages have in a prompt."""
        chat, _ = chat_request(service.limits, body)
        return AnthropicTokens(input_tokens=await count_chat(service, request, chat, NAMES))

    return router


@dataclass(frozen=True)
class Passage:
    """A document of the chat: the text of one of the request's, or a block of its content."""

    document: int
    title: str | None
    context: str | None
    text: str
    block: int | None = None

    def document_input(self) -> DocumentInput:
        return DocumentInput(title=self.title or "", text="\n".join(filter(None, (self.context, self.text))))

    def citation(self) -> dict[str, Any]:
        """Render an AnthropicCitation of all of it."""
        cited = {"cited_text": self.text, "document_index": self.document, "document_title": self.title}
        if self.block is None:
            return {"type": "char_location", **cited, "start_char_index": 0, "end_char_index": len(self.text)}
        place = {"start_block_index": self.block, "end_block_index": self.block + 1}
        return {"type": "content_block_location", **cited, **place}


def chat_request(limits: CallLimits, body: AnthropicPrompt) -> tuple[ChatRequest, Sequence[Passage]]:
    """Translate a request to chat completions, with its documents.

    Raises InvalidRequest for what can't be kept to, InvalidField for an unknown field.
    """
    check_fields(body, UNSUPPORTED, SYNONYMS, REASON)
    last = len(body.messages) - 1
    if body.messages[last].role == "assistant":
        raise _refusal(f"messages.{last}", "An answer that has begun can't be continued; end with the user's message.")
    documents = list(_documents(body.messages))
    cites = _check_citations(documents, is_over_vllm=limits.is_over_vllm)
    passages = [one for index, (_, document) in enumerate(documents) for one in _passages(index, document)]
    system = [] if body.system is None else [ChatMessage(role="system", content=_text_of(body.system))]
    with renaming(NAMES):
        chat = ChatRequest(
            model=body.model,
            messages=[*system, *(ChatMessage(role=one.role, content=_text_of(one.content)) for one in body.messages)],
            documents=[one.document_input() for one in passages] if passages else None,
            citations=cites,
        )
        if isinstance(body, AnthropicRequest):
            given = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "stream")}
            # without its checks: a request may have more stop texts than OpenAI's
            chat = chat.model_copy(update={**given, "stop": body.stop_sequences})
        check_chat(chat, is_over_vllm=limits.is_over_vllm)
    return chat, passages


def _text_of(content: str | Sequence[AnthropicText | AnthropicDocument]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.text for block in content if isinstance(block, AnthropicText))


def _documents(messages: Sequence[AnthropicMessage]) -> Iterator[tuple[str, AnthropicDocument]]:
    """Yield each document and its place. Raises InvalidRequest for one that is not the user's."""
    for index, message in enumerate(messages):
        for place, block in enumerate(() if isinstance(message.content, str) else message.content):
            if isinstance(block, AnthropicDocument):
                where = f"messages.{index}.content.{place}"
                if message.role != "user":
                    raise _refusal(where, "Only messages of the user's have documents.")
                yield where, block


def _check_citations(documents: Sequence[tuple[str, AnthropicDocument]], *, is_over_vllm: bool) -> bool:
    """Whether the answer cites. Raises InvalidRequest where it can't."""
    asked = {bool(document.citations and document.citations.enabled): where for where, document in documents}
    if len(asked) > 1:
        raise _refusal(f"{asked[False]}.citations", "Enable citations for all documents or for none.")
    if True in asked:
        check_citations(f"{asked[True]}.citations", is_over_vllm=is_over_vllm)
    return True in asked


def _passages(index: int, document: AnthropicDocument) -> Iterator[Passage]:
    source = document.source
    if isinstance(source, AnthropicPlainSource):
        yield Passage(index, document.title, document.context, source.data)
        return
    blocks = [source.content] if isinstance(source.content, str) else [block.text for block in source.content]
    for place, text in enumerate(blocks):
        yield Passage(index, document.title, document.context, text, place)


def _refusal(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {reason}", param=param)


class MessagesAnswer(ChatDialect):
    """One answer in Anthropic's form; if it cites passages, each sentence is a block, with the white space after it."""

    names = NAMES

    def __init__(self, passages: Sequence[Passage]) -> None:
        super().__init__()
        self.id = f"msg_{uuid.uuid4().hex}"
        self._passages = passages
        self._starts = [0]  # of the blocks, in characters

    def whole(self) -> dict[str, Any]:
        text = self.choice.text
        self._starts += self._new_starts()
        places = zip(self._starts, [*self._starts[1:], len(text)], strict=True)
        blocks = [
            {"type": "text", "text": text[start:end], "citations": cited or None}
            for (start, end), cited in zip(places, self._citations(), strict=True)
        ]
        return {**self._head(), "content": blocks, **self._stop()}

    def opening(self) -> Iterator[dict[str, Any]]:
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": message}
        yield self._start(0)
        yield {"type": "ping"}

    def delta(self, text: str) -> Iterator[dict[str, Any]]:
        index, done = len(self._starts) - 1, len(self.choice.text) - len(text)
        for start in self._new_starts():
            if start > done:
                yield self._text(index, self.choice.text[done:start])
            index, done = index + 1, start
            self._starts.append(start)
            yield self._start(index)
        yield self._text(index, self.choice.text[done:])

    def closing(self) -> Iterator[dict[str, Any]]:
        for index, cited in enumerate(self._citations()):
            for citation in cited:
                delta = {"type": "citations_delta", "citation": citation}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        yield {"type": "message_stop"}

    def _new_starts(self) -> list[int]:
        """Find where sentences begin after the last block's beginning; none of them moves as the text goes on."""
        last = self._starts[-1]
        return [last + start for start, _ in sentences(self.choice.text[last:])][1:] if self._passages else []

    def _citations(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the citations of each block, the most attended first."""
        found = self.choice.citations() if self._passages else []
        for one in found or [{"documents": []}]:
            yield [self._passages[document["index"]].citation() for document in one["documents"]]

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "usage": self._usage()}

    def _stop(self) -> dict[str, Any]:
        stop = self.choice.stop_string
        reason = FINISH_REASONS[self.choice.finish_reason or "stop"] if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop}

    def _usage(self) -> dict[str, int]:
        usage = self.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }

    @staticmethod
    def _start(index: int) -> dict[str, Any]:
        block = {"type": "text", "text": "", "citations": None}
        return {"type": "content_block_start", "index": index, "content_block": block}

    @staticmethod
    def _text(index: int, text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
