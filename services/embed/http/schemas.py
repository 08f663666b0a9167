"""Request and response bodies of the embed service in Fovea's own format, OpenAI's and TEI's."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import orjson
from pydantic import BaseModel, Field, model_validator

from services.core.http.bodies import OpenRequest
from services.core.images.references import JsonImage
from services.core.serving.model_object import ModelObject
from services.core.strict_requests import JsonList, StrictRequest
from services.embed.call import EncodingFormat
from services.embed.outputs import Embeddings, quantised

DIMENSIONS = "Numbers of an embedding; fewer than the model's own only of a model that was trained for it."


class EmbedRequest(StrictRequest):
    """Images, each embedded under every condition, and texts, to which conditions do not apply."""

    images: JsonList[JsonImage] = Field(
        [], description='Data URI, base64, `http(s)` URL or `{"id": "collection/image-id"}` for each image.'
    )
    texts: JsonList[str] = Field([])
    condition: str | JsonList[str] | None = Field(
        None, description="One or more conditions. Default: the unconditional embedding."
    )
    model: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = Field(None, ge=1, description=DIMENSIONS)


class InputItem(BaseModel):
    """An input in Jina's format: exactly one of its fields."""

    text: str | None = None
    image: JsonImage | None = None

    @model_validator(mode="after")
    def holds_one_input(self) -> Self:
        if (self.text is None) == (self.image is None):
            raise ValueError("an input holds either a text or an image")
        return self


class EmbeddingsRequest(OpenRequest):
    """OpenAI's request, extended by images as inputs and a condition for them."""

    input: str | InputItem | JsonList[str | InputItem]
    model: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = Field(None, description=DIMENSIONS)
    output_dimension: int | None = Field(None, description="Voyage's name of `dimensions`.")
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None, description="Voyage's and Mistral's. Integers are listed also where `encoding_format` is `base64`."
    )
    embedding_type: EncodingFormat | Annotated[JsonList[EncodingFormat], Field(max_length=1)] | None = Field(
        None, description="Jina's name of `output_dtype`."
    )
    modality: Literal["text", "image"] | None = Field(
        None, description="Infinity's: with `image`, strings are images, as URLs, data URIs or base64."
    )
    condition: str | JsonList[str] | None = Field(None, description="Condition for the images among the inputs.")
    user: str | None = None


class TeiRequest(OpenRequest):
    """The embed request of text-embeddings-inference, recognized by its field `inputs`."""

    inputs: str | JsonList[str]
    truncate: bool | None = False
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = "right"
    normalize: bool | None = True
    prompt_name: str | None = None
    dimensions: int | None = None


class EmbedUsage(BaseModel):
    """Usage of a request. `prompt_tokens` counts the tokens of all texts, and of each condition once."""

    images: int
    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    condition: str | None = Field(None, description="Condition under which the image was embedded.")
    embedding: list[float] | str = Field(
        description="Embedding with L2 norm 1, as numbers or as base64 of little-endian float32; or integers of it."
    )


class EmbeddingList(BaseModel):
    """Embeddings in the order of the inputs; an image has one for each condition, in the order of the conditions."""

    object: Literal["list"] = "list"
    model: str = Field(description="`name@version` of the checkpoint that produced the result.")
    data: list[Embedding]
    usage: EmbedUsage


class ModelLimits(BaseModel):
    """Limits of one request."""

    max_inputs: int
    max_conditions: int
    max_embeddings: int
    max_image_bytes: int
    max_image_pixels: int


class Model(ModelObject):
    """The served model."""

    max_model_len: int = Field(description="Maximum number of tokens of a text or a condition.")
    dimensions: int
    matryoshka_dimensions: str | None = Field(
        None, description="Fewer `dimensions` that it was trained for: `64,128`, or `64+` for any from 64 up."
    )
    limits: ModelLimits


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class TeiModelType(BaseModel):
    embedding: dict[str, str]


class TeiInfo(BaseModel):
    """TEI's `GET /info`, with the fields that apply to Fovea."""

    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: TeiModelType
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool = False
    version: str


def render_rows(rows: Embeddings, encoding_format: EncodingFormat | None) -> list[Any]:
    """Render each row for `embedding`: an array of numbers, which orjson writes, or base64."""
    if encoding_format == "base64":
        return [base64.b64encode(row.tobytes()).decode("ascii") for row in np.ascontiguousarray(rows, dtype="<f4")]
    if encoding_format is None or encoding_format == "float":
        return list(np.ascontiguousarray(rows))
    return list(quantised(rows, encoding_format))


def render_embedding_list(
    rows: Sequence[Any], conditions: Sequence[str | None], model: str, usage: EmbedUsage
) -> bytes:
    """Render the JSON of an EmbeddingList."""
    data = [
        {"object": "embedding", "index": index, "condition": condition, "embedding": row}
        for index, (row, condition) in enumerate(zip(rows, conditions, strict=True))
    ]
    body = {"object": "list", "model": model, "data": data, "usage": usage.model_dump()}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def render_tei(rows: Embeddings) -> bytes:
    """Render TEI's response, which consists only of numbers."""
    return orjson.dumps(np.ascontiguousarray(rows), option=orjson.OPT_SERIALIZE_NUMPY)


def conditions_of(condition: str | list[str] | None) -> list[str]:
    """List the conditions of a request that has none, one, or a list."""
    if condition is None:
        return []
    return [condition] if isinstance(condition, str) else condition
