"""Conversion of request bodies in any of the accepted formats into calls about images and captions.

vLLM's score request has two sides of texts and images, paired one to one, one to many, or element by element. This
model compares images with texts, so a pair is one of each. A string is treated as an image only if it is unambiguous: a
data URI, an `http(s)` URL, or base64 that begins like an image file.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fastapi import Request
from pydantic import Field

from services.core.errors import InvalidField, TooLarge, check_count
from services.core.http.bodies import (
    MAX_FORM_FIELDS,
    OpenRequest,
    agreed,
    media_type_of,
    off_loop,
    read_form,
    read_json,
    refuse_unsupported,
    unsupported,
    validate,
)
from services.core.images.inputs import ImageInput, image_input
from services.core.images.references import ImageLimits
from services.nn.plain_texts import is_blank
from services.score.call import CallLimits, Caption, ScoreCall, captions_of
from services.score.http.schemas import ScoreOptions, ScoreRequest

SIDES = (("data_1", "data_2"), ("queries", "documents"), ("queries", "items"), ("text_1", "text_2"))
SIDE_NAMES = frozenset(name for sides in SIDES for name in sides)
FOVEAS = ("image", "captions")
# Fields of vLLM's score API, with the values that have no effect.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation": (True,),
    "chat_template": (),
    "instruction": (),
    "mm_processor_kwargs": ({},),
    "truncation_side": ("right",),
    "use_activation": (True,),
}

_ADDRESS = re.compile(r"\s*(data:|https?://)", re.IGNORECASE)
# JPEG, PNG, GIF, WebP and BMP; BMP's two letters also occur in words, so longer base64 is required after them
_IMAGE_IN_BASE64 = re.compile(r"\s*(/9j/|iVBORw0KGgo|R0lGOD|UklGR|Qk[\w+/]{30})", re.ASCII)


class VllmOptions(OpenRequest):
    """Further fields of vLLM's requests that have a meaning here."""

    model: str | None = None
    truncate_prompt_tokens: Literal[-1] | None = Field(None)


_Side = Caption | ImageInput


def is_vllm(body: dict[str, Any]) -> bool:
    """Whether a body is in vLLM's format."""
    return not any(name in body for name in FOVEAS) and any(name in body for sides in SIDES for name in sides)


def read_pairs(body: dict[str, Any], limits: ImageLimits, *, max_pairs: int) -> ScoreCall:
    """Read a call about the distinct images and texts of a body's pairs.

    Raises InvalidField if there are none or one is not an image and a text, TooLarge for more than `max_pairs`, and
    what reading an image raises.
    """
    options = validate(VllmOptions, {name: value for name, value in body.items() if name not in SIDE_NAMES})
    refuse_unsupported(options.model_extra, UNSUPPORTED)
    first_name, second_name = next(
        (sides for sides in SIDES if all(name in body for name in sides)),
        next(sides for sides in SIDES if any(name in body for name in sides)),
    )
    entries = [_entries(body, name) for name in (first_name, second_name)]
    num_pairs = len(entries[1])
    check_count(second_name, num_pairs, max_pairs, "pairs")
    if len(entries[0]) not in (1, num_pairs):
        raise InvalidField(
            f"{first_name}: {len(entries[0])} inputs can't be paired with {num_pairs}: give one, or as many.",
            param=first_name,
        )
    first, second = ([_side(value, param, limits) for value, param in side] for side in entries)
    return _paired(first * num_pairs if len(first) < num_pairs else first, second, options)


def _paired(first: Sequence[_Side], second: Sequence[_Side], options: VllmOptions) -> ScoreCall:
    images: dict[int, ImageInput] = {}
    texts: dict[int, Caption] = {}
    pairs = []
    for one, other in zip(first, second, strict=True):
        image, text = (one, other) if isinstance(one, ImageInput) else (other, one)
        if not isinstance(image, ImageInput) or not isinstance(text, Caption):
            what = "images" if isinstance(image, ImageInput) else "texts"
            raise InvalidField(
                f"{other.param}: This model scores an image against a text, but got two {what};"
                ' an image is {"image": …}, a data URI or vLLM\'s {"content": [{"type": "image_url", …}]}.',
                param=other.param,
            )
        images.setdefault(id(image), image)
        texts.setdefault(id(text), text)
        pairs.append((id(image), id(text)))
    place = {key: index for keys in (images, texts) for index, key in enumerate(keys)}
    return ScoreCall(
        list(images.values()),
        list(texts.values()),
        [(place[image], place[text]) for image, text in pairs],
        options.model,
        truncate=options.truncate_prompt_tokens is not None,
        is_vllm=True,
    )


def _entries(body: dict[str, Any], name: str) -> list[tuple[Any, str]]:
    """List one side's inputs with the fields for error messages; vLLM's `{"content": […]}` has one input per part."""
    if name not in body:
        raise InvalidField(f"{name}: Field required.", param=name)
    value = body[name]
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        entries = [(part, f"{name}.content.{index}") for index, part in enumerate(value["content"])]
    elif isinstance(value, list):
        entries = [(one, f"{name}.{index}") for index, one in enumerate(value)]
    else:
        entries = [(value, name)]
    if not entries:
        raise InvalidField(f"{name}: The list is empty.", param=name)
    return entries


