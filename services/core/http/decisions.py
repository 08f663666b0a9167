"""The route of OpenAI's `POST /v1/decisions`: questions answered by the probability of every option.

The services share it. Each answers with the probabilities of its own model, and refuses by name what that model can't
read or can't know.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.core.decisions import (
    ChoiceQuestion,
    Decision,
    DecisionRequest,
    PredicateQuestion,
    Question,
    ScoreQuestion,
)
from services.core.errors import InvalidField
from services.core.exchange import RequestContext, context_of
from services.core.http.bodies import JsonRoute

# More numbers than this are rendered in a thread, so that the event loop can serve other requests.
MAX_INLINE_NUMBERS = 4096


@dataclass(frozen=True)
class Distribution:
    """The probabilities of a question's options, whose sum is 1, or of a predicate alone.

    `confidence` None means that the model has no better one than `concentration`. `is_certain` is False where a student
    hands over to its teacher.
    """

    probabilities: Sequence[float]
    confidence: float | None = None
    is_certain: bool = True


@dataclass(frozen=True)
class Decided:
    """One distribution for each question; `model` is the `name@version` that decided."""

    model: str
    distributions: Sequence[Distribution]
    input_tokens: int
    cached_tokens: int = 0


Decide = Callable[[DecisionRequest, RequestContext], Awaitable[Decided]]


def decisions_router(decide: Decide, *, hands_over: bool = False, reads_documents: bool = False) -> APIRouter:
    """Create the route; `decide` answers by a service's models, some of which hand over to a teacher if told so, or
    read documents."""
    router = APIRouter(tags=["decisions"], route_class=JsonRoute)

    @router.post("/v1/decisions", responses={200: {"model": Decision}})
    async def decisions(request: Request, body: DecisionRequest) -> Response:
        """Answer OpenAI's predicate, choice and score questions about one input, by the probability of every option.

        What a model can't decide, whatever the input, is refused by the name of its field.
        """
        if body.teacher is not None and not hands_over:
            raise InvalidField("teacher: Only students of predict hand over; leave the field out.", param="teacher")
        if body.documents is not None and not reads_documents:
            told = "Only language models of generate decide over documents; leave the field out."
            raise InvalidField(f"documents: {told}", param="documents")
        decided = await decide(body, context_of(request.scope))
        num_numbers = sum(len(one.probabilities) for one in decided.distributions)
        is_short = num_numbers <= MAX_INLINE_NUMBERS
        content = render(body, decided) if is_short else await asyncio.to_thread(render, body, decided)
        return Response(content, media_type="application/json")

    return router


def render(body: DecisionRequest, decided: Decided) -> bytes:
    """Render the JSON of a Decision."""
    answers = [
        {"type": question.type, "name": question.name, **_answer(question, found)}
        for question, found in zip(body.questions, decided.distributions, strict=True)
    ]
    if body.teacher is not None:
        for one, found in zip(answers, decided.distributions, strict=True):
            one["model"] = decided.model if found.is_certain else None
    answer = {
        "model": decided.model,
        "answers": answers,
        "usage": {
            "input_tokens": decided.input_tokens,
            "input_tokens_details": {"cached_tokens": decided.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": decided.input_tokens,
        },
    }
    return orjson.dumps(answer)


def _answer(question: Question, found: Distribution) -> dict[str, Any]:
    shares = found.probabilities
    confidence = concentration(shares) if found.confidence is None else found.confidence
    match question:
        case PredicateQuestion():
            return {"probability": min(1.0, shares[0])}  # rounding may exceed 1
        case ChoiceQuestion(choices=choices):
            values = [one.value for one in choices]
            each = [{"value": value, "probability": share} for value, share in zip(values, shares, strict=True)]
            best = max(range(len(values)), key=shares.__getitem__)
            return {"choice": values[best], "confidence": confidence, "probabilities": each}
        case ScoreQuestion(levels=levels):
            score = math.fsum(place * share for place, share in enumerate(shares))
            by_level = [
                {"value": place, "label": level.label, "probability": share}
                for place, (level, share) in enumerate(zip(levels, shares, strict=True))
            ]
            return {"score": score, "confidence": confidence, "probabilities": by_level}


def concentration(probabilities: Sequence[float]) -> float:
    """Compute 1 minus the entropy of probabilities divided by that of equal ones: 1 for a certain one, 0 for equal."""
    if len(probabilities) < 2:
        return 1.0
    entropy = -math.fsum(share * math.log(share) for share in probabilities if share > 0)
    return min(1.0, max(0.0, 1 - entropy / math.log(len(probabilities))))
