"""The routes of the predict service."""

import math
import sys
import time
from functools import partial
from itertools import chain
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Depends, Request, Response
from pydantic import Discriminator, Tag

from services.core.errors import InvalidField, check_count
from services.core.exchange import context_of
from services.core.http.bodies import JsonRoute, check_known, check_query
from services.core.http.error_responses import ErrorEnvelope, TeiError, error_responses, tei_error_body, tei_headers
from services.core.serving.model_object import model_fields, models_router
from services.predict.engine import Prediction
from services.predict.http.schemas import (
    MAX_FIELDS,
    MAX_NAME_LENGTH,
    Model,
    ModelLimits,
    ModelList,
    PredictAnswer,
    PredictRequest,
    TaskList,
    TaskObject,
    TeiPrediction,
    TeiPredictRequest,
    is_tei,
    num_inputs,
    texts_of,
)
from services.predict.model.task_description import TaskDescription
from services.predict.service import Predicted, PredictService, Side, TaskModel

# More numbers than this are serialised in a thread, so that the event loop can serve other requests.
MAX_INLINE_NUMBERS = 4096

AnyPredictRequest = Annotated[
    Annotated[TeiPredictRequest, Tag("TEI's")] | Annotated[PredictRequest, Tag("Fovea's")],
    Discriminator(lambda body: "TEI's" if is_tei(body) else "Fovea's"),
]


def predict_router(service: PredictService) -> APIRouter:
    """Create the routes that list tasks and predict labels."""
    router = APIRouter(tags=["predict"], route_class=JsonRoute, dependencies=[Depends(check_query)])

    async def check_head(request: Request) -> None:
        """Choose the format of errors and reject too many inputs, before the fields are read."""
        try:
            body = await request.json()
        except ValueError:
            return  # not JSON, which FastAPI reports itself
        if is_tei(body):
            request.state.error_body = tei_error_body
        check_count("inputs", num_inputs(body), service.max_inputs)
        await _check_names(service, body)

    @router.get("/tasks")
    async def tasks() -> TaskList:
        """List the tasks of all models, including models that are not in memory."""
        return TaskList(
            data=[
                TaskObject(
                    id=description.task,
                    model=one.checkpoint.label,
                    fields=list(description.fields),
                    labels=None if description.labels is None else list(description.labels),
                    choices=description.choices,
                    rationales=description.rationale_prefix is not None,
                    metrics=one.checkpoint.manifest.metrics if one.checkpoint.manifest else {},
                    statement=one.checkpoint.manifest.statement if one.checkpoint.manifest else None,
                )
                for one, description in service.models.described()
            ]
        )

    @router.post(
        "/predict",
        response_class=Response,
        responses={
            **error_responses(ErrorEnvelope, TeiError),
            200: {
                "model": PredictAnswer | list[TeiPrediction] | list[list[TeiPrediction]],
                "description": "The response to a request in TEI's format",
            },
        },
        dependencies=[Depends(check_head)],
    )
    async def predict(request: Request, body: Annotated[AnyPredictRequest, Body()]) -> Response:
        """Predict the labels of inputs of a task, on request with all probabilities and rationales.

        Requests in TEI's format (strings as `inputs`, and no `task`) get a response in TEI's format.
        """
        if isinstance(body, TeiPredictRequest):
            return await _answer_tei(service, request, body)
        return await _answer(service, request, body)

    return router


def predict_models_router(service: PredictService) -> APIRouter:
    """Make the routes of the served models, in OpenAI's form."""
    return models_router(service.models, partial(_model, service.max_inputs), one=Model, listing=ModelList)


