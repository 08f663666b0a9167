"""Conversion of request bodies in any of the accepted formats into calls of the model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request

from services.core.errors import InvalidField, InvalidRequest, check_count
from services.core.http.bodies import (
    agreed,
    media_type_of,
    off_loop,
    read_form,
    read_json,
    refuse_unsupported,
    unsupported,
    validate,
)
from services.core.http.error_responses import tei_error_body
from services.core.images.inputs import ImageInput, image_input
from services.embed.call import CallLimits, EmbedCall, EncodingFormat, Input, TextInput
from services.embed.http.cohere import cohere_call, is_cohere
from services.embed.http.schemas import EmbeddingsRequest, EmbedRequest, InputItem, TeiRequest, conditions_of

# Fields of vLLM's and Jina's embeddings, with the values that have no effect.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "chat_template": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "late_chunking": (False,),
    "normalize": (True,),
    "normalized": (True,),
    "truncate": (False,),
    "truncate_prompt_tokens": (),
    "use_activation": (True,),
}

# How an image is sent instead of its address.
POST_IMAGE = "POST the image itself to /embed?condition=… with its content type, such as image/jpeg"


async def read_embed(request: Request, query: EmbedCall, limits: CallLimits) -> EmbedCall:
    """Read `POST /embed`: an image, a form, Fovea's JSON, TEI's or Cohere's; `query` has the URL's parameters.

    Raises UnsupportedMediaType for any other content type, InvalidField and TooLarge for invalid content.
    """
    media_type = media_type_of(request)
    if media_type.startswith("image/"):
        call = EmbedCall([ImageInput(await request.body(), "body")])
    elif media_type == "multipart/form-data":
        call = await _read_form(request, limits)
    elif media_type == "application/json":
        body = await read_json(request)
        if "inputs" in body:
            request.state.error_body = tei_error_body
            call = _tei_call(body)
        elif is_cohere(body):
            call = await off_loop(request, lambda: cohere_call(body, limits, "1"))
        else:
            call = await off_loop(request, lambda: _embed_call(body, limits))
    else:
        raise await unsupported(request, "image/*, multipart/form-data or application/json")
    return _within(_merge(query, call), limits)


def call_of_urls(urls: Sequence[str], query: EmbedCall, limits: CallLimits) -> EmbedCall:
    """Make the call of `GET /embed`, whose images are at `urls`. Raises InvalidField without any, and TooLarge."""
    if not urls:
        raise InvalidField(f"url: Give the address of an image, or {POST_IMAGE}.", param="url")
    inputs = [image_input({"url": one}, f"url.{index}", limits.images) for index, one in enumerate(urls)]
    return _within(replace(query, inputs=inputs), limits)


async def read_json_call(
    request: Request, limits: CallLimits, convert: Callable[[dict[str, Any], CallLimits], EmbedCall]
) -> EmbedCall:
    """Read a body that has to be JSON, which `convert` makes a call of. Raises what `read_embed` raises."""
    if media_type_of(request) != "application/json":
        raise await unsupported(request, "application/json")
    body = await read_json(request)
    return _within(await off_loop(request, lambda: convert(body, limits)), limits)


def _embed_call(body: dict[str, Any], limits: CallLimits) -> EmbedCall:
    parsed = validate(EmbedRequest, body)
    images = [image_input(image, f"images.{index}", limits.images) for index, image in enumerate(parsed.images)]
    texts = [TextInput(text, f"texts.{index}") for index, text in enumerate(parsed.texts)]
    if not images and not texts:
        raise InvalidField("The request has no inputs: give images or texts.", param="images")
    return _own_call([*images, *texts], parsed)


def openai_call(body: dict[str, Any], limits: CallLimits) -> EmbedCall:
    """Convert the body of `POST /v1/embeddings`, OpenAI's. Raises InvalidField and InvalidRequest."""
    _refuse_token_ids(body.get("input"), "input")
    parsed = validate(EmbeddingsRequest, body)
    refuse_unsupported(parsed.model_extra, UNSUPPORTED, EmbeddingsRequest.model_fields)
    items = parsed.input if isinstance(parsed.input, list) else [parsed.input]
    if not items:
        raise InvalidField("input: The list is empty.", param="input")
    params = [f"input.{index}" for index in range(len(items))] if isinstance(parsed.input, list) else ["input"]
    return EmbedCall(
        inputs=[
            _openai_input(item, param, limits, is_image=parsed.modality == "image")
            for item, param in zip(items, params, strict=True)
        ],
        conditions=conditions_of(parsed.condition),
        model=parsed.model,
        encoding_format=_format_of(parsed),
        dimensions=parsed.output_dimension if parsed.dimensions is None else parsed.dimensions,
        dimensions_in="output_dimension" if parsed.dimensions is None else "dimensions",
    )


