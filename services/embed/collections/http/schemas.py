"""Request and response bodies of collections."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from services.core.images.references import JsonImage
from services.core.strict_requests import JsonList, StrictRequest
from services.embed.collections.answers import Created, Metadata
from services.embed.collections.storage.image_store import StoredImage


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


def image_entry(image: StoredImage) -> ImageEntry:
    """Describe a stored image, which needs no further check."""
    return ImageEntry.model_construct(
        id=image.id, bytes=image.num_bytes, sha256=image.digest, metadata=image.metadata, created=int(image.created)
    )
