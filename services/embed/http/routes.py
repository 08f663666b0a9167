"""The routes of the embed service."""

import time
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from services.core.errors import InvalidRequest
from services.core.exchange import context_of
from services.core.http.bodies import check_query, request_schema
from services.core.http.error_responses import ErrorEnvelope, TeiError, error_responses, tei_headers
from services.core.serving.model_object import model_fields, models_router
from services.core.serving.served_models import Resident
from services.embed.call import CallLimits, EmbedCall, Embedded, EncodingFormat, TextInput
from services.embed.http.calls import POST_IMAGE, call_of_urls, openai_call, read_embed, read_json_call
from services.embed.http.cohere import CohereAnswer, CohereCall, CohereRequest, cohere_call, render_cohere
from services.embed.http.schemas import (
    EmbeddingList,
    EmbeddingsRequest,
    EmbedRequest,
    EmbedUsage,
    Model,
    ModelLimits,
    ModelList,
    TeiInfo,
    TeiModelType,
    TeiRequest,
    render_embedding_list,
    render_rows,
    render_tei,
)
from services.embed.service import EmbedService, ModelFacts, widths_of

# Larger responses are rendered in a thread, so that they do not block the event loop.
MAX_INLINE_NUMBERS = 64 * 1024
EMBED_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "image/*": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "format": "binary"},
                        "description": "One or more images, each in a part with this name.",
                    },
                    "condition": {"type": "array", "items": {"type": "string"}},
                    "model": {"type": "string"},
                    "encoding_format": {"enum": list(get_args(EncodingFormat))},
                    "dimensions": {"type": "integer", "minimum": 1},
                },
            }
        },
        "application/json": {
            "schema": {"anyOf": [request_schema(one) for one in (EmbedRequest, TeiRequest, CohereRequest)]}
        },
    },
}
Conditions = Annotated[list[str] | None, Query(description="Condition of the embeddings; may be repeated.")]
ModelName = Annotated[str | None, Query(description="Model that answers; the first served one by default.")]
Format = Annotated[EncodingFormat | None, Query(description="`float` by default.")]
Dimensions = Annotated[int | None, Query(ge=1, description="Fewer numbers, of a model that was trained for it.")]
EMBED_ANSWER = {
    "model": EmbeddingList | list[list[float]] | CohereAnswer,
    "description": "The response to a request in TEI's or Cohere's format",
}


def embed_router(service: EmbedService) -> APIRouter:
    """Create the embedding routes."""
    router = APIRouter(tags=["embed"])

    @router.post(
        "/embed",
        dependencies=[Depends(check_query)],
        responses={**error_responses(ErrorEnvelope, TeiError), 200: EMBED_ANSWER},
        openapi_extra={"requestBody": EMBED_BODY},
    )
    async def embed(
        request: Request,
        condition: Conditions = None,
        model: ModelName = None,
        encoding_format: Format = None,
        dimensions: Dimensions = None,
    ) -> Response:
        """Embed images, each under every condition, and texts.

        Embeddings are listed in the order of the inputs, images before texts. The embeddings of an image are adjacent,
        in the order of the conditions. Requests in TEI's format (with a field `inputs`) get a response in TEI's format.
        Requests in version 1 of Cohere's format (with `input_type` or `embedding_types`) get a response in that format.
        """
        query = EmbedCall((), condition or [], model, encoding_format, dimensions)
        return await _answer(service, request, await read_embed(request, query, service.limits))

    @router.get("/embed", dependencies=[Depends(check_query)], response_model=EmbeddingList)
    async def embed_urls(
        request: Request,
        url: Annotated[list[str] | None, Query(description="URL of an image; may be repeated.")] = None,
        condition: Conditions = None,
        model: ModelName = None,
        encoding_format: Format = None,
        dimensions: Dimensions = None,
    ) -> Response:
        """Embed images by their URLs, each under every condition, where the server fetches images."""
        query = EmbedCall((), condition or [], model, encoding_format, dimensions)
        return await _answer_urls(service, request, call_of_urls(url or [], query, service.limits))

    @router.post(
        "/v2/embed",
        responses={200: {"model": CohereAnswer, "description": "Cohere's form"}},
        openapi_extra={"requestBody": _json_body(CohereRequest)},
    )
    async def embed_v2(request: Request) -> Response:
        """Version 2 of Cohere's embed: texts or images; `condition` applies to the images."""
        return await _answer(service, request, await read_json_call(request, service.limits, cohere_call))

    @router.post(
        "/v1/embeddings",
        responses={200: {"model": EmbeddingList, "description": "OpenAI's form"}},
        openapi_extra={"requestBody": _json_body(EmbeddingsRequest)},
    )
    async def embeddings(request: Request) -> Response:
        """Embed texts, and images given as `{"image": …}`, in OpenAI's format; `condition` applies only to images."""
        return await _answer(service, request, await read_json_call(request, service.limits, openai_call))

    return router


