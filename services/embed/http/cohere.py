"""Cohere's embed API in both versions."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field

from services.core.errors import InvalidField, InvalidRequest
from services.core.http.bodies import OpenRequest, refuse_unsupported, validate
from services.core.images.inputs import ImageInput, image_input
from services.core.images.references import JsonImage
from services.core.strict_requests import JsonList
from services.embed.call import CallLimits, EmbedCall, Embedded, EncodingFormat, Input, PairInput, TextInput
from services.embed.http.schemas import DIMENSIONS, conditions_of, render_rows

Version = Literal["1", "2"]
# Fields that only Cohere's requests have; they distinguish version 1 from Fovea's own format.
COHERES = ("input_type", "embedding_types")
UNSUPPORTED = {"max_tokens": ()}
SYNONYMS = {"dimensions": "output_dimension", "encoding_format": "embedding_types", "output_dtype": "embedding_types"}


class CohereInput(BaseModel):
    """A text, an image, or both: `{"type": "text", "text": …}`, `{"type": "image_url", "image_url": {"url": …}}`."""

    content: Annotated[JsonList[dict[str, Any]], Field(min_length=1)]


class CohereRequest(OpenRequest):
    """Texts, images, or inputs of both; `input_type` changes nothing here."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    texts: JsonList[str] | None = None
    images: JsonList[JsonImage] | None = None
    inputs: JsonList[CohereInput] | None = Field(None, description="Version 2's; each of a text, an image, or both.")
    input_type: str | None = None
    embedding_types: JsonList[EncodingFormat] | None = None
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None, description="`END` cuts long texts; without it they are refused. `START` is refused."
    )
    output_dimension: int | None = Field(None, description=DIMENSIONS)
    condition: str | JsonList[str] | None = Field(None, description="For the images.")


class CohereEmbeddings(BaseModel):
    """Embeddings by requested type; `float` by default."""

    float_: list[list[float]] | None = Field(None, alias="float")
    int8: list[list[int]] | None = Field(None, description="127 times each number, rounded.")
    uint8: list[list[int]] | None = Field(None, description="128 more than `int8`.")
    binary: list[list[int]] | None = Field(None, description="128 less than `ubinary`.")
    ubinary: list[list[int]] | None = Field(None, description="Signs, the first in the highest bit of a byte.")
    base64: list[str] | None = Field(None, description="Of little-endian float32.")


class CohereMeta(BaseModel):
    api_version: dict[str, str]
    billed_units: dict[str, int]


class CohereAnswer(BaseModel):
    """Embeddings in the order of the inputs; in version 1 a plain list if no type was requested."""

    id: str
    response_type: Literal["embeddings_floats", "embeddings_by_type"]
    embeddings: CohereEmbeddings | list[list[float]]
    texts: list[str]
    meta: CohereMeta


@dataclass(frozen=True)
class CohereCall(EmbedCall):
    """A call that is answered in Cohere's format; without `embedding_types` version 1 gets a plain list."""

    version: Version = "2"
    embedding_types: Sequence[EncodingFormat] | None = None


def is_cohere(body: dict[str, Any]) -> bool:
    """Whether a body of `/embed` has version 1 of Cohere's format."""
    return any(name in body for name in COHERES)


def cohere_call(body: dict[str, Any], limits: CallLimits, version: Version = "2") -> CohereCall:
    """Convert Cohere's request into a call. Raises InvalidField and InvalidRequest for invalid requests."""
    parsed = validate(CohereRequest, body)
    refuse_unsupported(parsed.model_extra, UNSUPPORTED, CohereRequest.model_fields, SYNONYMS)
    if parsed.truncate == "START":
        raise InvalidRequest("truncate: Texts are cut at their end only.", param="truncate")
    inputs = _inputs(parsed, limits)
    if parsed.condition is not None and (pair := next((one for one in inputs if isinstance(one, PairInput)), None)):
        told = "Its text takes the place of a condition; leave `condition` out, or send the image without a text."
        raise InvalidRequest(f"{pair.text.param}: {told}", param=pair.text.param)
    return CohereCall(
        inputs=inputs,
        conditions=conditions_of(parsed.condition),
        model=parsed.model,
        dimensions=parsed.output_dimension,
        dimensions_in="output_dimension",
        truncate=parsed.truncate == "END",
        version=version,
        embedding_types=parsed.embedding_types or (["float"] if version == "2" else None),
    )


def _inputs(parsed: CohereRequest, limits: CallLimits) -> list[Input]:
    inputs: list[Input] = [TextInput(text, f"texts.{index}") for index, text in enumerate(parsed.texts or ())]
    inputs += [image_input(image, f"images.{index}", limits.images) for index, image in enumerate(parsed.images or ())]
    inputs += [_input(one, f"inputs.{index}.content", limits) for index, one in enumerate(parsed.inputs or ())]
    if not inputs:
        raise InvalidField("The request holds no input: give texts, images or inputs.", param="texts")
    return inputs


def _input(given: CohereInput, param: str, limits: CallLimits) -> Input:
    match [_part(one, f"{param}.{index}", limits) for index, one in enumerate(given.content)]:
        case [only]:
            return only
        case [ImageInput() as image, TextInput() as text] | [TextInput() as text, ImageInput() as image]:
            return PairInput(image, text)
    raise InvalidRequest(
        f"{param}: One embedding is of one text, one image, or one image and one text; send other parts as inputs of "
        "their own.",
        param=param,
    )


def _part(part: dict[str, Any], param: str, limits: CallLimits) -> ImageInput | TextInput:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextInput(text, f"{param}.text")
        case {"type": "image_url"}:
            return image_input(part, param, limits.images)
    raise InvalidField(f"{param}: A part is a text or an image_url.", param=param)


def render_cohere(embedded: Embedded, call: CohereCall) -> bytes:
    """Render the JSON of a CohereAnswer."""
    types = call.embedding_types
    rows = {kind: render_rows(embedded.rows, kind) for kind in types or ("float",)}
    units = {"input_tokens": embedded.prompt_tokens, "images": embedded.num_images}
    answer = {
        "id": f"embed-{uuid.uuid4().hex}",
        "response_type": "embeddings_by_type" if types else "embeddings_floats",
        "embeddings": rows if types else rows["float"],
        "texts": [one.text for one in call.inputs if isinstance(one, TextInput)],
        "meta": {"api_version": {"version": call.version}, "billed_units": units},
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
