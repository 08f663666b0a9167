"""Conversion of request bodies in any of the accepted formats into calls about images and captions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request

from services.core.errors import InvalidField, TooLarge, check_count
from services.core.http.bodies import (
    MAX_FORM_FIELDS,
    agreed,
    media_type_of,
    off_loop,
    read_form,
    read_json,
    unsupported,
    validate,
)
from services.core.images.inputs import ImageInput, image_input
from services.score.call import CallLimits, ScoreCall, captions_of
from services.score.http.schemas import ScoreOptions, ScoreRequest
from services.score.http.vllm_calls import is_vllm, read_pairs

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
        if not caption.text.strip():
            raise InvalidField(f"{caption.param}: The text is empty.", param=caption.param)
    return call
