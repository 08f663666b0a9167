"""Reranking in the formats of Jina, Cohere (both versions) and text-embeddings-inference."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from fastapi import APIRouter, Body, Depends, Request, Response
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from services.core.documents import check_length
from services.core.errors import InvalidField, InvalidRequest, check_count
from services.core.exchange import context_of
from services.core.http.bodies import JsonRoute, OpenRequest, refuse_unsupported
from services.core.http.error_responses import (
    ErrorDetail,
    TeiError,
    error_responses,
    rerank_error_body,
    tei_error_body,
    tei_headers,
)
from services.core.images.inputs import ImageInput, image_input
from services.core.images.references import ImageLimits, JsonImage
from services.core.strict_requests import JsonList
from services.generate.generation.ranking import Ranking
from services.generate.http.chat_dialects import renaming
from services.generate.model.reranker_engine import QUERY
from services.generate.prompts.ranking import RankMethod
from services.generate.prompts.templates import Document
from services.generate.service import CallLimits, GenerateService, RankCall, Ranked

METHOD_DESCRIPTION = "How a language model scores documents, `calibrated` by default. A reranker has its own score."


class RerankContent(BaseModel):
    """A text, an image, or both: in Jina's form by `text` and `image`, in vLLM's by `content`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    text: str | None = Field(None, description="Required, unless there is an image.")
    image: JsonImage | None = Field(
        None, description="A URL, base64 or a data URI, for models that read images; vLLM's `content` may hold it, too."
    )

    @property
    def parts(self) -> list[Any] | None:
        """The parts of vLLM's `content`; None for a `content` that is another field of a passage."""
        given = (self.model_extra or {}).get("content")
        return given if isinstance(given, list) and self.text is None and self.image is None else None

    @model_validator(mode="before")
    @classmethod
    def has_content(cls, given: Any) -> Any:
        """Require a text where nothing takes its place."""
        if not isinstance(given, dict) or any(given.get(name) is not None for name in ("text", "image")):
            return given
        if not isinstance(given.get("content"), list):
            missing = InitErrorDetails(type="missing", loc=("text",), input=given)
            raise ValidationError.from_exception_data(cls.__name__, [missing])
        return given


class RerankDocument(RerankContent):
    """A passage; the model also sees its `title`, and other fields are returned as they were sent."""

    title: str = ""

    @model_validator(mode="after")
    def can_come_back(self) -> Self:
        """Reject JSON that is nested too deeply to be written again."""
        try:
            orjson.dumps(self.model_extra)
        except orjson.JSONEncodeError:
            raise ValueError("the other fields are nested too deeply") from None
        return self


class InstructedRequest(OpenRequest):
    """A request with a text that tells which documents count as relevant."""

    instruct: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Which documents count as relevant, for Qwen3-Reranker, Qwen3-VL-Reranker and mxbai-rerank-v2.",
    )
    instruction: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="The same; `instruct` takes precedence."
    )


class RerankRequest(InstructedRequest):
    """The rerank request of Jina and of both of Cohere's versions."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    query: Annotated[str, Field(min_length=1)] | RerankContent
    documents: Annotated[JsonList[str | RerankDocument], BeforeValidator(check_length)]
    top_n: Annotated[int, Field(ge=0)] | None = Field(None, description="Most results to return; 0 or null: all.")
    return_documents: bool | None = Field(
        None, description="True by default; Cohere's version 2 never returns documents."
    )
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Longer documents are cut to this number of tokens and listed in `meta.warnings`."
    )
    method: RankMethod | None = Field(None, description=METHOD_DESCRIPTION)
    rank_fields: JsonList[str] | None = Field(None, description="Only `text` and `title` are supported.")


class TeiRerankRequest(InstructedRequest):
    """The rerank request of text-embeddings-inference; recognised by its `texts`."""

    query: Annotated[str, Field(min_length=1)]
    texts: JsonList[str]
    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    raw_scores: bool | None = Field(False, description="Return the method's raw scores instead of scores in [0, 1].")
    return_text: bool | None = False
    truncate: bool | None = Field(
        False, description="Ignored: a reranker cuts texts that are too long, a language model refuses them."
    )
    method: RankMethod | None = Field(None, description=METHOD_DESCRIPTION)


class RerankResult(BaseModel):
    """`index` counts the request's documents from 0."""

    index: int
    relevance_score: float = Field(ge=0, le=1)
    document: dict[str, Any] | None = Field(
        None, description="The document as it was sent; a plain string is returned as `text`."
    )


class RerankUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class ApiVersion(BaseModel):
    version: Literal["1", "2"]


class BilledUnits(BaseModel):
    search_units: int


