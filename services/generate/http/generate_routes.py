"""`/generate` and the list of models: bodies and calls of the model."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from services.core.documents import DocumentList
from services.core.errors import check_count
from services.core.exchange import RequestContext, context_of
from services.core.http.bodies import JsonRoute, check_query
from services.core.serving.model_object import ModelObject, model_fields, models_router
from services.core.serving.served_models import Resident
from services.core.strict_requests import JsonList, StrictRequest
from services.generate.generation.generation import AnswerOptions, LayerMeans, Progress, Reorder
from services.generate.generation.input_processor import InputProcessor
from services.generate.generation.sampling import Sampling
from services.generate.http.citations import CITATIONS_DESCRIPTION, Citation, check_citations
from services.generate.http.documents import (
    APPLIED_DESCRIPTION,
    REORDER_DESCRIPTION,
    SEED_DESCRIPTION,
    AppliedCalibration,
    CalibrationOptions,
    DocumentReport,
    FinishReason,
    applied_of,
    calibration_of,
    documents_of,
    reports_of,
)
from services.generate.http.openai_bodies import ChoiceSoFar, usage_of
from services.generate.http.streaming import DONE, EventStream, event, event_stream_content
from services.generate.model.profile import ProfileSource
from services.generate.prompts.templates import Document
from services.generate.service import CallLimits, Charged, GenerateService, ModelFacts, follows_instructions

MAX_STOPS = 16

RELEVANCE_DESCRIPTION = (
    "Probability that the documents answer the question, of all answers together; beside a refusal it can be above 0.5,"
    " where no single answer is as likely. Null if the checkpoint has no trained refusal."
)


class GenerateRequest(StrictRequest):
    """A question over documents, which the prompt lists in the given order unless they are reordered."""

    query: Annotated[str, Field(min_length=1)]
    documents: DocumentList = Field([])
    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    calibration: CalibrationOptions | None = None
    reorder: Reorder = Field("none", description=REORDER_DESCRIPTION)
    max_tokens: Annotated[int, Field(ge=1)] = 128
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = Field(0.0, description="0: greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    stop: Annotated[JsonList[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] = Field(
        [], description="Stop texts: the answer ends before the first of them."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description=SEED_DESCRIPTION)
    explain: bool = Field(False, description="Return each document's attention and relevance by layer, too.")
    citations: bool = Field(False, description=CITATIONS_DESCRIPTION)
    stream: bool = False


class LayerReport(BaseModel):
    """Attention and relevance of one document in each layer, from the first, as means over all heads of the layer."""

    attention: list[float] = Field(description="Attn(k) of every layer, uncalibrated.")
    relevance: list[float] | None = Field(
        description="rel(k) of the layers up to the last whose attention counts as relevance; null where nothing was"
        " calibrated, or where a table holds the bias of the document's place."
    )


class ExplainedDocument(DocumentReport):
    """The report on a document with, on request, its attention by layer."""

    by_layer: LayerReport | None = Field(description="Null without `explain`.")


class GenerateUsage(BaseModel):
    """`calibration_passes` counts the forward passes that estimated positional bias, besides the prompt's own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    calibration_passes: int


class AnswerText(BaseModel):
    answer: str


class GenerateHead(BaseModel):
    """The part of an answer that is known before its text."""

    id: str
    object: Literal["fovea.generation"] = "fovea.generation"
    model: str = Field(description="`name@version` of the checkpoint that answered.")


class GenerateEnd(GenerateHead):
    """The last event of a stream: everything about an answer except its text."""

    finish_reason: FinishReason
    relevance: float | None = Field(ge=0, le=1, description=RELEVANCE_DESCRIPTION)
    documents: list[ExplainedDocument]
    citations: list[Citation] | None = Field(description="Each sentence with its documents; null without `citations`.")
    calibration: AppliedCalibration | None = Field(description=APPLIED_DESCRIPTION)
    usage: GenerateUsage


class GenerateAnswer(GenerateEnd, AnswerText):
    """A whole answer; its text comes first."""


class GenerateDelta(BaseModel):
    delta: str


class ModelLimits(BaseModel):
    """Limits of one request."""

    max_documents: int
    max_tokens: int
    max_choices: int


class ModelCalibration(AppliedCalibration):
    """The calibration of requests that do not choose their own."""

    enabled: bool
    source: ProfileSource = Field(
        description="Where the settings come from: measurements on this model (`fovea calibrate`), or the paper alone."
    )


