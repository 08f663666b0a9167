"""Rerank requests of Jina, Cohere (both versions) and text-embeddings-inference, and their responses."""

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from services.core.http.bodies import JsonList, OpenRequest
from services.core.http.error_responses import ErrorDetail
from services.generate.http.generate_schemas import check_length
from services.generate.prompts.ranking import RankMethod


class RerankDocument(BaseModel):
    """A passage; the model also sees its `title`, and other fields are returned as they were sent."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    text: str
    title: str = ""

    @model_validator(mode="after")
    def can_come_back(self) -> Self:
        """Reject JSON that is nested too deeply to be written again."""
        try:
            orjson.dumps(self.model_extra)
        except orjson.JSONEncodeError:
            raise ValueError("the other fields are nested too deeply") from None
        return self


class RerankRequest(OpenRequest):
    """The rerank request of Jina and of both of Cohere's versions."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[JsonList[str | RerankDocument], BeforeValidator(check_length)]
    top_n: Annotated[int, Field(ge=0)] | None = Field(None, description="Most results to return; 0 or null: all.")
    return_documents: bool | None = Field(
        None, description="True by default; Cohere's version 2 never returns documents."
    )
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Longer documents are cut to this number of tokens and listed in `meta.warnings`."
    )
    method: RankMethod = Field("calibrated", description="How documents are scored.")
    rank_fields: JsonList[str] | None = Field(None, description="Only `text` and `title` are supported.")


class TeiRerankRequest(BaseModel):
    """The rerank request of text-embeddings-inference; recognised by its `texts`."""

    query: Annotated[str, Field(min_length=1)]
    texts: JsonList[str]
    raw_scores: bool | None = Field(False, description="Return the method's raw scores instead of scores in [0, 1].")
    return_text: bool | None = False
    truncate: bool | None = Field(False, description="Ignored: texts that are too long are refused, never cut.")
    method: RankMethod = "calibrated"


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
    """`warnings` lists the documents that were cut because the request asked for it."""

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
