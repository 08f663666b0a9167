"""Request bodies of every media type: read whole, parsed, and refused with an error that names the fault.

JSON bodies are strict: no NaN, and no lone surrogates. A field that no route reads is refused where it may be misspelt,
or where an answer would be wrong.
"""

import asyncio
import gc
import math
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from services.core.errors import InvalidField, InvalidRequest, TooLarge, UnsupportedMediaType
from services.core.memory import check_memory
from services.core.refusals import MAX_COMPARED_CHARACTERS, near_names
from services.core.strict_requests import unknown_field

# Similarity from which an unknown name of another server's form is taken to be one of ours.
NEARLY = 0.8


class OpenRequest(BaseModel):
    """A body of another server's form: fields that it has not are kept, for `refuse_unsupported`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]


def check_known(given: Collection[str], known: Collection[str], place: str = "") -> None:
    """Raises InvalidField for a name that is not among those known, with the nearest that is.

    `place` is the path of the names in the request, if they are not at its top, with a dot at its end.
    """
    for name in given:
        if name not in known:
            name = name[:MAX_COMPARED_CHARACTERS]
            raise InvalidField(f"{place}{name}: {unknown_field(name, known)}.", param=f"{place}{name}")


async def check_query(request: Request) -> None:
    """Refuse parameters of the URL that the route does not have: a dependency of Fovea's own routes."""
    dependant = request.scope["route"].dependant
    check_known(request.query_params.keys(), [parameter.alias for parameter in dependant.query_params])


def refuse_unsupported(
    given: Mapping[str, Any] | None,
    harmless: Mapping[str, Collection[Any]],
    own: Collection[str] = (),
    synonyms: Mapping[str, str] = MappingProxyType({}),
    reason: str = "Not supported here",
) -> None:
    """Raises InvalidRequest for a field of another server's that would change the answer there and has no effect here.

    `harmless` has the values of each such field that change nothing, and null is one of each. Raises InvalidField for
    any other that is nearly one of our `own`, or one of the `synonyms` of those, whatever it holds. The rest is left
    alone: clients of that server send some that it ignores.
    """
    for name, value in (given or {}).items():
        param = name[:MAX_COMPARED_CHARACTERS]
        if name in harmless:
            if value is None or value in harmless[name]:
                continue
            raise InvalidRequest(f"{name}: {reason}; leave the field out.", param=name)
        synonym = synonyms.get(name.lower())
        near = [synonym] if synonym else near_names(param, own, similarity=NEARLY)
        if near:
            raise InvalidField(f"{param}: Unknown field; the nearest that is known is {near[0]}.", param=param)


# A body under this size is parsed faster than a thread is woken for it.
MAX_INLINE_BYTES = 128 * 1024

# orjson crashes the process where memory runs out half-way. A list of small objects takes about this many bytes for
# each byte of its text.
PARSED_BYTES_PER_BYTE = 32


class JsonRoute(APIRoute):
    """A route whose body is read strictly, and off the event loop where it is large."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


class _JsonRequest(Request):
    async def json(self) -> Any:
        """Return the parsed body. Raises `json.JSONDecodeError`, as its callers expect, and MemoryError."""
        if not hasattr(self, "_json"):
            body = await self.body()
            inline = len(body) <= MAX_INLINE_BYTES
            self._json = parse_json(body) if inline else await asyncio.to_thread(parse_json, body)
        return self._json


def parse_json(text: bytes | str) -> Any:
    """Parse JSON as `orjson.loads` does, with the garbage collector paused: it would visit all objects of the process
    several times while a hundred thousand lists are made. Other threads wait meanwhile in any case.

    Raises what orjson raises, and MemoryError where the values of a long text may not fit.
    """
    if len(text) > MAX_INLINE_BYTES:
        check_memory(PARSED_BYTES_PER_BYTE * len(text))
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if "memory" in error.msg:  # for its own copy of the text
            raise MemoryError(error.msg) from None
        raise
    finally:
        if was_enabled:
            gc.enable()


def request_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a request that a handler reads by itself, with all references inlined."""
    return inlined(model.model_json_schema(ref_template="{model}"))


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline the definitions of a schema where they are referenced by their names; none is recursive."""
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(value) for value in node]
        if not isinstance(node, dict):
            return node
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {key: inline(value) for key, value in {**definitions.get(node.get("$ref"), {}), **beside}.items()}

    whole: dict[str, Any] = inline(schema)
    return whole


# Fields of a multipart body beside its files: conditions and options.
MAX_FORM_FIELDS = 256
MAX_FORM_FIELD_BYTES = 64 * 1024

# Each part takes the parser about as long as waking a thread.
MAX_INLINE_PARTS = 16
PIECE_BYTES = 256 * 1024

IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM")

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, eq=False)
class FormFile:
    """One part of a form named `file`; `name` is empty where the client gave none, `param` the field to blame."""

    name: str
    data: bytes
    param: str


@dataclass(frozen=True, eq=False)
class Form:
    """The `file` parts of a multipart body, at least one, and all values of the other requested parts.

    A value is bytes where it was sent as a file.
    """

    files: Sequence[FormFile]
    fields: Mapping[str, Sequence[str | bytes]]


def media_type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def unsupported(request: Request, accepted: str) -> UnsupportedMediaType:
    """Return the error for a media type that the route does not take."""
    named = media_type_of(request)[:100]
    sent = f"not {named}" if named else "and the request has no content type"
    body = await request.body()
    hint = ""
    if body.startswith(IMAGE_SIGNATURES):
        hint = ' The body looks like an image: send it with "Content-Type: image/jpeg" or its actual type.'
    return UnsupportedMediaType(f"This route accepts {accepted}, {sent}.{hint}")


async def read_json(request: Request) -> dict[str, Any]:
    """Return the body's object. Raises InvalidRequest for invalid JSON (also NaN), InvalidField for no object."""
    raw = await request.body()
    try:
        body = await off_loop(request, lambda: parse_json(raw))
        release_body(request)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidField("The body must be a JSON object.")
    return body


