"""The routes of the score service."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from services.core.errors import InvalidField, TooLarge
from services.core.http.bodies import JsonRoute, request_schema
from services.core.metrics import Metrics
from services.core.serving.model_object import model_fields
from services.core.serving.served_checkpoint import Served, ServedCheckpoint
from services.score.engine import ScoreEngine
from services.score.http.answers import num_numbers, render_score, render_vllm
from services.score.http.calls import captions_of, read_score
from services.score.http.schemas import (
    HardNegativeSources,
    Model,
    ModelLimits,
    ModelList,
    Negative,
    NegativesAnswer,
    NegativesRequest,
    ScoreAnswer,
    ScoreRequest,
    VllmScoreAnswer,
    VllmScoreRequest,
)
from services.score.negative_maker import NegativeMaker
from services.score.negatives.hard_negatives import KINDS
from services.score.scorer import CallLimits, Checkpoint, ScoreBatchers, ScoreCall, Scorer

# More numbers than this are written by a thread, so that the event loop serves others meanwhile.
MAX_INLINE_NUMBERS = 4096

ServedScore = Served[ScoreEngine, ScoreBatchers]


@dataclass(frozen=True)
class ScoreService:
    """What the routes share. `max_negative_characters` of a caption that negatives are made of."""

    checkpoint: ServedCheckpoint[ScoreEngine, ScoreBatchers]
    scorer: Scorer
    negatives: NegativeMaker
    limits: CallLimits
    max_negative_characters: int
    metrics: Metrics

    async def answer(self, request: Request, call: ScoreCall) -> Response:
        """Score a call and write the answer in the dialect that it came in."""
        with self.checkpoint.lease() as served:
            request.state.model = name = f"{served.name}@{served.version}"
            self.checkpoint.check_model(served, call.model)
            logit_scale = served.engine.logit_scale
            scored = await self.scorer.score(
                Checkpoint(served.digest, served.engine, served.batcher),
                call,
                deadline=request.state.deadline,
                timing=request.state.timing,
            )

        def render() -> bytes:
            return render_vllm(scored, name) if call.is_vllm else render_score(call, scored, name, logit_scale)

        with self.metrics.stage_seconds.labels("serialize").time():
            body = render() if num_numbers(scored) <= MAX_INLINE_NUMBERS else await asyncio.to_thread(render)
        return Response(body, media_type="application/json")

    async def make_negatives(self, request: Request, body: NegativesRequest) -> NegativesAnswer:
        """Hard negatives of a caption. Raises InvalidField for a blank one, TooLarge for one over the limit."""
        if not body.caption.strip():
            raise InvalidField("caption: The text is empty.", param="caption")
        if (num_characters := len(body.caption)) > self.max_negative_characters:
            raise TooLarge(
                f"caption: The text has {num_characters} characters; the limit is {self.max_negative_characters}.",
                param="caption",
            )
        kinds = list(dict.fromkeys(body.kinds))
        made = await self.negatives.make(body.caption, kinds, body.seed, request.state.timing)
        found = [Negative(kind=kind, text=text) for kind in kinds if (text := made[kind]) is not None]
        return NegativesAnswer(caption=body.caption, negatives=found)

    def model(self, served: ServedScore) -> Model:
        engine, limits = served.engine, self.limits
        return Model(
            **model_fields(served),
            max_model_len=engine.context_length,
            image_size=engine.image_size,
            patches=engine.grid,
            local_weight=engine.local_weight,
            logit_scale=engine.logit_scale,
            limits=ModelLimits(
                max_captions=limits.max_captions,
                max_images=limits.max_images,
                max_explained_captions=limits.max_explained_captions,
                max_heatmap_numbers=limits.max_heatmap_numbers,
                max_image_bytes=limits.images.max_image_bytes,
                max_image_pixels=limits.images.max_pixels,
                max_negative_characters=self.max_negative_characters,
            ),
            hard_negatives=HardNegativeSources(kinds=list(KINDS), sources=self.negatives.sources),
        )


def score_router(service: ScoreService) -> APIRouter:
    """The route that scores."""
    router = APIRouter(tags=["score"])

    @router.post(
        "/score",
        responses={200: {"model": ScoreAnswer | VllmScoreAnswer, "description": "vLLM's form for vLLM's request"}},
        openapi_extra={"requestBody": SCORE_BODY},
    )
    async def score(
        request: Request,
        *,
        captions: Annotated[list[str] | None, Query(description="For an image that is the body itself.")] = None,
        model: Annotated[str | None, Query(description="Checked against the served model.")] = None,
        explain: Annotated[bool, Query(description="Heatmaps of each caption.")] = False,
        truncate: Annotated[bool, Query(description="Cut captions at the context length.")] = False,
    ) -> Response:
        """Tell which caption is true of an image: a score for each, and on request what its words look at.

        vLLM's request (told apart by its `data_1`, `queries` or `text_1`) is answered in vLLM's form.
        """
        query = ScoreCall(captions=captions_of(captions or []), model=model, explain=explain, truncate=truncate)
        return await service.answer(request, await read_score(request, query, service.limits))

    return router


def negatives_router(service: ScoreService) -> APIRouter:
    """The route that makes captions false."""
    router = APIRouter(tags=["score"], route_class=JsonRoute)

    @router.post("/hard-negatives")
    async def hard_negatives(request: Request, body: NegativesRequest) -> NegativesAnswer:
        """Captions that say nearly the same and are not true of the picture, at most one of each kind."""
        return await service.make_negatives(request, body)

    return router


def models_router(service: ScoreService) -> APIRouter:
    """What is served, in OpenAI's words."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models")
    async def models() -> ModelList:
        with service.checkpoint.lease() as served:
            return ModelList(data=[service.model(served)])

    @router.get("/v1/models/{model_id}")
    async def model(model_id: str) -> Model:
        with service.checkpoint.lease() as served:
            service.checkpoint.check_model(served, model_id)
            return service.model(served)

    return router


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
                        "description": "Each caption a part of this name.",
                    },
                    "explain": {"type": "boolean"},
                    "truncate": {"type": "boolean"},
                    "model": {"type": "string"},
                },
            }
        },
        "application/json": {"schema": {"anyOf": [request_schema(ScoreRequest), request_schema(VllmScoreRequest)]}},
    },
}