def embed_models_router(service: EmbedService) -> APIRouter:
    """Create the routes of the served models in OpenAI's and TEI's formats."""
    router = models_router(service.models, partial(_model, service.limits), one=Model, listing=ModelList)

    @router.get("/info")
    async def info() -> TeiInfo:
        """Describe the server in the format of text-embeddings-inference."""
        resident, facts = service.models.described()[0]
        manifest = resident.checkpoint.manifest
        assert manifest is not None, "what has been loaded has a version"
        return TeiInfo(
            model_id=manifest.name,
            model_sha=manifest.digest,
            model_dtype=facts.dtype_name,
            served_model_name=resident.checkpoint.label,
            model_type=TeiModelType(embedding={"pooling": "cls"}),
            max_input_length=facts.context_length,
            max_batch_tokens=service.batch_limits.max_batch_cost,
            max_batch_requests=service.batch_limits.max_batch_size,
            max_client_batch_size=service.limits.max_inputs,
            version=version("fovea-serving"),
        )

    return router


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": request_schema(model)}}}


async def _answer(service: EmbedService, request: Request, call: EmbedCall) -> Response:
    """Embed a call and render the response in the format of the request."""
    began = time.perf_counter()
    embedded = await service.embed(call, context_of(request.scope))
    with service.metrics.stage_seconds.labels("serialize").time():
        is_short = embedded.rows.size <= MAX_INLINE_NUMBERS
        rendered = partial(_body, embedded, call)
        body = rendered() if is_short else await service.embedder.inputs.threads.run(rendered)
    headers = None
    if call.is_tei:
        num_characters = sum(len(one.text) for one in call.inputs if isinstance(one, TextInput))
        headers = tei_headers(
            request,
            num_characters=num_characters,
            num_tokens=embedded.prompt_tokens,
            seconds=time.perf_counter() - began,
        )
    return Response(body, headers=headers, media_type="application/json")


async def _answer_urls(service: EmbedService, request: Request, call: EmbedCall) -> Response:
    """Answer a call of images by their URLs, or say how to send the images themselves."""
    try:
        return await _answer(service, request, call)
    except InvalidRequest as error:
        if error.code != "image_url_not_allowed":
            raise
        raise InvalidRequest(f"{error.message} {POST_IMAGE}.", param=error.param, code=error.code) from None


def _body(embedded: Embedded, call: EmbedCall) -> bytes:
    """Render TEI's format, Cohere's, or OpenAI's with the condition of each embedding."""
    if isinstance(call, CohereCall):
        return render_cohere(embedded, call)
    if call.is_tei:
        return render_tei(embedded.rows)
    usage = EmbedUsage(
        images=embedded.num_images, prompt_tokens=embedded.prompt_tokens, total_tokens=embedded.prompt_tokens
    )
    rows = render_rows(embedded.rows, call.encoding_format)
    return render_embedding_list(rows, embedded.conditions, embedded.model, usage)


def _model(limits: CallLimits, resident: Resident[Any, ModelFacts], facts: ModelFacts) -> Model:
    manifest = resident.checkpoint.manifest
    assert manifest is not None, "what has been loaded has a version"
    return Model(
        **model_fields(resident),
        max_model_len=facts.context_length,
        dimensions=facts.embedding_width,
        matryoshka_dimensions=widths_of(manifest),
        limits=ModelLimits(
            max_inputs=limits.max_inputs,
            max_conditions=limits.max_conditions,
            max_embeddings=limits.max_embeddings,
            max_image_bytes=limits.images.max_image_bytes,
            max_image_pixels=limits.images.max_pixels,
        ),
    )
