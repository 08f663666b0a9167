"""Conversion of requests about a collection, with any of the accepted body formats, into calls of the library."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import Request

from services.core.admission.json_scan import check_num_values
from services.core.errors import InvalidField, InvalidRequest, check_count
from services.core.http.bodies import (
    Form,
    agreed,
    media_type_of,
    off_loop,
    parse_json,
    read_form,
    read_json,
    request_schema,
    unsupported,
    validate,
)
from services.core.images.inputs import ImageInput, image_input
from services.core.images.references import StoredImage
from services.embed.call import CallLimits, TextInput
from services.embed.collections.answers import CreateRequest, ImageToAdd, Metadata, SearchQuery
from services.embed.collections.http.schemas import AddRequest, FormMetadata, PatchRequest, SearchRequest
from services.embed.collections.storage.image_store import check_image_id
from services.embed.http.schemas import conditions_of

EVERY_FORM = "image/*, multipart/form-data or application/json"
_PATCH = {"schema": request_schema(PatchRequest)}
PATCH_FORMS = {"application/json": _PATCH, "application/merge-patch+json": _PATCH}
DEFAULT_K = 10
# Fields that can hold the query of a search; exactly one of them is set.
QUERIES = ("image", "text", "id")


async def read_creation(request: Request, limits: CallLimits) -> CreateRequest:
    """Read `PUT /collections/{name}`: JSON, or no body. Raises UnsupportedMediaType, InvalidField, TooLarge."""
    if not await request.body():
        return CreateRequest()
    if media_type_of(request) != "application/json":
        raise await unsupported(request, "application/json")
    body = await read_json(request)
    asked = await off_loop(request, lambda: validate(CreateRequest, body))
    check_count("conditions", len(asked.conditions), limits.max_conditions)
    return asked


async def read_images(request: Request, image_id: str | None, limits: CallLimits) -> Sequence[ImageToAdd]:
    """Read `POST /collections/{name}/images`: one image, a form or JSON; `image_id` is from the URL.

    Raises UnsupportedMediaType for any other content type, InvalidRequest, InvalidField and TooLarge for invalid
    content.
    """
    media_type = media_type_of(request)
    if media_type.startswith("image/"):
        if image_id is not None:
            check_image_id(image_id, "id")
        return [ImageToAdd(image_id, ImageInput(await request.body(), "body"), None, "body")]
    if image_id is not None:
        raise InvalidRequest("id: The URL may contain an id only if the body is the image itself.", param="id")
    if media_type == "multipart/form-data":
        num_bytes = len(await request.body())
        form = await read_form(request, max_files=limits.max_inputs, fields=("metadata",), max_field_bytes=num_bytes)
        return await off_loop(request, lambda: _images_of_form(form, limits))
    if media_type == "application/json":
        body = await read_json(request)
        return await off_loop(request, lambda: _images_of_json(body, limits))
    raise await unsupported(request, EVERY_FORM)


async def read_changes(request: Request) -> Metadata:
    """Read `PATCH /collections/{name}/images/{id}`: JSON. Raises UnsupportedMediaType, InvalidRequest, InvalidField."""
    if media_type_of(request) not in PATCH_FORMS:
        raise await unsupported(request, " or ".join(PATCH_FORMS))
    body = await read_json(request)
    return (await off_loop(request, lambda: validate(PatchRequest, body))).metadata


async def read_search(request: Request, collection: str, url: Mapping[str, Any], limits: CallLimits) -> SearchQuery:
    """Read `POST /collections/{name}/search`: the query is an image, a form with one, or JSON; `url` has the URL's
    parameters. Raises what `read_images` raises.
    """
    in_url = _options(url)
    media_type = media_type_of(request)
    query: ImageInput | TextInput
    if media_type.startswith("image/"):
        query, asked = ImageInput(await request.body(), "body"), SearchRequest()
    elif media_type == "multipart/form-data":
        form = await read_form(request, max_files=1, fields=("condition", "k", "filter", "model", *QUERIES))
        given = {name: form.fields[name][-1] for name in ("k", "filter", "model") if form.fields[name]}
        query, asked = _query_of_form(form), _options({**given, "condition": form.fields["condition"]})
    elif media_type == "application/json":
        body = await read_json(request)
        asked = await off_loop(request, lambda: validate(SearchRequest, body))
        query = await off_loop(request, lambda: _query_of_json(asked, collection, limits))
    else:
        raise await unsupported(request, EVERY_FORM)
    return SearchQuery(
        input=query,
        condition=_one_condition(agreed("condition", conditions_of(in_url.condition), conditions_of(asked.condition))),
        k=_within(agreed("k", in_url.k, asked.k) or DEFAULT_K, limits),
        filter=agreed("filter", in_url.filter, asked.filter),
        model=agreed("model", in_url.model, asked.model),
    )


def _images_of_form(form: Form, limits: CallLimits) -> Sequence[ImageToAdd]:
    check_count("file", len(form.files), limits.max_inputs, "images")
    metadata = _metadata_of_form(form, limits)
    for file in form.files:
        if file.name:
            check_image_id(file.name, file.param)
    return [
        ImageToAdd(file.name or None, ImageInput(file.data, file.param), metadata.get(file.name), file.param)
        for file in form.files
    ]


def _metadata_of_form(form: Form, limits: CallLimits) -> dict[str, Metadata]:
    """Read the metadata by file name. Raises InvalidRequest if not JSON, InvalidField for unknown names, TooLarge."""
    parts = form.fields["metadata"]
    if not parts:
        return {}
    if len(parts) > 1:
        raise InvalidField(
            f"metadata: The form has {len(parts)} parts with this name; send the metadata of all files in one part.",
            param="metadata",
        )
    text = parts[0].encode() if isinstance(parts[0], str) else parts[0]
    check_num_values(text, limits.max_json_values, param="metadata")
    metadata = validate(FormMetadata, {"metadata": _json_field("metadata", text)}).metadata
    names = {file.name for file in form.files if file.name}
    for image_id in metadata.keys() - names:
        param = f"metadata.{image_id}"
        raise InvalidField(f"{param}: The form has no file with this name.", param=param)
    return metadata


def _images_of_json(body: dict[str, Any], limits: CallLimits) -> Sequence[ImageToAdd]:
    images = validate(AddRequest, body).images
    if not images:
        raise InvalidField("images: The list is empty.", param="images")
    check_count("images", len(images), limits.max_inputs)
    return [
        ImageToAdd(
            one.id,
            image_input(one.image, f"images.{index}.image", limits.images),
            one.metadata,
            f"images.{index}",
            one.created,
        )
        for index, one in enumerate(images)
    ]


def _query_of_form(form: Form) -> ImageInput:
    given = ["file", *(name for name in QUERIES if form.fields[name])]
    if len(given) > 1:
        raise InvalidField(f"A search has exactly one query; the form has {' and '.join(given)}.", param=given[-1])
    if len(form.files) > 1:
        raise InvalidField(f"file.1: A search has one query; the form has {len(form.files)} files.", param="file.1")
    return ImageInput(form.files[0].data, form.files[0].param)


def _options(given: Mapping[str, Any]) -> SearchRequest:
    """Validate options of which the filter is JSON as text."""
    parsed = {} if given.get("filter") is None else {"filter": _json_field("filter", given["filter"])}
    return validate(SearchRequest, {**given, **parsed})


def _query_of_json(asked: SearchRequest, collection: str, limits: CallLimits) -> ImageInput | TextInput:
    given = [name for name in QUERIES if getattr(asked, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InvalidField(
            f"The query of a search is exactly one of image, text and id; the body has {found}.",
            param=given[-1] if given else "image",
        )
    if asked.image is not None:
        return image_input(asked.image, "image", limits.images)
    if asked.id is not None:
        return ImageInput(StoredImage(collection, asked.id), "id")
    assert asked.text is not None  # one of the three is given
    return TextInput(asked.text, "text")


def _one_condition(conditions: Sequence[str] | None) -> str | None:
    if conditions and len(conditions) > 1:
        raise InvalidField(f"condition: A search has at most one condition, not {len(conditions)}.", param="condition")
    return conditions[0] if conditions else None


def _within(k: int, limits: CallLimits) -> int:
    if k > limits.max_k:
        raise InvalidField(f"k: The request asks for {k} results; the limit is {limits.max_k}.", param="k")
    return k


def _json_field(param: str, value: str | bytes) -> Any:
    try:
        return parse_json(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{param}: This is not valid JSON: {error}.", param=param) from None
