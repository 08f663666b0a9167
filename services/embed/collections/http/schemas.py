"""Request and response bodies of collections."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field, JsonValue

from services.core.images.references import JsonImage
from services.core.strict_requests import JsonList, StrictRequest
from services.embed.collections.answers import Created, SearchAnswer, State
from services.embed.collections.index.vector_index import IndexKind
from services.embed.collections.storage.image_store import StoredImage

Metadata = dict[str, JsonValue]


class NewImage(StrictRequest):
    """One image to add."""

    id: str | None = Field(None, description="Id of the image. Default: the SHA-256 of its bytes.")
    image: JsonImage = Field(description='Data URI, base64, `http(s)` URL or `{"id": "collection/image-id"}`.')
    metadata: Metadata | None = None
    created: Created = None


class AddRequest(StrictRequest):
    images: JsonList[NewImage]


class PatchRequest(StrictRequest):
    """Changes of an image."""

    metadata: Metadata = Field(
        description="Changes as a JSON merge patch (RFC 7396): null removes a field, an object changes the fields of "
        "one, and any other value replaces what was there."
    )


class FormMetadata(BaseModel):
    """Metadata of a form's files, by file name."""

    metadata: Annotated[dict[str, Metadata], Field(fail_fast=True)]


class SearchRequest(StrictRequest):
    """A search. The query is exactly one of `image`, `text` and `id`."""

    image: JsonImage | None = Field(
        None, description='Data URI, base64, `http(s)` URL or `{"id": "collection/image-id"}`.'
    )
    text: str | None = None
    id: str | None = Field(None, description="Id of an image of this collection, which is excluded from the results.")
    condition: str | JsonList[str] | None = Field(
        None, description="At most one condition. Default: the unconditional embedding."
    )
    k: int | None = Field(None, ge=1, description="Maximum number of results; 10 by default.")
    filter: Metadata | None = Field(
        None,
        description="Return only images whose metadata fits: a value for each field, a list of which it has one, or an "
        "object of `$eq`, `$ne`, `$in`, `$nin`, `$gt`, `$gte`, `$lt`, `$lte`, `$exists`; `$and`, `$or`, `$not` join.",
    )
    model: str | None = Field(None, description="Refused if it is not the collection's.")


class AddedImages(BaseModel):
    """Response to adding images, sent once they are stored durably."""

    added: int
    unchanged: int = Field(description="Number of images that already existed with the same content.")
    ids: list[str] = Field(description="Ids in the order of the request.")


class ImageEntry(BaseModel):
    id: str
    bytes: int
    sha256: str = Field(description="SHA-256 of the image's bytes.")
    metadata: Metadata
    created: int = Field(description="Unix time in seconds.")


class ImageList(BaseModel):
    """Images in ascending order of id. To get the next page, pass the last id as `after`."""

    object: Literal["list"] = "list"
    data: list[ImageEntry]
    has_more: bool


class SearchResult(BaseModel):
    id: str
    score: float = Field(ge=-1, le=1, description="Cosine to the query under the condition.")
    metadata: Metadata


class SearchIndex(BaseModel):
    """The index used for the search."""

    condition: str | None = Field(description="Condition under which query and images were compared.")
    kind: IndexKind
    size: int = Field(description="Number of images in the index.")
    exact: bool = Field(description="Whether every image was compared exactly.")
    state: State = Field(description="`ready` when the index holds every image.")
    recall_at_10: float | None = Field(description="Recall measured when an approximate index was built.")


class SearchResults(BaseModel):
    """Results of a search, best first."""

    object: Literal["search"] = "search"
    model: str = Field(description="`name@version` of the checkpoint that produced the result.")
    condition: str | None
    results: list[SearchResult]
    index: SearchIndex


def render_image_list(images: Sequence[StoredImage], *, has_more: bool) -> bytes:
    """Render the JSON of an ImageList."""
    data = [image_entry(image) for image in images]
    return orjson.dumps({"object": "list", "data": data, "has_more": has_more})


def image_entry(image: StoredImage) -> dict[str, Any]:
    """Return the fields of an ImageEntry."""
    return {
        "id": image.id,
        "bytes": image.num_bytes,
        "sha256": image.digest,
        "metadata": image.metadata,
        "created": int(image.created),
    }


def render_search(answer: SearchAnswer) -> bytes:
    """Render the JSON of SearchResults."""
    index = answer.index
    body: dict[str, Any] = {
        "object": "search",
        "model": answer.model,
        "condition": answer.condition,
        # the dot product of two rounded unit vectors may slightly exceed 1
        "results": [
            {"id": hit.id, "score": max(-1.0, min(1.0, hit.score)), "metadata": hit.metadata} for hit in answer.hits
        ],
        "index": {
            "condition": index.condition,
            "kind": index.kind,
            "size": index.indexed,
            "exact": index.exact,
            "state": index.state,
            "recall_at_10": index.recall_at_10,
        },
    }
    return orjson.dumps(body)
