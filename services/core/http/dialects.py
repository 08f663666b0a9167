"""The error bodies and the measurement headers of text-embeddings-inference."""

from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from services.core.errors import FoveaError
from services.core.exchange import context_of


class TeiError(BaseModel):
    """The shape that clients of text-embeddings-inference read."""

    error: str
    error_type: str


_TEI_ERROR_TYPES = {422: "Validation", 413: "Validation", 429: "Overloaded", 503: "Overloaded"}


def tei_error_body(error: FoveaError) -> dict[str, Any]:
    """Return an error in the shape of TeiError."""
    fallback = "Validation" if error.status < 500 else "Backend"
    return TeiError(error=error.message, error_type=_TEI_ERROR_TYPES.get(error.status, fallback)).model_dump()


def tei_headers(request: Request, *, num_characters: int, num_tokens: int, seconds: float) -> dict[str, str]:
    """Return TEI's headers: milliseconds, characters and tokens; `seconds` is the duration of the whole request."""
    stages = context_of(request.scope).timing.stages
    milliseconds = {
        "x-compute-time": seconds,
        "x-total-time": seconds,
        "x-tokenization-time": stages.get("tokenize", 0.0),
        "x-queue-time": stages.get("queue", 0.0),
        "x-inference-time": stages.get("infer", 0.0),
    }
    return {
        "x-compute-characters": str(num_characters),
        "x-compute-tokens": str(num_tokens),
        **{name: str(round(1000 * value)) for name, value in milliseconds.items()},
    }
