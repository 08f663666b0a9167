"""The routes of the score service."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response

from services.core.errors import InvalidField, TooLarge, check_count
from services.core.exchange import RequestContext, context_of
from services.core.http.bodies import JsonRoute, check_query, request_schema
from services.core.serving.model_object import model_fields, models_router
from services.core.serving.served_models import Resident
from services.nn.plain_texts import is_blank
from services.score.call import CallLimits, Caption, ScoreCall, captions_of
from services.score.engine import ModelFacts
from services.score.http.answers import num_numbers, render
from services.score.http.calls import read_score
from services.score.http.schemas import (
    AnyKind,
    HardNegativeSources,
    Model,
    ModelList,
    Negative,
    NegativesAnswer,
    NegativesList,
    NegativesRequest,
    RejectedNegative,
    ScoreAnswer,
    ScoreRequest,
    VllmScoreAnswer,
    VllmScoreRequest,
)
from services.score.negatives.hard_negatives import KINDS, PAPER_KINDS, Kind
from services.score.negatives.negative_maker import NegativeWriter, WrittenNegative
from services.score.negatives.prompting.checks import WRITTEN_KINDS, WrittenKind
from services.score.service import ScoreService

KindT = TypeVar("KindT", bound=str)


async def make_negatives(
    service: ScoreService, body: NegativesRequest, context: RequestContext
) -> list[NegativesAnswer]:
    """Answer for each caption, in order.

    Raises InvalidField for a blank caption, for neither or both of `caption` and `captions`, for a kind of the other
    method, and without a configured model; TooLarge for too many captions and for a long one; and what the makers of
    negatives raise.
    """
    captions = _captions(body)
    _check(captions, service.limits)
    texts = [caption.text for caption in captions]
    if body.method == "llm":
        written = await _writer(service).write(texts, _written_kinds(body), body.seed, context.timing)
        return [_answer(text, some) for text, some in zip(texts, written, strict=True)]
    kinds = _rule_kinds(body)
    answers = []
    for text in texts:
        made = await service.negatives.make(text, kinds, body.seed, context.timing)
        found = [Negative(kind=kind, text=negative) for kind, negative in made.items() if negative is not None]
        answers.append(NegativesAnswer(caption=text, negatives=found))
    return answers


def _writer(service: ScoreService) -> NegativeWriter:
    if service.writer is None:
        raise InvalidField(
            "method: No language model is configured. Set FOVEA_SCORE_TEACHER_URL and FOVEA_SCORE_TEACHER_MODEL to the"
            ' address and the name of one, or use the method "rules".',
            param="method",
        )
    return service.writer


def _check(captions: Sequence[Caption], limits: CallLimits) -> None:
    check_count("captions", len(captions), limits.max_negative_captions)
    limit = limits.max_negative_characters
    for caption in captions:
        text, param = caption.text, caption.param
        if is_blank(text):
            raise InvalidField(f"{param}: The text is empty.", param=param)
        if len(text) > limit:
            raise TooLarge(f"{param}: The text has {len(text)} characters; the limit is {limit}.", param=param)


def _captions(body: NegativesRequest) -> list[Caption]:
    if (body.caption is None) == (body.captions is None):
        told = "is missing" if body.caption is None else "and captions exclude each other"
        raise InvalidField(f"caption: The field {told}.", param="caption")
    return captions_of(body.captions) if body.captions is not None else [Caption(body.caption or "", "caption")]


def _rule_kinds(body: NegativesRequest) -> list[Kind]:
    known: dict[str, Kind] = {kind: kind for kind in KINDS}
    return _known(body.kinds or PAPER_KINDS, known, "rules")


def _written_kinds(body: NegativesRequest) -> list[WrittenKind]:
    known: dict[str, WrittenKind] = {kind: kind for kind in WRITTEN_KINDS}
    return _known(body.kinds or WRITTEN_KINDS, known, "llm")


def _known(kinds: Sequence[AnyKind], known: dict[str, KindT], method: str) -> list[KindT]:
    """Return the kinds of a method. Raises InvalidField for one of the other."""
    for index, kind in enumerate(kinds):
        if kind not in known:
            message = f'The method "{method}" makes {", ".join(known)}, and not {kind}.'
            raise InvalidField(f"kinds.{index}: {message}", param=f"kinds.{index}")
    return [known[kind] for kind in dict.fromkeys(kinds)]


def _answer(caption: str, written: Sequence[WrittenNegative]) -> NegativesAnswer:
    found = [Negative(kind=one.kind, text=one.text) for one in written if one.reason is None]
    rejected = [
        RejectedNegative(kind=one.kind, reason=one.reason, text=one.text) for one in written if one.reason is not None
    ]
    return NegativesAnswer(caption=caption, negatives=found, rejected=rejected)


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
            rendered = partial(render, call, scored)
            content = rendered() if is_short else await service.scorer.inputs.threads.run(rendered)
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
    return Model(
        **model_fields(resident),
        decides=True,
        max_model_len=facts.context_length,
        image_size=facts.image_size,
        resize_mode=facts.resize_mode,
        patches=facts.grid,
        local_weight=facts.local_weight,
        logit_scale=facts.logit_scale,
        logit_bias=facts.logit_bias,
        limits=service.limits,
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
