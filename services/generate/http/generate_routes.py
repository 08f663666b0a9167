"""`/generate` and the list of models."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.core.errors import check_count
from services.core.http.bodies import JsonRoute
from services.core.serving.model_object import model_fields
from services.generate.engine import AnswerOptions
from services.generate.generation.running_batch import Generation, Progress, PromptFacts
from services.generate.generation.sampling import Sampling
from services.generate.http.generate_calls import begun_with_text, calibration_of, documents_of, reports_of
from services.generate.http.generate_schemas import (
    FinishReason,
    GenerateAnswer,
    GenerateDelta,
    GenerateEnd,
    GenerateRequest,
    GenerateUsage,
    Model,
    ModelCalibration,
    ModelLimits,
    ModelList,
)
from services.generate.http.streaming import DONE, EventStream, event, event_stream_content
from services.generate.prompts.templates import Document
from services.generate.service import GenerateService, ServedGenerate

GENERATE_RESPONSE: dict[str, Any] = {
    "model": GenerateAnswer,
    "description": "The answer; with `stream`, events of its text and a last one with all the rest",
    "content": event_stream_content(GenerateDelta, GenerateEnd),
}


@dataclass
class AnswerSoFar:
    """One answer, of which more and more is known."""

    id: str
    documents: tuple[Document, ...]
    model: str
    text: str = ""
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    facts: PromptFacts | None = None

    def add(self, progress: Progress) -> None:
        """What the next step brought."""
        self.text += progress.text
        self.num_tokens = progress.num_tokens
        self.finish_reason = progress.finish_reason
        self.facts = self.facts or progress.facts

    def end(self) -> GenerateEnd:
        """All but the text, once the last step has come."""
        assert self.facts is not None, "facts come with the first step"
        assert self.finish_reason is not None, "the last step says why it is the last"
        return GenerateEnd(
            id=self.id,
            model=self.model,
            finish_reason=self.finish_reason,
            documents=reports_of(self.documents, self.facts),
            usage=GenerateUsage(
                prompt_tokens=self.facts.prompt_tokens,
                completion_tokens=self.num_tokens,
                total_tokens=self.facts.prompt_tokens + self.num_tokens,
                calibration_passes=self.facts.calibration_passes,
            ),
        )


def generate_router(service: GenerateService) -> APIRouter:
    """Answers over documents."""
    router = APIRouter(tags=["generate"], route_class=JsonRoute)

    @router.post("/generate", response_class=Response, responses={200: GENERATE_RESPONSE})
    async def generate(request: Request, body: GenerateRequest) -> Response:
        """Answer a question over documents, with the bias of their places measured and taken off.

        What the model saw in each document is told in the order of the request.
        """
        documents = documents_of(body.documents, service.limits.max_documents)
        check_count("max_tokens", body.max_tokens, service.limits.max_tokens, "tokens")
        answers = _answers(service, request, body, documents)
        if body.stream:
            return await EventStream.begin(_events(answers))
        async with aclosing(answers):
            async for answer, _ in answers:
                last = answer
        whole = GenerateAnswer(answer=last.text, **last.end().model_dump())
        return Response(orjson.dumps(whole.model_dump()), media_type="application/json")

    return router


def models_router(service: GenerateService) -> APIRouter:
    """What is served, in OpenAI's words."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models")
    async def models() -> ModelList:
        with service.checkpoint.lease() as served:
            return ModelList(data=[_model(service, served)])

    @router.get("/v1/models/{model_id}")
    async def model(model_id: str) -> Model:
        with service.checkpoint.lease() as served:
            service.checkpoint.check_model(served, model_id)
            return _model(service, served)

    return router


async def _answers(
    service: GenerateService, request: Request, body: GenerateRequest, documents: tuple[Document, ...]
) -> AsyncGenerator[tuple[AnswerSoFar, str], None]:
    """The answer so far after each step, and the text that the step has added."""
    with service.lease(request, body.model) as served:
        generation = await service.prepare(request, partial(_prepare, served, body, documents))
        answer = AnswerSoFar(f"gen-{uuid.uuid4().hex}", documents, request.state.model)
        async with aclosing(begun_with_text(service.run(request, served, generation))) as steps:
            async for progress in steps:
                answer.add(progress)
                yield answer, progress.text


def _prepare(served: ServedGenerate, body: GenerateRequest, documents: tuple[Document, ...]) -> Generation:
    engine = served.engine
    options = AnswerOptions(
        max_tokens=body.max_tokens,
        sampling=Sampling(body.temperature, body.top_p, body.seed),
        stop=tuple(body.stop),
        calibration=calibration_of(body.calibration, engine.profile, engine.num_layers),
        reorder=body.reorder,
    )
    return engine.prepare_question(body.query, documents, options)


async def _events(answers: AsyncGenerator[tuple[AnswerSoFar, str], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(answers):
        async for answer, text in answers:
            if text:
                yield event(GenerateDelta(delta=text))
            last = answer
        yield event(last.end())
    yield DONE


def _model(service: GenerateService, served: ServedGenerate) -> Model:
    engine, profile = served.engine, served.engine.profile
    return Model(
        **model_fields(served),
        max_model_len=engine.context_length,
        calibration=ModelCalibration(
            enabled=profile.enabled, bias=profile.bias, temperature=profile.temperature, layers=list(profile.layers)
        ),
        limits=ModelLimits(
            max_documents=service.limits.max_documents,
            max_tokens=service.limits.max_tokens,
            max_choices=service.limits.max_choices,
        ),
    )