def _side(value: Any, param: str, limits: ImageLimits) -> _Side:
    match value:
        case str() if _ADDRESS.match(value) or _IMAGE_IN_BASE64.match(value):
            return image_input(value, param, limits)
        case str():
            return Caption(value, param)
        case {"content": [part]}:
            return _side(part, f"{param}.content.0", limits)
        case {"content": _}:
            raise InvalidField(f"{param}.content: One part makes one input of a list.", param=f"{param}.content")
        case {"text": str(text), **rest} if "image" not in rest:
            return Caption(text, f"{param}.text")
        case {"image": str() | dict() as image, **rest} if "text" not in rest:
            return image_input(image, f"{param}.image", limits)
        case dict():
            return image_input(value, param, limits)
    raise InvalidField(f"{param}: An input is a text or an image.", param=param)


# Fields of a multipart form other than its captions.
OPTIONS = ("explain", "truncate", "model", "vqa_top_k")


async def read_score(request: Request, query: ScoreCall, limits: CallLimits) -> ScoreCall:
    """Read `POST /score`: an image, a multipart form, Fovea's JSON or vLLM's; `query` has the URL's parameters.

    Raises UnsupportedMediaType for any other content type, InvalidField and TooLarge for invalid content.
    """
    media_type = media_type_of(request)
    if media_type.startswith("image/"):
        call = _of_one_image(ImageInput(await request.body(), "body"), [], ScoreOptions())
    elif media_type == "multipart/form-data":
        call = await _read_form(request, limits)
    elif media_type == "application/json":
        body = await read_json(request)
        call = await off_loop(request, lambda: _json_call(body, limits))
    else:
        raise await unsupported(request, "image/*, multipart/form-data or application/json")
    return _within(_merge(query, call), limits)


def _json_call(body: dict[str, Any], limits: CallLimits) -> ScoreCall:
    if is_vllm(body):
        return read_pairs(body, limits.images, max_pairs=limits.max_captions)
    parsed = validate(ScoreRequest, body)
    image = image_input(parsed.image, "image", limits.images)
    return _of_one_image(image, parsed.captions, parsed)


async def _read_form(request: Request, limits: CallLimits) -> ScoreCall:
    # allow as many captions over the limit as there may be options, so that the error names captions instead of parts
    max_fields = limits.max_captions + MAX_FORM_FIELDS
    form = await read_form(request, max_files=1, fields=("captions", *OPTIONS), max_fields=max_fields)
    if len(form.files) > 1:
        raise TooLarge(
            f"file: The form has {len(form.files)} images; a request scores captions of one image.", param="file"
        )
    given: dict[str, Any] = {name: form.fields[name][-1] for name in OPTIONS if form.fields[name]}
    options = validate(ScoreOptions, given)
    texts = []
    for index, value in enumerate(form.fields["captions"]):
        param = f"captions.{index}"
        if isinstance(value, bytes):
            raise InvalidField(f"{param}: The part is a file, not a text field.", param=param)
        texts.append(value)
    return _of_one_image(ImageInput(form.files[0].data, "file"), texts, options)


def _of_one_image(image: ImageInput, texts: Sequence[str], options: ScoreOptions) -> ScoreCall:
    return ScoreCall(
        [image],
        captions_of(texts),
        model=options.model,
        explain=options.explain,
        truncate=options.truncate,
        vqa_top_k=options.vqa_top_k,
    )


def _merge(query: ScoreCall, call: ScoreCall) -> ScoreCall:
    """Merge the options of URL and body. Raises InvalidRequest if they contradict each other."""
    merged = replace(
        call,
        captions=agreed("captions", query.captions, call.captions) or [],
        model=agreed("model", query.model, call.model),
        explain=query.explain or call.explain,
        truncate=query.truncate or call.truncate,
        vqa_top_k=agreed("vqa_top_k", query.vqa_top_k, call.vqa_top_k),
    )
    return merged if call.is_vllm else replace(merged, pairs=[(0, index) for index in range(len(merged.captions))])


def _within(call: ScoreCall, limits: CallLimits) -> ScoreCall:
    """Raises InvalidField without captions and for a blank caption, TooLarge for a call that exceeds the limits."""
    if not call.captions:
        raise InvalidField("captions: The request has none.", param="captions")
    check_count("captions", len(call.captions), limits.max_captions)
    check_count(call.images[0].param.partition(".")[0], len(call.images), limits.max_images, "images")
    if call.explain:
        check_count("explain", len(call.captions), limits.max_explained_captions, "captions that are explained")
    if call.vqa_top_k is not None:
        if call.is_vllm:
            raise InvalidField("vqa_top_k: vLLM's format has no second opinion.", param="vqa_top_k")
        check_count("vqa_top_k", call.vqa_top_k, limits.max_vqa_captions, "captions of a second opinion")
    for caption in call.captions:
        if is_blank(caption.text):
            raise InvalidField(f"{caption.param}: The text is empty.", param=caption.param)
    return call