def _format_of(parsed: EmbeddingsRequest) -> EncodingFormat | None:
    """Return the format that a request names. Raises InvalidRequest where its fields contradict each other."""
    types = parsed.embedding_type if isinstance(parsed.embedding_type, list) else [parsed.embedding_type]
    # OpenAI's and Voyage's clients ask for base64 of their own accord
    is_default = parsed.encoding_format in (None, "float", "base64")
    named = {parsed.output_dtype, *types, None if is_default else parsed.encoding_format} - {None}
    if len(named) > 1:
        raise InvalidRequest("output_dtype: Several fields name different types of embeddings.", param="output_dtype")
    only = next(iter(named), None)
    return parsed.encoding_format if only in (None, "float") else only


def _tei_call(body: dict[str, Any]) -> EmbedCall:
    _refuse_token_ids(body["inputs"], "inputs")
    parsed = validate(TeiRequest, body)
    refuse_unsupported(parsed.model_extra, {}, TeiRequest.model_fields)
    if parsed.normalize is False:
        raise InvalidField("normalize: Embeddings of this model always have L2 norm 1.", param="normalize")
    if parsed.prompt_name is not None:
        raise InvalidField("prompt_name: This model has no prompts.", param="prompt_name")
    if parsed.truncate and (parsed.truncation_direction or "").lower() == "left":
        raise InvalidField(
            "truncation_direction: Texts can only be truncated at the end.", param="truncation_direction"
        )
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
    fields = ("condition", "model", "encoding_format", "dimensions")
    form = await read_form(request, max_files=limits.max_inputs, fields=fields)
    options: dict[str, Any] = {name: values[-1] for name, values in form.fields.items() if values}
    parsed = validate(EmbedRequest, {**options, "condition": form.fields["condition"]})
    return _own_call([ImageInput(file.data, file.param) for file in form.files], parsed)


def _own_call(inputs: Sequence[Input], parsed: EmbedRequest) -> EmbedCall:
    return EmbedCall(inputs, conditions_of(parsed.condition), parsed.model, parsed.encoding_format, parsed.dimensions)


def _openai_input(item: str | InputItem, param: str, limits: CallLimits, *, is_image: bool) -> Input:
    if isinstance(item, str) and is_image:
        return image_input(item, param, limits.images)
    if isinstance(item, str):
        return TextInput(item, param)
    if item.text is not None:
        return TextInput(item.text, f"{param}.text")
    assert item.image is not None  # the schema rejects all other items
    return image_input(item.image, f"{param}.image", limits.images)


def _refuse_token_ids(value: Any, param: str) -> None:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list) and not isinstance(first, bool):
        raise InvalidRequest(
            f"{param}: Token ids are not supported; send text. For LangChain's OpenAIEmbeddings, set "
            "check_embedding_ctx_length=False.",
            param=param,
        )


def _merge(query: EmbedCall, call: EmbedCall) -> EmbedCall:
    """Merge the options of URL and body. Raises InvalidRequest if they contradict each other."""
    return replace(
        call,
        conditions=agreed("condition", query.conditions, call.conditions) or [],
        model=agreed("model", query.model, call.model),
        encoding_format=agreed("encoding_format", query.encoding_format, call.encoding_format),
        dimensions=agreed("dimensions", query.dimensions, call.dimensions),
    )


def _within(call: EmbedCall, limits: CallLimits) -> EmbedCall:
    """Raises TooLarge for a call that exceeds the limits."""
    num_images = sum(isinstance(one, ImageInput) for one in call.inputs)
    num_embeddings = num_images * max(1, len(call.conditions)) + len(call.inputs) - num_images
    param = call.inputs[0].param.partition(".")[0]
    check_count(param, len(call.inputs), limits.max_inputs, "inputs")
    check_count("condition", len(call.conditions), limits.max_conditions, "conditions")
    check_count(param, num_embeddings, limits.max_embeddings, "embeddings (images x conditions, and texts)")
    return call