class Model(ModelObject):
    """The served model."""

    max_model_len: int = Field(description="Most tokens of a prompt and its answer together.")
    calibration: ModelCalibration
    limits: ModelLimits


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def _by_layer(means: LayerMeans | None, position: int) -> LayerReport | None:
    if means is None:
        return None
    relevance = None if means.relevance is None else [layer[position] for layer in means.relevance]
    return LayerReport(attention=[layer[position] for layer in means.attention], relevance=relevance)


GENERATE_RESPONSE: dict[str, Any] = {
    "model": GenerateAnswer,
    "description": "The answer; with `stream`, events with its text and a last one with everything else",
    "content": event_stream_content(GenerateDelta, GenerateEnd),
}


class AnswerSoFar(ChoiceSoFar):
    """One answer to a question, accumulated over its steps."""

    def __init__(self, id: str, documents: tuple[Document, ...], *, cites: bool = False) -> None:
        super().__init__(0, 0, is_reply=True)
        self._id = id
        self._documents = documents
        self._cites = cites

    def end(self, model: str | None) -> GenerateEnd:
        """Everything except the text, once the last step has arrived."""
        assert model is not None, "what has answered has a name"
        assert self.facts is not None, "facts come with the first step"
        return GenerateEnd.model_validate(
            {
                "id": self._id,
                "model": model,
                "finish_reason": self.finish_reason,
                "relevance": self.facts.answerable,
                "documents": [
                    ExplainedDocument(**one.model_dump(), by_layer=_by_layer(self.facts.by_layer, one.position))
                    for one in reports_of(self._documents, self.facts)
                ],
                "citations": self.citations() if self._cites else None,
                "calibration": applied_of(self.facts),
                "usage": usage_of([self]),
            }
        )


def generate_router(service: GenerateService) -> APIRouter:
    """Create the route that answers questions over documents."""
    router = APIRouter(tags=["generate"], route_class=JsonRoute, dependencies=[Depends(check_query)])

    @router.post("/generate", response_class=Response, responses={200: GENERATE_RESPONSE})
    async def generate(request: Request, body: GenerateRequest) -> Response:
        """Answer a question over documents, with the bias of their positions measured and removed.

        The attention and relevance of each document are reported in the order of the request; with `explain`, by layer.
        """
        documents = documents_of(body.documents, service.limits.max_documents)
        check_count("max_tokens", body.max_tokens, service.limits.max_tokens, "tokens")
        if body.citations:
            has_documents = "documents" in body.model_fields_set
            check_citations(has_documents=has_documents, is_over_vllm=service.limits.is_over_vllm)
        context = context_of(request.scope)
        answer = AnswerSoFar(f"gen-{uuid.uuid4().hex}", documents, cites=body.citations)
        steps = service.generate(body.model, partial(_charged, body, documents), context)
        if body.stream:
            return await EventStream.begin(_events(steps, answer, context))
        async with aclosing(steps):
            async for _, progress in steps:
                answer.add(progress)
        whole = GenerateAnswer(answer=answer.text, **answer.end(context.model).model_dump())
        return Response(orjson.dumps(whole.model_dump()), media_type="application/json")

    return router


def generate_models_router(service: GenerateService) -> APIRouter:
    """Make the routes of the served models, in OpenAI's form."""
    return models_router(service.models, partial(_model, service.limits), one=Model, listing=ModelList)


def _charged(body: GenerateRequest, documents: tuple[Document, ...], processor: InputProcessor) -> list[Charged]:
    options = AnswerOptions(
        max_tokens=body.max_tokens,
        sampling=Sampling(body.temperature, body.top_p, body.seed),
        stop=tuple(body.stop),
        calibration=calibration_of(body.calibration, processor.profile, processor.num_layers),
        reorder=body.reorder,
        explain=body.explain,
        cite=body.citations,
    )
    generation = processor.prepare_question(body.query, documents, options)
    return [Charged(generation, processor.cost(generation))]


async def _events(
    steps: AsyncGenerator[tuple[int, Progress], None], answer: AnswerSoFar, context: RequestContext
) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        async for _, progress in steps:
            if text := answer.add(progress).text:
                yield event(GenerateDelta(delta=text))
        yield event(answer.end(context.model))
    yield DONE


def _model(limits: CallLimits, resident: Resident[Any, ModelFacts, Any], facts: ModelFacts) -> Model:
    manifest = resident.checkpoint.manifest
    assert manifest is not None, "what has been loaded has a version"
    return Model(
        **model_fields(resident),
        decides=follows_instructions(facts, manifest),
        max_model_len=facts.context_length,
        calibration=ModelCalibration.of(facts.profile),
        limits=ModelLimits(**{name: getattr(limits, name) for name in ModelLimits.model_fields}),
    )