async def _check_names(service: PredictService, body: Any) -> None:
    """Refuse inputs without the task's fields, and with others, before their values are read, which may be anything."""
    if not isinstance(body, dict) or is_tei(body) or "inputs" not in body:
        return
    task, model = body.get("task"), body.get("model")
    if all(one is None or (isinstance(one, str) and len(one) <= MAX_NAME_LENGTH) for one in (task, model)):
        known = await service.fields_of(task, model)
        inputs = body["inputs"]
        if not isinstance(inputs, list):
            raise InvalidField(f"inputs: Must be a list of objects with the fields {', '.join(known)}.", param="inputs")
        for index, fields in enumerate(inputs):
            param = f"inputs.{index}"
            if not isinstance(fields, dict):
                raise InvalidField(f"{param}: Must be an object with the fields {', '.join(known)}.", param=param)
            if len(fields) <= MAX_FIELDS:
                check_known(fields, known, f"{param}.")


async def _answer(service: PredictService, request: Request, body: PredictRequest) -> Response:
    named = {"task": body.task, "model": body.model}
    predicted = await service.predict(body.inputs, context_of(request.scope), **named, rationale=body.rationale)
    with service.metrics.stage_seconds.labels("serialize").time():
        predictions = predicted.predictions
        num_shares = len(predictions[0].probabilities or ()) if body.probabilities else 0
        render = partial(_render, predicted, has_probabilities=body.probabilities)
        is_short = len(predictions) * max(8, num_shares) <= MAX_INLINE_NUMBERS
        content = render() if is_short else await service.threads.run(render)
    return Response(content, media_type="application/json")


def _render(predicted: Predicted, *, has_probabilities: bool) -> bytes:
    """Render the JSON of a PredictAnswer."""
    prompt_tokens = sum(one.prompt_tokens for one in predicted.predictions)
    completion_tokens = sum(one.completion_tokens for one in predicted.predictions)
    answer: dict[str, Any] = {
        "object": "list",
        "model": predicted.model,
        "task": predicted.task,
        "predictions": [
            {
                "index": index,
                "label": one.label,
                "probability": min(1.0, one.probability),  # rounding may exceed 1
                "probabilities": one.probabilities if has_probabilities else None,
                "rationale": one.rationale,
                "value": _json_number(one.value),
                "confidence": one.confidence,
                "unused_numbers": one.unused_numbers and [_json_number(number) for number in one.unused_numbers],
                "unread_numbers": one.unread_numbers,
            }
            for index, one in enumerate(predicted.predictions)
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
    return orjson.dumps(answer)


def _json_number(value: float | None) -> float | None:
    """Round an integer beyond 64 bits, which JSON's readers do as well, and orjson does not write."""
    return value if value is None or abs(value) < 2**63 else float(value)


async def _answer_tei(service: PredictService, request: Request, body: TeiPredictRequest) -> Response:
    """Return the labels of each input and their scores, best first: a list, or a list of lists for a batch."""
    began = time.perf_counter()
    is_left = (body.truncation_direction or "").lower() == "left"
    side: Side = "left" if is_left else "right"
    texts, cut = texts_of(body), side if body.truncate else None
    predicted = await service.classify(texts, context_of(request.scope), model=body.model, cut=cut)
    scores = [_tei_scores(one, is_raw=bool(body.raw_scores)) for one in predicted.predictions]
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    headers = tei_headers(
        request,
        num_characters=sum(map(len, chain.from_iterable(texts))),
        num_tokens=sum(one.prompt_tokens for one in predicted.predictions),
        seconds=time.perf_counter() - began,
    )
    return Response(orjson.dumps(scores if is_batch else scores[0]), headers=headers, media_type="application/json")


def _tei_scores(prediction: Prediction, *, is_raw: bool) -> list[dict[str, Any]]:
    """List the scores, best first, equal ones in the order of the labels."""
    shares = sorted((prediction.probabilities or {}).items(), key=lambda pair: pair[1], reverse=True)
    # the smallest normal number, if a probability underflows to 0
    return [
        {"score": math.log(max(share, sys.float_info.min)) if is_raw else share, "label": label}
        for label, share in shares
    ]


def _model(max_inputs: int, resident: TaskModel, description: TaskDescription) -> Model:
    return Model(
        **model_fields(resident),
        decides=description.labels is not None or description.choices is not None,
        max_model_len=description.max_input_tokens,
        task=description.task,
        limits=ModelLimits(max_inputs=max_inputs),
    )
