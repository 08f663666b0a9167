"""From a request's body to what it asks the model for, whichever of the accepted forms it has."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from services.core.error_responses import tei_error_body
from services.core.errors import InvalidField, InvalidRequest, TooLarge, UnsupportedMediaType
from services.core.images import ImageLimits, ImageReference, parse_image_reference
from services.embed.schemas import (
    EmbeddingsRequest,
    EmbedRequest,
    EncodingFormat,
    InputItem,
    JsonImage,
    TeiRequest,
)

# A body under this size is parsed faster than a thread is woken for it.
MAX_INLINE_BYTES = 128 * 1024
# Beside the files of a multipart body: conditions and options.
MAX_FORM_FIELDS = 256
MAX_FORM_FIELD_BYTES = 64 * 1024
EMBEDDINGS_PER_INPUT = 4

IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM")

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=BaseModel)


@dataclass(frozen=True)
class CallLimits:
    """What one call may hold; what is over is refused with 413, naming limit and value."""

    max_inputs: int = 4096
    max_conditions: int = 64
    images: ImageLimits = field(default_factory=ImageLimits)

    @property
    def max_embeddings(self) -> int:
        return EMBEDDINGS_PER_INPUT * self.max_inputs


@dataclass(frozen=True, eq=False)
class ImageInput:
    """An image as the request names it; `param` is the field to blame."""

    reference: ImageReference
    param: str


@dataclass(frozen=True)
class TextInput:
    text: str
    param: str


Input = ImageInput | TextInput


@dataclass(frozen=True)
class EmbedCall:
    """Inputs in the order of the request. Every image is read under each of `conditions`, or under none.

    `is_tei` calls are answered in TEI's dialect; `truncate` is theirs alone.
    """

    inputs: Sequence[Input] = ()
    conditions: Sequence[str] = ()
    model: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = None
    truncate: bool = False
    is_tei: bool = False


async def read_embed(request: Request, query: EmbedCall, limits: CallLimits) -> EmbedCall:
    """`POST /embed`: an image, a multipart form, Fovea's JSON or TEI's; `query` holds what stands in the URL.

    Raises UnsupportedMediaType for any other content type, InvalidField and TooLarge for what does not fit.
    """
    media_type = _media_type(request)
    if media_type.startswith("image/"):
        call = EmbedCall([ImageInput(await request.body(), "body")])
    elif media_type == "multipart/form-data":
        call = await _read_form(request, limits)
    elif media_type == "application/json":
        body = await _read_json(request)
        if "inputs" in body:
            request.state.error_body = tei_error_body
            call = _tei_call(body)
        else:
            call = await _off_loop(request, lambda: _embed_call(body, limits))
    else:
        raise await _unsupported(request, "image/*, multipart/form-data or application/json")
    return _within(_merge(query, call), limits)


async def read_embeddings(request: Request, limits: CallLimits) -> EmbedCall:
    """`POST /v1/embeddings`, OpenAI's. Raises what `read_embed` raises."""
    if _media_type(request) != "application/json":
        raise await _unsupported(request, "application/json")
    body = await _read_json(request)
    return _within(await _off_loop(request, lambda: _openai_call(body, limits)), limits)


def _embed_call(body: dict[str, Any], limits: CallLimits) -> EmbedCall:
    parsed = _validate(EmbedRequest, body)
    images = [_image_input(image, f"images.{index}", limits) for index, image in enumerate(parsed.images)]
    texts = [TextInput(text, f"texts.{index}") for index, text in enumerate(parsed.texts)]
    if not images and not texts:
        raise InvalidField("The request holds no input: give images or texts.", param="images")
    return EmbedCall([*images, *texts], _conditions(parsed.condition), parsed.model, parsed.encoding_format)


def _openai_call(body: dict[str, Any], limits: CallLimits) -> EmbedCall:
    _refuse_token_ids(body.get("input"), "input")
    parsed = _validate(EmbeddingsRequest, body)
    items = parsed.input if isinstance(parsed.input, list) else [parsed.input]
    if not items:
        raise InvalidField("input: The list is empty.", param="input")
    params = [f"input.{index}" for index in range(len(items))] if isinstance(parsed.input, list) else ["input"]
    return EmbedCall(
        inputs=[_openai_input(item, param, limits) for item, param in zip(items, params, strict=True)],
        conditions=_conditions(parsed.condition),
        model=parsed.model,
        encoding_format=parsed.encoding_format,
        dimensions=parsed.dimensions,
    )


def _tei_call(body: dict[str, Any]) -> EmbedCall:
    _refuse_token_ids(body["inputs"], "inputs")
    parsed = _validate(TeiRequest, body)
    if parsed.normalize is False:
        raise InvalidField("normalize: Embeddings of this model have L2 norm 1 always.", param="normalize")
    if parsed.prompt_name is not None:
        raise InvalidField("prompt_name: This model has no prompts.", param="prompt_name")
    if parsed.truncate and (parsed.truncation_direction or "").lower() == "left":
        raise InvalidField("truncation_direction: Texts are cut at their end only.", param="truncation_direction")
    texts = parsed.inputs if isinstance(parsed.inputs, list) else [parsed.inputs]
    if not texts:
        raise InvalidRequest("inputs: The list is empty.", param="inputs")
    return EmbedCall(
        inputs=[TextInput(text, f"inputs.{index}") for index, text in enumerate(texts)],
        dimensions=parsed.dimensions,
        truncate=bool(parsed.truncate),
        is_tei=True,
    )


