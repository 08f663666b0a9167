"""The routes of the score service."""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from services.core.exchange import context_of
from services.core.http.bodies import JsonRoute, check_query, request_schema
from services.core.serving.model_object import model_fields, models_router
from services.core.serving.served_models import Resident
from services.score.call import ScoreCall, captions_of
from services.score.engine import ModelFacts
from services.score.http.answers import num_numbers, render
from services.score.http.calls import read_score
from services.score.http.negatives import make_negatives
from services.score.http.schemas import (
    HardNegativeSources,
    Model,
    ModelLimits,
    ModelList,
    NegativesAnswer,
    NegativesList,
    NegativesRequest,
    ScoreAnswer,
    ScoreRequest,
    VllmScoreAnswer,
    VllmScoreRequest,
)
from services.score.negatives.hard_negatives import KINDS
from services.score.negatives.prompting.checks import WRITTEN_KINDS
from services.score.service import ScoreService

# Larger responses are rendered in a thread, so that they do not block the event loop.
MAX_INLINE_NUMBERS = 4096


def score_router(service: ScoreService) -> APIRouter:
    """Create the route that scores captions."""
    router = APIRouter(tags=["score"], dependencies=[Depends(check_query)])

    @router.post(
        "/score",
        responses={
            200: {"model": ScoreAnswer | VllmScoreAnswer, "description": "The response to a request in vLLM's format"}
        },
        openapi_extra={"requestBody": SCORE_BODY},
    )
    async def score(
        request: Request,
        *,
        captions: Annotated[list[str] | None, Query(description="Captions of an image sent as the body.")] = None,
        model: Annotated[str | None, Query(description="Model that answers; the first served one by default.")] = None,
        explain: Annotated[bool, Query(description="Return heatmaps of each caption.")] = False,
        truncate: Annotated[bool, Query(description="Truncate captions at the context length.")] = False,
        vqa_top_k: Annotated[
            int | None, Query(ge=1, description="Number of the best captions that a vision-language model checks.")
        ] = None,
    ) -> Response:
        """Score captions of an image, on request with a heatmap of each word.

        Requests in vLLM's format (with a field `data_1`, `queries` or `text_1`) get a response in vLLM's format.
        """
        query = ScoreCall(
            captions=captions_of(captions or []), model=model, explain=explain, truncate=truncate, vqa_top_k=vqa_top_k
        )
        call = await read_score(request, query, service.limits)
        scored = await service.score(call, context_of(request.scope))
        with service.metrics.stage_seconds.labels("serialize").time():
            is_short = num_numbers(scored) <= MAX_INLINE_NUMBERS
            content = render(call, scored) if is_short else await asyncio.to_thread(render, call, scored)
        return Response(content, media_type="application/json")

    return router


def negatives_router(service: ScoreService) -> APIRouter:
    """Create the route that generates hard negatives."""
    router = APIRouter(tags=["score"], route_class=JsonRoute, dependencies=[Depends(check_query)])

    @router.post("/hard-negatives", response_model_exclude_none=True)
    async def hard_negatives(request: Request, body: NegativesRequest) -> NegativesAnswer | NegativesList:
        """Generate similar captions that are not true of the image, at most one of each kind."""
        made = await make_negatives(service, body, context_of(request.scope))
        return made[0] if body.caption is not None else NegativesList(data=made)

    return router


def score_models_router(service: ScoreService) -> APIRouter:
    """Create the routes of the served models in OpenAI's format."""
    return models_router(service.models, partial(_model, service), one=Model, listing=ModelList)


def _model(service: ScoreService, resident: Resident[Any, ModelFacts, Any], facts: ModelFacts) -> Model:
    limits = service.limits
    return Model(
        **model_fields(resident),
        max_model_len=facts.context_length,
        image_size=facts.image_size,
        resize_mode=facts.resize_mode,
        patches=facts.grid,
        local_weight=facts.local_weight,
        logit_scale=facts.logit_scale,
        logit_bias=facts.logit_bias,
        limits=ModelLimits(
            **{name: value for name, value in asdict(limits).items() if name != "images"},
            max_image_bytes=limits.images.max_image_bytes,
            max_image_pixels=limits.images.max_pixels,
        ),
        hard_negatives=HardNegativeSources(
            kinds=[*KINDS, *(WRITTEN_KINDS if service.writer else ())],
            sources=service.negatives.sources,
            teacher=None if service.writer is None else service.writer.model,
        ),
        vqa_model=None if service.second_opinion is None else service.second_opinion.model,
    )


SCORE_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "image/*": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "captions"],
                "properties": {
                    "file": {"type": "string", "format": "binary", "description": "One image."},
                    "captions": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string"},
                        "description": "Captions, each in a part with this name.",
                    },
                    "explain": {"type": "boolean"},
                    "truncate": {"type": "boolean"},
                    "model": {"type": "string"},
                    "vqa_top_k": {"type": "integer", "minimum": 1},
                },
            }
        },
        "application/json": {"schema": {"anyOf": [request_schema(ScoreRequest), request_schema(VllmScoreRequest)]}},
    },
}
