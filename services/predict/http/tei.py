"""Text classification in the format of text-embeddings-inference."""

import math
import sys
import time
from typing import Any

import orjson
from fastapi import Request, Response

from services.core.exchange import context_of
from services.core.http.dialects import tei_headers
from services.predict.engine import Prediction
from services.predict.http.schemas import TeiPredictRequest, texts_of
from services.predict.service import ClassifyCall, PredictService, Side


async def answer_tei(service: PredictService, request: Request, body: TeiPredictRequest) -> Response:
    """Return the labels of each input and their scores, best first: a list, or a list of lists for a batch."""
    began = time.perf_counter()
    is_left = (body.truncation_direction or "").lower() == "left"
    side: Side = "left" if is_left else "right"
    call = ClassifyCall(texts_of(body), body.model, side if body.truncate else None)
    predicted = await service.classify(call, context_of(request.scope))
    scores = [_scores(one, is_raw=bool(body.raw_scores)) for one in predicted.predictions]
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    headers = tei_headers(
        request,
        num_characters=call.num_characters,
        num_tokens=sum(one.prompt_tokens for one in predicted.predictions),
        seconds=time.perf_counter() - began,
    )
    return Response(orjson.dumps(scores if is_batch else scores[0]), headers=headers, media_type="application/json")


def _scores(prediction: Prediction, *, is_raw: bool) -> list[dict[str, Any]]:
    """List the scores, best first, equal ones in the order of the labels."""
    shares = sorted((prediction.probabilities or {}).items(), key=lambda pair: pair[1], reverse=True)
    # the smallest normal number, if a probability underflows to 0
    return [
        {"score": math.log(max(share, sys.float_info.min)) if is_raw else share, "label": label}
        for label, share in shares
    ]
