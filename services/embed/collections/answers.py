"""Requests to a collection and their results, independent of JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.core.images.inputs import ImageInput
from services.embed.call import TextInput
from services.embed.collections.index.vector_index import IndexKind
from services.embed.collections.storage.image_store import Access

State = Literal["ready", "building"]


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


@dataclass(frozen=True)
class Creation:
    """A collection as it is to be: its model, if it is new, conditions to index in advance, and which changes it takes.

    `created` is the Unix time in seconds of one that was made elsewhere before. None means unspecified: a new
    collection has the first model and is open, an existing one stays as it is.
    """

    model: str | None = None
    conditions: Sequence[str] = ()
    access: Access | None = None
    created: float | None = None


@dataclass(frozen=True, eq=False)
class SearchQuery:
    """A query for the `k` images nearest to an image, a stored image or a text under `condition`, among those whose
    metadata has the fields and values of `filter`."""

    input: ImageInput | TextInput
    condition: str | None = None
    k: int = 10
    filter: dict[str, Any] | None = None
    model: str | None = None


@dataclass(frozen=True)
class SearchHit:
    """A stored image; `score` is the cosine similarity to the query under the condition."""

    id: str
    score: float
    metadata: dict[str, Any]


@dataclass(frozen=True)
class IndexStatus:
    """A condition's index, which holds `size` images and lacks `num_waiting`.

    `condition` is the wording that was indexed, None for the unconditional embedding. `exact` means that searches
    compare every image; `recall_at_10` was measured when an approximate index was built; `is_pinned` that the condition
    is never dropped.
    """

    condition: str | None
    kind: IndexKind
    size: int
    exact: bool
    state: State
    num_waiting: int = 0
    num_bytes: int = 0
    recall_at_10: float | None = None
    is_pinned: bool = False


@dataclass(frozen=True)
class SearchAnswer:
    """The result of a search: `model` is `name@version`; `condition` is the requested wording; hits are best first."""

    model: str
    condition: str | None
    hits: Sequence[SearchHit]
    index: IndexStatus


@dataclass(frozen=True)
class StatesStatus:
    """Image states kept to make new conditions cheap: the number of images, their bytes, and the maximum of bytes."""

    num_images: int
    num_bytes: int
    bytes_per_image: int
    max_bytes: int


@dataclass(frozen=True)
class CollectionListing:
    """A tenant's collections, and the names of those that are currently unavailable, both sorted by name."""

    collections: "Sequence[CollectionStatus]"
    unavailable: Sequence[str]


@dataclass(frozen=True)
class CollectionStatus:
    """A collection; `created` is Unix time in seconds, `num_bytes` is the size of the stored images."""

    name: str
    model: str
    created: float
    access: Access
    num_images: int
    num_bytes: int
    state: State
    indexes: Sequence[IndexStatus]
    states: StatesStatus | None
