"""Rendering of errors: the framework's exceptions as ours, the bodies a route can choose, their OpenAPI.

Clients of text-embeddings-inference read error bodies and headers of its own form.
"""

import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal, NoReturn, Union

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from services.core.errors import (
    FoveaError,
    InternalError,
    InvalidField,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    UnsupportedMediaType,
    is_out_of_memory,
    no_memory,
)
from services.core.exchange import context_of, exchange_of
from services.core.refusals import deepest_complaint

# Version 1 of Cohere's chat, which clients still ask for.
_MOVED = dict.fromkeys(("/v1/chat", "/chat"), " Cohere's chat is POST /v2/chat, in the form of version 2.")
# What clients ask for whose base URL ends in the version that they add themselves.
_DOUBLED = re.compile(r"(/v[12])(/v[12]/.+)")
# A route's function from an error to its body. It is on the route's class (`route_class.error_body`), or, once the
# handler knows its client's dialect, in `request.state.error_body`.
ErrorBody = Callable[[FoveaError], dict[str, Any]]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(BaseModel):
    """The shape of every error, OpenAI's."""

    error: ErrorDetail


_CLASS_BY_STATUS = {error_class.status: error_class for error_class in FoveaError.__subclasses__()}


def error_responses(*shapes: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI `responses`: every status that the core may answer on any route, in one of the given shapes."""
    return {
        status: {"model": Union[shapes], "description": HTTPStatus(status).phrase}  # noqa: UP007 shapes are a variable
        for status in _CLASS_BY_STATUS
    }


# The default of an app; a route with another shape states its own.
ERROR_RESPONSES = error_responses(ErrorEnvelope)


def render_error(error: FoveaError, scope: Scope) -> bytes:
    """Return the JSON of an error in the shape that this request's route has chosen, by default OpenAI's."""
    chosen: ErrorBody | None = scope["state"].get("error_body") or getattr(scope.get("route"), "error_body", None)
    if chosen is None and scope["path"].endswith(("/v1/messages", "/v1/messages/count_tokens")):
        chosen = anthropic_error_body  # whatever stands before it, since only Anthropic's clients ask for these
    # ASCII only: a message may quote a lone surrogate from the request, which UTF-8 cannot carry.
    return json.dumps(chosen(error) if chosen else error.body()).encode("ascii")


def error_event(error: FoveaError, scope: Scope) -> bytes:
    """Return the event that ends a stream, in the same shape; Anthropic's clients read only events with a name."""
    body = render_error(error, scope)
    return (b"event: error\n" if body.startswith(b'{"type"') else b"") + b"data: " + body + b"\n\n"


def error_headers(error: FoveaError, body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of an error response, with `Allow` and the like where the framework's exception has them."""
    cause = error.__cause__
    inherited: Mapping[str, str] = (cause.headers if isinstance(cause, HTTPException) else None) or {}
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **inherited,
        **error.headers(),
    }
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def raise_for_validation(request: Request, exc: Exception) -> NoReturn:
    """Exception handler: raise an invalid body or parameter as an error of ours, for the outermost handler."""
    assert isinstance(exc, RequestValidationError)
    content_type = request.headers.get("content-type", "")
    if exc.errors()[0]["type"] == "json_invalid":
        position, reason = exc.errors()[0]["loc"][-1], exc.errors()[0]["ctx"]["error"]
        raise InvalidRequest(f"The body is not valid JSON: {reason} (at character {position}).") from exc
    if isinstance(exc.body, bytes):
        # Only a body whose content type the route does not read arrives here as bytes.
        named = content_type.partition(";")[0]
        sent = f"not {named}" if named else "and the request has no content type"
        raise UnsupportedMediaType(f"This route accepts application/json, {sent}.") from exc
    param, message = deepest_complaint(exc.errors(), exc.body)
    raise InvalidField(f"{param}: {message}.", param=param) from exc


async def raise_for_http_exception(request: Request, exc: Exception) -> NoReturn:
    """Exception handler: raise the framework's 404, 405, 413 and the like as errors of ours."""
    assert isinstance(exc, HTTPException)
    if isinstance(exc.__cause__, FoveaError):
        # FastAPI wraps every error that is raised while it reads a body, the body limit's refusal included.
        raise exc.__cause__
    if exc.__cause__ is not None and is_out_of_memory(exc.__cause__):
        raise no_memory() from exc.__cause__
    path = exchange_of(request.scope).path
    if exc.status_code == NotFound.status:
        hint = _MOVED.get(path, "")
        if doubled := _DOUBLED.fullmatch(path):
            hint = f" Take one {doubled[1]} off the end of the client's base URL: it adds {doubled[2]} itself."
        raise NotFound(f"There is no route {request.method} {path}.{hint}") from exc
    if exc.status_code == MethodNotAllowed.status:
        raise MethodNotAllowed(f"{path} does not allow {request.method}.") from exc
    fallback = InvalidRequest if exc.status_code < 500 else InternalError
    raise _CLASS_BY_STATUS.get(exc.status_code, fallback)(exc.detail) from exc


class TeiError(BaseModel):
    """The shape that clients of text-embeddings-inference read."""

    error: str
    error_type: str


def rerank_error_body(error: FoveaError) -> dict[str, Any]:
    """Return the envelope with a top-level `detail`, which Jina's clients read."""
    return {**error.body(), "detail": error.message}


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    """The shape that clients of Anthropic's API read."""

    type: Literal["error"]
    error: AnthropicErrorDetail


# Of our types, those that Anthropic's API does not have.
_ANTHROPIC_ERROR_TYPES = {
    "internal_error": "api_error",
    **dict.fromkeys(("conflict_error", "misdirected_request", "unsupported_media_type"), "invalid_request_error"),
}


def anthropic_error_body(error: FoveaError) -> dict[str, Any]:
    """Return an error in the shape of AnthropicError."""
    kind = _ANTHROPIC_ERROR_TYPES.get(error.type, error.type)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


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
