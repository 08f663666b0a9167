"""Requests to a collection and their results."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue

from services.core.images.inputs import ImageInput
from services.core.strict_requests import JsonList, StrictRequest
from services.embed.call import TextInput
from services.embed.collections.index.vector_index import IndexKind
from services.embed.collections.storage.image_store import Access, StoredImage

State = Literal["ready", "building"]
Metadata = dict[str, JsonValue]
# Unix time in seconds of what was stored elsewhere before; until the year 9999.
Created = Annotated[
    float | None, Field(ge=0, lt=253402300800, description="Unix time in seconds, of what moves here. Default: now.")
]


@dataclass(frozen=True, eq=False)
class ImageToAdd:
    """An image to store under `id`, or under the sha256 of its bytes if that is None.

    `metadata` None means unspecified: a stored image keeps its metadata; `created` None means now. Errors about
    anything but the image itself name the request field `param`.
    """

    id: str | None
    image: ImageInput
    metadata: dict[str, Any] | None
    param: str
    created: float | None = None


class CreateRequest(StrictRequest):
    """A new or an existing collection as it is to be."""

    model: str | None = Field(None, description="Model of a new collection; the first served one by default.")
    conditions: JsonList[str] = Field([], description="Conditions to index in advance.")
    access: Access | None = Field(
        None,
        description="`open`: takes all changes. `read_only`: refuses additions, deletions, patches and conditions in "
        "advance (503). `copy`: is being filled from another collection, and takes only additions and deletions with "
        "`fill`; only for a new or empty collection. Default: a new one is open, an existing one stays as it is.",
    )
    created: Created = None


@dataclass(frozen=True, eq=False)
class SearchQuery:
    """A query for the `k` images nearest to an image, a stored image or a text under `condition`, among those whose
    metadata fits the `filter`."""

    input: ImageInput | TextInput
    condition: str | None = None
    k: int = 10
    filter: dict[str, Any] | None = None
    model: str | None = None


class ConditionIndex(BaseModel):
    """Indexing progress of a condition; null is the unconditional embedding."""

    condition: str | None
    state: State
    kind: IndexKind = Field(
        description="`flat` compares every image; `ivf` (in a folder) and `hnsw` (shared) select candidates."
    )
    indexed: int
    waiting: int
    bytes: int
    exact: bool
    recall_at_10: float | None = Field(description="Recall measured when an approximate index was built.")
    pinned: bool = Field(description="Whether the condition is never dropped, as it was given in advance.")


class SearchResult(BaseModel):
    id: str
    score: float = Field(ge=-1, le=1, description="Cosine to the query under the condition.")
    metadata: Metadata

    @classmethod
    def of(cls, image: StoredImage, score: float) -> "SearchResult":
        """Describe an image that was found; the dot product of two rounded unit vectors may slightly exceed 1."""
        return cls.model_construct(id=image.id, score=max(-1.0, min(1.0, score)), metadata=image.metadata)


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


class ImageStates(BaseModel):
    """Stored states of images, which make new conditions cheaper to index."""

    images: int
    bytes: int
    bytes_per_image: int
    max_bytes: int


class Collection(BaseModel):
    object: Literal["collection"] = "collection"
    name: str
    model: str
    created: int = Field(description="Unix time in seconds.")
    access: Access = Field(description="A `read_only` collection refuses changes, a `copy` those that do not fill it.")
    size: int = Field(description="Number of images.")
    bytes: int = Field(description="Size of the image files; identical files are stored once.")
    state: State = Field(description="`ready` when every index holds every image.")
    conditions: list[ConditionIndex]
    image_states: ImageStates | None = Field(description="Null if the checkpoint does not support stored states.")


class CollectionList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Collection]
    unavailable: list[str] = Field([], description="Names of collections that currently can't be read.")
