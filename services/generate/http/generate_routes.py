"""`/generate` and the list of models: requests become calls of the model, and its results reports on documents."""

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from pydantic import ValidationError

from services.core.errors import InvalidField, check_count
from services.core.exchange import RequestContext, context_of
from services.core.http.bodies import JsonRoute, check_query
from services.core.serving.model_object import model_fields, models_router
from services.core.serving.served_models import Resident
from services.generate.generation.generation import AnswerOptions, LayerMeans, Progress, PromptFacts
from services.generate.generation.input_processor import InputProcessor
from services.generate.generation.sampling import Sampling
from services.generate.http.generate_schemas import (
    AnyDocument,
    AppliedCalibration,
    CalibrationOptions,
    DocumentReport,
    ExplainedDocument,
    FinishReason,
    GenerateAnswer,
    GenerateDelta,
    GenerateEnd,
    GenerateRequest,
    GenerateUsage,
    LayerReport,
    Model,
    ModelCalibration,
    ModelLimits,
    ModelList,
)
from services.generate.http.streaming import DONE, EventStream, event, event_stream_content
from services.generate.model.profile import BadProfile, CalibrationProfile, last_half, paper_profile
from services.generate.prompts.templates import Document
from services.generate.service import CallLimits, Charged, GenerateService, ModelFacts


def documents_of(given: Sequence[AnyDocument], max_documents: int) -> tuple[Document, ...]:
    """The documents of a request. Raises TooLarge for more than the limit."""
    check_count("documents", len(given), max_documents)
    return tuple(Document(one) if isinstance(one, str) else Document(one.text, one.title, one.id) for one in given)


def calibration_of(
    options: CalibrationOptions | None, profile: CalibrationProfile, num_layers: int
) -> CalibrationProfile:
    """A checkpoint's profile with a request's changes.

    If the profile has no layers, layers and temperature that a request leaves out are the paper's. The profile's tables
    are used only for the dummies that they were measured with. Raises InvalidField for options that the model or the
    profile does not allow.
    """
    if options is None:
        return profile
    changes: dict[str, Any] = options.model_dump(exclude_none=True)
    if not profile.layers or not profile.rel_layers:
        lent = paper_profile(num_layers).model_dump(include={"temperature", "layers", "rel_layers"})
        changes = {**lent, **changes}
    if (named := changes.get("layers")) in ("last_half", "all"):
        changes["layers"] = last_half(num_layers) if named == "last_half" else tuple(range(num_layers))
    try:
        return profile.changed(changes).check_layers(num_layers)
    except BadProfile as error:
        raise InvalidField(f"calibration.layers: {error}.", param="calibration.layers") from None
    except ValidationError as error:
        reason = "; ".join(one["msg"].removeprefix("Value error, ") for one in error.errors())
        raise InvalidField(f"calibration: {reason}.", param="calibration") from None


def without_leading_space(progress: Progress, text_so_far: str) -> Progress:
    """Strip an answer's leading white space from a step; its tokens do not change.

    The first token of an answer often contains the space that separates the answer from the prompt.
    """
    text = progress.text if text_so_far else progress.text.lstrip()
    return progress if text == progress.text else replace(progress, text=text)


def applied_of(facts: PromptFacts) -> AppliedCalibration | None:
    """Report how an answer was calibrated; None if it was not."""
    return None if facts.applied is None else AppliedCalibration(**_reported(facts.applied))


def _reported(profile: CalibrationProfile) -> dict[str, Any]:
    return profile.model_dump(include=set(AppliedCalibration.model_fields))


def reports_of(documents: Sequence[Document], facts: PromptFacts) -> list[DocumentReport]:
    """Report the attention and relevance of each document, in the order of the request."""
    positions = {index: position for position, index in enumerate(facts.order)}
    return [
        DocumentReport(
            id=document.id,
            index=index,
            position=positions[index],
            attention=facts.attention[positions[index]],
            relevance=facts.relevance[positions[index]] if facts.relevance is not None else None,
        )
        for index, document in enumerate(documents)
    ]


def explained_reports_of(documents: Sequence[Document], facts: PromptFacts) -> list[ExplainedDocument]:
    """Report the same with each document's attention and relevance by layer, if the facts have them."""
    reports = reports_of(documents, facts)
    return [ExplainedDocument(**one.model_dump(), by_layer=_by_layer(facts.by_layer, one.position)) for one in reports]


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


@dataclass
class AnswerSoFar:
    """One answer, accumulated over its steps."""

    id: str
    documents: tuple[Document, ...]
    text: str = ""
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    facts: PromptFacts | None = None

    def add(self, progress: Progress) -> str:
        """Add the next step, and return its addition to the text."""
        text = without_leading_space(progress, self.text).text
        self.text += text
        self.num_tokens = progress.num_tokens
        assert progress.finish_reason != "tool_calls", "a question has no tools"
        self.finish_reason = progress.finish_reason
        self.facts = self.facts or progress.facts
        return text

    def end(self, model: str | None) -> GenerateEnd:
        """Everything except the text, once the last step has arrived."""
        assert model is not None, "what has answered has a name"
        assert self.facts is not None, "facts come with the first step"
        assert self.finish_reason is not None, "the last step says why it is the last"
        return GenerateEnd(
            id=self.id,
            model=model,
            finish_reason=self.finish_reason,
            relevance=self.facts.answerable,
            documents=explained_reports_of(self.documents, self.facts),
            calibration=applied_of(self.facts),
            usage=GenerateUsage(
                prompt_tokens=self.facts.prompt_tokens,
                completion_tokens=self.num_tokens,
                total_tokens=self.facts.prompt_tokens + self.num_tokens,
                calibration_passes=self.facts.calibration_passes,
            ),
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
        context, answer = context_of(request.scope), AnswerSoFar(f"gen-{uuid.uuid4().hex}", documents)
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
    )
    generation = processor.prepare_question(body.query, documents, options)
    return [Charged(generation, processor.cost(generation))]


async def _events(
    steps: AsyncGenerator[tuple[int, Progress], None], answer: AnswerSoFar, context: RequestContext
) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        async for _, progress in steps:
            if text := answer.add(progress):
                yield event(GenerateDelta(delta=text))
        yield event(answer.end(context.model))
    yield DONE


def _model(limits: CallLimits, resident: Resident[Any, ModelFacts, Any], facts: ModelFacts) -> Model:
    return Model(
        **model_fields(resident),
        max_model_len=facts.context_length,
        calibration=ModelCalibration(enabled=facts.profile.enabled, **_reported(facts.profile)),
        limits=ModelLimits(
            max_documents=limits.max_documents,
            max_tokens=limits.max_tokens,
            max_choices=limits.max_choices,
        ),
    )
