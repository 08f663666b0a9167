"""Cohere's `/v2/chat` over documents, with citations: a translation to chat completions and back."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from services.core.documents import DocumentInput, check_length
from services.core.http.bodies import JsonRoute, OpenRequest, refuse_unsupported
from services.core.strict_requests import JsonList, StrictRequest
from services.generate.http.chat_dialects import ChatDialect, answer_chat
from services.generate.http.citations import check_citations
from services.generate.http.openai_routes import NAMES_OF_DOCUMENTS, check_chat
from services.generate.http.openai_schemas import ChatMessage, ChatRequest, ContentPart, Stop, check_messages
from services.generate.http.streaming import DONE, event_stream_content
from services.generate.service import CallLimits, GenerateService

MAX_STOPS = 5
MAX_TOP_K = 500
# Lists and objects of an answer around a document's data.
ANSWER_DEPTH = 12
WITHOUT_CITATIONS = ("OFF", "DISABLED")
FINISH_REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS"}
# Cohere's fields that would change the answer, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "response_format"), ([], {"type": "text"})),
    **dict.fromkeys(("strict_tools", "logprobs", "raw_prompting"), (False,)),
    "tool_choice": ("NONE",),
    "safety_mode": ("OFF", "NONE"),
    "thinking": ({"type": "disabled"},),
    "calibration": (),
    "reorder": ("none",),
}
# Names in chat completions of what has another name here.
SYNONYMS = {**NAMES_OF_DOCUMENTS, "citations": "citation_options", "stop": "stop_sequences", "top_k": "k", "top_p": "p"}


class CohereMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str | JsonList[ContentPart]


class CohereDocument(BaseModel):
    """The model reads `title` and `text` of `data`, and its other members line by line."""

    id: str | None = Field(None, description="Returned in citations; `doc:` and its place from 0 by default.")
    data: dict[str, Any]

    @model_validator(mode="after")
    def can_come_back(self) -> Self:
        """Reject JSON that is nested too deeply to be written again, inside an answer."""
        nested: Any = self.data
        for _ in range(ANSWER_DEPTH):
            nested = [nested]
        try:
            orjson.dumps(nested)
        except orjson.JSONEncodeError:
            raise ValueError("its data is nested too deeply") from None
        return self


class CitationOptions(StrictRequest):
    mode: Literal["ENABLED", "DISABLED", "FAST", "ACCURATE", "OFF"] | None = Field(
        None, description="All but `DISABLED` and `OFF` mean the same; refused over vLLM."
    )


class CohereChatRequest(OpenRequest):
    """A conversation in the form of Cohere's version 2, answered over documents where there are any."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    messages: Annotated[JsonList[CohereMessage], Field(min_length=1), BeforeValidator(check_messages)]
    documents: Annotated[JsonList[str | CohereDocument], BeforeValidator(check_length)] | None = None
    citation_options: CitationOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: Annotated[JsonList[Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="As in chat completions, so 0 by default over documents."
    )
    p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="`top_p`.")
    k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] | None = Field(None, description="`top_k`, above 0 over vLLM only.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=1)] | None = None
    stream: bool = False


class CohereText(BaseModel):
    type: Literal["text"]
    text: str


class CohereSource(BaseModel):
    type: Literal["document"]
    id: str
    document: dict[str, Any] = Field(description="Its `data`, a plain string as `text`, with its `id`.")


class CohereCitation(BaseModel):
    """A sentence of the answer that documents support, the most attended first."""

    start: int
    end: int
    text: str
    sources: list[CohereSource]
    content_index: int
    type: Literal["TEXT_CONTENT"]


class CohereAnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: list[CohereText]
    citations: list[CohereCitation] | None = Field(None, description="Left out if there are none.")


class CohereTokens(BaseModel):
    input_tokens: int
    output_tokens: int


class CohereUsage(BaseModel):
    billed_units: CohereTokens
    tokens: CohereTokens
    cached_tokens: int


class CohereChat(BaseModel):
    id: str
    finish_reason: Literal["COMPLETE", "MAX_TOKENS"]
    message: CohereAnswerMessage
    usage: CohereUsage


class CohereEvent(BaseModel):
    """An event of a stream: `message-start`, `content-start`, `content-delta`, `content-end`, `citation-start`,
    `citation-end` or `message-end`."""

    type: str
    id: str | None = None
    index: int | None = None
    delta: dict[str, Any] | None = None


def cohere_router(service: GenerateService) -> APIRouter:
    """Create the route of Cohere's chat."""
    router = APIRouter(tags=["cohere"], route_class=JsonRoute)

    @router.post(
        "/v2/chat",
        responses={
            200: {
                "model": CohereChat,
                "content": event_stream_content(CohereEvent),
                "description": "The answer; with `stream`, its events",
            }
        },
    )
    async def chat(request: Request, body: CohereChatRequest) -> Response:
        """Cohere's chat: the user's last message asks about `documents`, and the answer cites them."""
        asked = chat_request(service.limits, body)
        answer = CohereAnswer(body.documents if asked.citations else None)
        return await answer_chat(service, request, asked, answer)

    return router


def chat_request(limits: CallLimits, body: CohereChatRequest) -> ChatRequest:
    """Translate a request to chat completions. Raises InvalidRequest for a field that can't be kept to."""
    refuse_unsupported(body.model_extra, UNSUPPORTED, CohereChatRequest.model_fields, SYNONYMS)
    mode = body.citation_options.mode if body.citation_options is not None else None
    if body.documents and mode is not None and mode not in WITHOUT_CITATIONS:
        check_citations("citation_options", is_over_vllm=limits.is_over_vllm)
    chat = ChatRequest(
        model=body.model,
        messages=[ChatMessage(role=one.role, content=one.content) for one in body.messages],
        documents=None if body.documents is None else list(map(_document, body.documents)),
        citations=bool(body.documents) and mode not in WITHOUT_CITATIONS and not limits.is_over_vllm,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.p,
        seed=body.seed,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        stream=body.stream,
    )
    if body.k and not limits.is_over_vllm:
        refuse_unsupported({"k": body.k}, {"k": ()})
    # after its checks: Cohere allows one stop text more than OpenAI
    chat = chat.model_copy(update={"stop": body.stop_sequences, "top_k": body.k})
    check_chat(chat, is_over_vllm=limits.is_over_vllm)
    return chat


def _document(given: str | CohereDocument) -> DocumentInput:
    if isinstance(given, str):
        return DocumentInput(text=given)
    told = {name: one if isinstance(one, str) else orjson.dumps(one).decode() for name, one in given.data.items()}
    title, text = told.pop("title", ""), told.pop("text", "")
    others = [f"{name}: {value}" for name, value in told.items()]
    return DocumentInput(id=given.id, title=title, text="\n".join([text, *others] if text else others))


class CohereAnswer(ChatDialect):
    """One answer in Cohere's form; it cites `documents`, if any."""

    last = DONE

    def __init__(self, documents: Sequence[str | CohereDocument] | None) -> None:
        super().__init__()
        self.id = str(uuid.uuid4())
        self._documents = documents or ()

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": [{"type": "text", "text": self.choice.text}]}
        citations = self.citations()
        return {"id": self.id, "message": {**message, **({"citations": citations} if citations else {})}, **self.end()}

    def opening(self) -> Iterator[dict[str, Any]]:
        yield {"type": "message-start", "id": self.id, "delta": {"message": {"role": "assistant"}}}
        yield {"type": "content-start", "index": 0, "delta": _content({"type": "text", "text": ""})}

    def delta(self, text: str) -> Iterator[dict[str, Any]]:
        yield {"type": "content-delta", "index": 0, "delta": _content({"text": text})}

    def closing(self) -> Iterator[dict[str, Any]]:
        yield {"type": "content-end", "index": 0}
        for index, citation in enumerate(self.citations()):
            yield {"type": "citation-start", "index": index, "delta": {"message": {"citations": citation}}}
            yield {"type": "citation-end", "index": index}
        yield {"type": "message-end", "id": self.id, "delta": self.end()}

    def end(self) -> dict[str, Any]:
        """The finish reason and the usage."""
        usage = self.usage
        tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "finish_reason": FINISH_REASONS[self.choice.finish_reason or "stop"],
            "usage": {"billed_units": tokens, "tokens": tokens, "cached_tokens": cached},
        }

    def citations(self) -> list[dict[str, Any]]:
        """Render the sentences that some document supports."""
        found = self.choice.citations() if self._documents else []
        return [
            {
                **{name: one[name] for name in ("start", "end", "text")},
                "sources": [self._source(document["index"]) for document in one["documents"]],
                "content_index": 0,
                "type": "TEXT_CONTENT",
            }
            for one in found
            if one["documents"]
        ]

    def _source(self, index: int) -> dict[str, Any]:
        given = self._documents[index]
        own = None if isinstance(given, str) else given.id
        name = f"doc:{index}" if own is None else own
        data: Mapping[str, Any] = {"text": given} if isinstance(given, str) else given.data
        return {"type": "document", "id": name, "document": {**data, "id": name}}


def _content(content: dict[str, str]) -> dict[str, Any]:
    return {"message": {"content": content}}