class RerankMeta(BaseModel):
    """`warnings` lists the documents that were cut because the request asked for it, or to a reranker's limit."""

    api_version: ApiVersion
    billed_units: BilledUnits
    warnings: list[str] | None = None


class RerankAnswer(BaseModel):
    """The answer of Jina and of Cohere's version 1: best first, equal scores in the order of the request."""

    id: str
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta


class RerankScore(BaseModel):
    index: int
    relevance_score: float = Field(ge=0, le=1)


class RerankAnswerV2(BaseModel):
    """The answer of Cohere's version 2, which returns no documents."""

    id: str
    results: list[RerankScore]
    meta: RerankMeta


class TeiRank(BaseModel):
    index: int
    score: float
    text: str | None = None


class RerankError(BaseModel):
    """OpenAI's error envelope with the message repeated as `detail`, which Jina's clients read."""

    error: ErrorDetail
    detail: str


# Cohere bills one search for up to this number of documents.
DOCUMENTS_PER_SEARCH_UNIT = 100


def render_answer(body: RerankRequest, ranked: Ranked, *, id: str) -> dict[str, Any]:
    """Render a RerankAnswer."""
    ranking = ranked.ranking
    results: list[dict[str, Any]] = _scores(body, ranking)
    for result in results if body.return_documents is not False else ():
        given = body.documents[result["index"]]
        result["document"] = {"text": given} if isinstance(given, str) else given.model_dump(exclude_unset=True)
    usage = {"prompt_tokens": ranking.prompt_tokens, "total_tokens": ranking.prompt_tokens}
    return {"id": id, "model": ranked.model, "results": results, "usage": usage, "meta": _meta("1", body, ranked)}


def render_answer_v2(body: RerankRequest, ranked: Ranked, *, id: str) -> dict[str, Any]:
    """Render a RerankAnswerV2."""
    return {"id": id, "results": _scores(body, ranked.ranking), "meta": _meta("2", body, ranked)}


def render_tei(body: TeiRerankRequest, ranking: Ranking) -> list[dict[str, Any]]:
    """Render TeiRanks, best first."""
    scores = ranking.scores if body.raw_scores else ranking.relevance_scores
    return [
        {"index": k, "score": scores[k], **({"text": body.texts[k]} if body.return_text else {})} for k in ranking.order
    ]


def _scores(body: RerankRequest, ranking: Ranking) -> list[dict[str, Any]]:
    best = ranking.order[: body.top_n or None]
    return [{"index": k, "relevance_score": ranking.relevance_scores[k]} for k in best]


def _meta(version: Literal["1", "2"], body: RerankRequest, ranked: Ranked) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "api_version": {"version": version},
        "billed_units": {"search_units": -(-len(body.documents) // DOCUMENTS_PER_SEARCH_UNIT)},
    }
    reasons = {
        f"Cut to {body.max_tokens_per_doc} tokens by max_tokens_per_doc": ranked.cut,
        f"Cut to the model's {ranked.context_length} tokens of query and document": ranked.too_long,
    }
    if warnings := [f"{why}: document {', '.join(map(str, cut))}." for why, cut in reasons.items() if cut]:
        meta["warnings"] = warnings
    return meta


# Fields of a document that are read; `rank_fields` may name no others.
READ_FIELDS = frozenset({"text", "title"})
# Fields of vLLM's rerank, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation": (True,),
    "truncate_prompt_tokens": (),
    "use_activation": (True,),
}


class RerankRoute(JsonRoute):
    """Route with errors in the form that Jina's clients read."""

    error_body = staticmethod(rerank_error_body)


async def choose_dialect(request: Request) -> None:
    """Choose TEI's format for errors of a request with `texts`, including validation errors."""
    try:
        body = await request.json()
    except ValueError:
        return  # not JSON, which FastAPI reports itself
    if _is_tei(body):
        request.state.error_body = tei_error_body


def _is_tei(body: Any) -> bool:
    return "texts" in body if isinstance(body, dict) else isinstance(body, TeiRerankRequest)


AnyRerankRequest = Annotated[
    Annotated[TeiRerankRequest, Tag("TEI's")] | Annotated[RerankRequest, Tag("Jina's and Cohere's")],
    Discriminator(lambda body: "TEI's" if _is_tei(body) else "Jina's and Cohere's"),
]