async def _read_form(request: Request, limits: CallLimits) -> EmbedCall:
    # The parser leaves out a last part that is not ended, which would answer for fewer files than were sent.
    if not (await request.body()).rstrip().endswith(b"--"):
        raise InvalidRequest("The multipart body is truncated: it does not end with its closing boundary.")
    form = request.form(max_files=limits.max_inputs + 1, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_FORM_FIELD_BYTES)
    async with form as parts:
        files = parts.getlist("file")
        if not files:
            raise InvalidField('file: The form has no part named "file".', param="file")
        images = []
        for index, file in enumerate(files):
            param = f"file.{index}"
            if not isinstance(file, UploadFile):
                raise InvalidField(f"{param}: The part is a text field, not a file.", param=param)
            images.append(ImageInput(await file.read(), param))
        options: dict[str, Any] = {name: parts[name] for name in ("model", "encoding_format") if name in parts}
        options["condition"] = parts.getlist("condition")
    fields = _validate(EmbedRequest, options)
    return EmbedCall(images, _conditions(fields.condition), fields.model, fields.encoding_format)


def _openai_input(item: str | InputItem, param: str, limits: CallLimits) -> Input:
    if isinstance(item, str):
        return TextInput(item, param)
    if item.text is not None:
        return TextInput(item.text, f"{param}.text")
    assert item.image is not None  # the schema lets no other item pass
    return _image_input(item.image, f"{param}.image", limits)


def _image_input(image: JsonImage, param: str, limits: CallLimits) -> ImageInput:
    return ImageInput(parse_image_reference(image, param=param, limits=limits.images), param)


def _conditions(condition: str | list[str] | None) -> list[str]:
    if condition is None:
        return []
    return [condition] if isinstance(condition, str) else condition


def _refuse_token_ids(value: Any, param: str) -> None:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list) and not isinstance(first, bool):
        raise InvalidRequest(
            f"{param}: Token ids of another model's tokenizer mean nothing here; send text. "
            "LangChain's OpenAIEmbeddings does so with check_embedding_ctx_length=False.",
            param=param,
        )


def _merge(query: EmbedCall, call: EmbedCall) -> EmbedCall:
    """What the URL and the body say together. Raises InvalidRequest where they contradict each other."""
    for name in ("conditions", "model", "encoding_format"):
        in_query, in_body = getattr(query, name), getattr(call, name)
        if in_query and in_body and list(in_query) != list(in_body):
            param = name.removesuffix("s")
            raise InvalidRequest(f"{param}: The query and the body of the request differ.", param=param)
    return replace(
        call,
        conditions=call.conditions or query.conditions,
        model=call.model or query.model,
        encoding_format=call.encoding_format or query.encoding_format,
    )


def _within(call: EmbedCall, limits: CallLimits) -> EmbedCall:
    """Raises TooLarge for a call over the limits."""
    num_images = sum(isinstance(one, ImageInput) for one in call.inputs)
    num_embeddings = num_images * max(1, len(call.conditions)) + len(call.inputs) - num_images
    for what, value, limit in (
        ("inputs", len(call.inputs), limits.max_inputs),
        ("conditions", len(call.conditions), limits.max_conditions),
        ("embeddings (images x conditions, and texts)", num_embeddings, limits.max_embeddings),
    ):
        if value > limit:
            raise TooLarge(f"The request asks for {value} {what}; the limit is {limit}.")
    return call


async def _read_json(request: Request) -> dict[str, Any]:
    """The object in the body. Raises InvalidRequest for what is no JSON (NaN is none), InvalidField for no object."""
    raw = await request.body()
    try:
        body = await _off_loop(request, lambda: orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidField("The body must be a JSON object.")
    return body


async def _off_loop(request: Request, work: Callable[[], T]) -> T:
    """Parse in a thread where the body is large, so that the event loop serves others meanwhile."""
    if len(await request.body()) <= MAX_INLINE_BYTES:
        return work()
    return await asyncio.to_thread(work)


def _validate(model: type[RequestT], body: dict[str, Any]) -> RequestT:
    """Raises what FastAPI raises for a body that it reads itself, so that both are told to the client alike."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        complaints = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(complaints, body=body) from None


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _unsupported(request: Request, accepted: str) -> UnsupportedMediaType:
    named = _media_type(request)[:100]
    sent = f"not {named}" if named else "and the request names no content type"
    body = await request.body()
    hint = ""
    if body.startswith(IMAGE_SIGNATURES):
        hint = ' The body looks like an image: send it with "Content-Type: image/jpeg", or whatever it is.'
    return UnsupportedMediaType(f"This route takes {accepted}, {sent}.{hint}")