async def read_form(
    request: Request,
    *,
    max_files: int,
    fields: Sequence[str],
    max_fields: int = MAX_FORM_FIELDS,
    max_field_bytes: int = MAX_FORM_FIELD_BYTES,
) -> Form:
    """Read a multipart body. Raises InvalidRequest for a malformed one, InvalidField for one without a file, TooLarge.

    Up to `max_fields` files more than `max_files` pass: the caller, which knows what they count as, refuses them.
    """
    body = await request.body()
    # The parser drops an unterminated last part, so that fewer files than were sent would be answered.
    if not body.rstrip().endswith(b"--"):
        raise InvalidRequest("The multipart body is truncated: it does not end with its closing boundary.")
    num_parts = _check_num_parts(request, body, max_files, max_fields)

    async def parse() -> Form:
        parser = MultiPartParser(
            request.headers, _pieces(body), max_files=math.inf, max_fields=max_fields, max_part_size=max_field_bytes
        )
        parser.spool_max_size = len(body) + 1  # in memory, where it is already
        try:
            parts = await parser.parse()
        except MultiPartException as malformed:
            raise InvalidRequest(malformed.message) from None
        try:
            return await _form_of(parts, fields)
        finally:
            await parts.close()

    is_small = num_parts <= MAX_INLINE_PARTS and len(body) <= MAX_INLINE_BYTES
    form = await (parse() if is_small else asyncio.to_thread(lambda: asyncio.run(parse())))
    release_body(request)
    return form


def release_body(request: Request) -> None:
    """Free the bytes of a body that was parsed; reading it again gives an empty one."""
    request.state.is_body_large = len(request._body) > MAX_INLINE_BYTES
    request._body = b""


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces, for a parser that copies what it is given."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


async def _form_of(parts: FormData, fields: Sequence[str]) -> Form:
    files = []
    for index, file in enumerate(parts.getlist("file")):
        param = f"file.{index}"
        if not isinstance(file, UploadFile):
            raise InvalidField(f"{param}: The part is a text field, not a file.", param=param)
        files.append(FormFile(file.filename or "", await file.read(), param))
    if not files:
        raise InvalidField('file: The form has no part named "file".', param="file")
    check_known(parts.keys(), ("file", *fields))
    return Form(files, {name: [await _value(part) for part in parts.getlist(name)] for name in fields})


async def off_loop(request: Request, work: Callable[[], T]) -> T:
    """Parse in a thread where the body is large, so that the event loop serves others meanwhile."""
    if not getattr(request.state, "is_body_large", False) and len(await request.body()) <= MAX_INLINE_BYTES:
        return work()
    return await asyncio.to_thread(work)


def validate(model: type[ModelT], body: dict[str, Any]) -> ModelT:
    """Validate a body. Raises what FastAPI raises for a body that it reads itself, so that clients see equal errors."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        complaints = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(complaints, body=body) from None


def agreed(param: str, in_query: T | None, in_body: T | None) -> T | None:
    """Return the value from the URL or the body. Raises InvalidRequest where they contradict each other."""
    if in_query and in_body and in_query != in_body:
        raise InvalidRequest(f"{param}: The URL and the body contradict each other.", param=param)
    return in_body or in_query


def _check_num_parts(request: Request, body: bytes, max_files: int, max_fields: int) -> int:
    """Return a form's number of parts. Raises TooLarge before it is parsed: a part costs far more than its bytes."""
    boundary = parse_options_header(request.headers["content-type"])[1].get(b"boundary")
    limit = max_files + max_fields
    num_parts = body.count(b"--" + boundary) - 1 if boundary else 0
    if num_parts > limit:
        raise TooLarge(f"The form has {num_parts} parts; the limit is {limit}, {max_files} of them files.")
    return num_parts


async def _value(part: str | UploadFile) -> str | bytes:
    return part if isinstance(part, str) else await part.read()