def rerank_router(service: GenerateService) -> APIRouter:
    """Create the routes that rank documents."""
    router = APIRouter(tags=["rerank"], route_class=RerankRoute, responses=error_responses(RerankError))

    @router.post(
        "/v1/rerank",
        responses={
            **error_responses(RerankError, TeiError),
            200: {"model": RerankAnswer | list[TeiRank], "description": "In TEI's form for a TEI request"},
        },
        dependencies=[Depends(choose_dialect)],
    )
    async def rerank(request: Request, body: Annotated[AnyRerankRequest, Body()]) -> Response:
        """Rank documents by their relevance to a query, best first: Jina's form, and that of Cohere's version 1.

        A TEI request, recognised by its `texts`, is answered in TEI's form.
        """
        if isinstance(body, TeiRerankRequest):
            began = time.perf_counter()
            refuse_unsupported(body.model_extra, {}, TeiRerankRequest.model_fields)
            _check_count(body.texts, "texts", service.limits)
            documents = [Document(text) for text in body.texts]
            call = RankCall(body.query, documents, body.method, body.model, instruct=body.instruct or body.instruction)
            ranked = await _rank(service, body, call, request)
            headers = tei_headers(
                request,
                num_characters=len(body.query) + sum(map(len, body.texts)),
                num_tokens=ranked.ranking.prompt_tokens,
                seconds=time.perf_counter() - began,
            )
            content = orjson.dumps(render_tei(body, ranked.ranking))
            return Response(content, headers=headers, media_type="application/json")
        ranked = await _rank(service, body, _call(body, service.limits), request)
        return _json(render_answer(body, ranked, id=_new_id()))

    @router.post("/v2/rerank", responses={200: {"model": RerankAnswerV2, "description": "Cohere's form"}})
    async def rerank_v2(request: Request, body: RerankRequest) -> Response:
        """Rank documents by their relevance to a query, best first: the form of Cohere's version 2."""
        ranked = await _rank(service, body, _call(body, service.limits), request)
        return _json(render_answer_v2(body, ranked, id=_new_id()))

    return router


async def _rank(service: GenerateService, body: InstructedRequest, call: RankCall, request: Request) -> Ranked:
    with renaming({} if body.instruct is not None else {"instruct": "instruction"}):
        return await service.rank(call, context_of(request.scope))


def _call(body: RerankRequest, limits: CallLimits) -> RankCall:
    """Convert a request. Raises InvalidRequest if it cannot be ranked, TooLarge for too many documents."""
    refuse_unsupported(body.model_extra, UNSUPPORTED, RerankRequest.model_fields)
    if body.rank_fields is not None and not READ_FIELDS.issuperset(body.rank_fields):
        raise InvalidRequest("rank_fields: Only text and title are supported.", param="rank_fields")
    _check_count(body.documents, "documents", limits)
    query, query_image = _content(body.query, "query", limits.images)
    if not query and query_image is None:
        raise InvalidField("query: It is empty.", param="query")
    contents = [_content(one, f"documents.{place}", limits.images) for place, one in enumerate(body.documents)]
    images = {QUERY: query_image, **{place: image for place, (_, image) in enumerate(contents)}}
    return RankCall(
        query,
        [
            Document(text, "" if isinstance(one, str) else one.title)
            for one, (text, _) in zip(body.documents, contents, strict=True)
        ],
        body.method,
        body.model,
        body.max_tokens_per_doc,
        body.instruct or body.instruction,
        {place: image for place, image in images.items() if image is not None},
    )


def _content(given: str | RerankContent, param: str, limits: ImageLimits) -> tuple[str, ImageInput | None]:
    """Return the text and the image of a query or a document. Raises InvalidField for parts of another kind."""
    if isinstance(given, str):
        return given, None
    if given.parts is None:
        return given.text or "", None if given.image is None else image_input(given.image, f"{param}.image", limits)
    texts, images = list[str](), list[ImageInput]()
    for place, part in enumerate(given.parts):
        at = f"{param}.content.{place}"
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url"}:
                images.append(image_input(part, at, limits))
            case _:
                raise InvalidField(f"{at}: A part is a text or an image_url.", param=at)
    if not given.parts or len(texts) > 1 or len(images) > 1:
        told = "It has one text, one image_url, or one of each."
        raise InvalidField(f"{param}.content: {told}", param=f"{param}.content")
    return "".join(texts), next(iter(images), None)


def _check_count(documents: Sequence[Any], param: str, limits: CallLimits) -> None:
    if not documents:
        raise InvalidRequest(f"{param}: The list is empty.", param=param)
    check_count(param, len(documents), limits.max_documents)


def _new_id() -> str:
    return f"rerank-{uuid.uuid4().hex}"


def _json(body: dict[str, Any]) -> Response:
    # not orjson: documents at its limit of nesting would exceed it inside the answer
    return Response(json.dumps(body, ensure_ascii=False), media_type="application/json")
