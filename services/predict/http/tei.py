"""Text classification as text-embeddings-inference speaks it."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from fastapi import Request, Response

from services.core.errors import InvalidField, TooLarge
from services.core.http.dialects import tei_headers
from services.predict.engine import Item, PredictEngine, Prediction
from services.predict.http.schemas import TeiPredictRequest, texts_of
from services.predict.model.task_description import TaskDescription
from services.predict.residency import Resident
from services.predict.service import PredictService

Side = Literal["left", "right"]


def prepare_cut(engine: PredictEngine, fields: Mapping[str, str], side: Side, place: str) -> Item:
    """The item of an input whose texts lose what is too much for the model, the longer ones first, at this side.

    Raises what `PredictEngine.prepare` raises, but TooLarge only where no text is left to be cut.
    """
    limit = engine.description.max_input_tokens
    num_characters = limit * engine.max_token_characters  # more can't fit, and would take long to tokenise
    texts = {
        name: text[:num_characters] if side == "right" else text[-num_characters:] for name, text in fields.items()
    }
    too_many = 0
    while True:
        try:
            return engine.prepare(texts, place=place)
        except TooLarge:
            if not any(texts.values()):
                raise
        around = engine.prepare(dict.fromkeys(texts, ""), place=place).prompt_tokens
        texts = _cut(engine.tokenizer, texts, max(0, limit - around - too_many), side)
        too_many = 2 * too_many + 1  # texts side by side may take a few tokens more than each on its own


def _cut(tokenizer: Any, texts: Mapping[str, str], max_tokens: int, side: Side) -> dict[str, str]:
    """Texts of so many tokens together."""
    offsets = {
        name: tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
        for name, text in texts.items()
    }
    kept = {name: len(spans) for name, spans in offsets.items()}
    while sum(kept.values()) > max_tokens:
        kept[max(kept, key=lambda name: kept[name])] -= 1
    return {name: _ended(text, offsets[name], kept[name], side) for name, text in texts.items()}


def _ended(text: str, spans: list[tuple[int, int]], num_kept: int, side: Side) -> str:
    if num_kept >= len(spans):
        return text
    if num_kept == 0:
        return ""
    return text[: spans[num_kept][0]] if side == "right" else text[spans[-num_kept][0] :]


async def answer_tei(service: PredictService, request: Request, body: TeiPredictRequest) -> Response:
    """Every label of every input with its score, best first; a list of them, or of such lists for a batch.

    Without `model`, the first model answers that has labels and as many fields as an input has texts. Raises
    InvalidField where there is none, and what `PredictService` raises.
    """
    began = time.perf_counter()
    inputs = texts_of(body)
    num_characters = sum(len(text) for texts in inputs for text in texts)
    resident = _choose(service, len(inputs[0]), body.model)
    async with service.lease(request, resident, body.model) as served:
        engine = served.engine
        items = await service.prepare(
            request, inputs, num_characters, lambda place, texts: _prepare(engine, body, texts, f"inputs.{place}")
        )
        predictions = await service.run(request, served, items)
    scores = [_scores(one, is_raw=bool(body.raw_scores)) for one in predictions]
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    headers = tei_headers(
        request,
        num_characters=num_characters,
        num_tokens=sum(one.prompt_tokens for one in predictions),
        seconds=time.perf_counter() - began,
    )
    return Response(orjson.dumps(scores if is_batch else scores[0]), headers=headers, media_type="application/json")


def _choose(service: PredictService, num_texts: int, model: str | None) -> Resident[PredictEngine]:
    if model is not None:
        return service.choose(None, model)
    for resident, description in service.described():
        if _classifies(description) and len(description.fields) == num_texts:
            return resident
    what = "one text" if num_texts == 1 else "two texts"
    raise InvalidField(f"inputs: No model gives labels to {what}.", param="inputs")


def _classifies(description: TaskDescription) -> bool:
    return description.labels is not None


def _prepare(engine: PredictEngine, body: TeiPredictRequest, texts: Sequence[str], place: str) -> Item:
    names = engine.description.fields
    if not _classifies(engine.description) or len(names) != len(texts):
        model, what = engine.description.task, "labels for" if _classifies(engine.description) else "no labels, and"
        raise InvalidField(f"{place}: {model} has {what} {len(names)} texts, not {len(texts)}.", param=place)
    fields = dict(zip(names, texts, strict=True))
    if not body.truncate:
        return engine.prepare(fields, place=place)
    is_left = (body.truncation_direction or "").lower() == "left"
    return prepare_cut(engine, fields, "left" if is_left else "right", place)


def _scores(prediction: Prediction, *, is_raw: bool) -> list[dict[str, Any]]:
    """Best first, equal ones in the order of the labels."""
    shares = sorted((prediction.probabilities or {}).items(), key=lambda pair: pair[1], reverse=True)
    # the smallest normal number, where a probability is so small that it is 0
    return [
        {"score": math.log(max(share, sys.float_info.min)) if is_raw else share, "label": label}
        for label, share in shares
    ]
