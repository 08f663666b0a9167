"""Requests to a collection and its answers, before they are written as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.core.images.inputs import ImageInput
from services.embed.service import TextInput

State = Literal["ready", "building"]
IndexKind = Literal["flat", "ivf"]


@dataclass(frozen=True, eq=False)
class ImageToAdd:
    """An image to store under `id`, or under the sha256 of its bytes where that is None.

    `metadata` None says nothing about it: a stored image keeps what it has. `param` is the request field to blame for
    anything but the image itself.
    """

    id: str | None
    image: ImageInput
    metadata: dict[str, Any] | None
    param: str


@dataclass(frozen=True, eq=False)
class SearchQuery:
    """The `k` images nearest to an image, a stored image or a text under `condition`, among those whose metadata
    has the fields and values of `filter`."""

    input: ImageInput | TextInput
    condition: str | None = None
    k: int = 10
    filter: dict[str, Any] | None = None
    model: str | None = None


@dataclass(frozen=True)
class SearchHit:
    """A stored image; `score` is the cosine to the query under the condition."""

    id: str
    score: float
    metadata: dict[str, Any]


@dataclass(frozen=True)
class IndexStatus:
    """A condition's index: `size` images are in it, `num_waiting` are not yet.

    `condition` is the wording that was indexed, None for the unconditional embedding. `exact` says that every image
    was compared; `recall_at_10` was measured when an approximate index was built.
    """

    condition: str | None
    kind: IndexKind
    size: int
    exact: bool
    state: State
    num_waiting: int = 0
    num_bytes: int = 0
    recall_at_10: float | None = None


@dataclass(frozen=True)
class SearchAnswer:
    """`model` is `name@version`; `condition` is the asked wording; hits are best first."""

    model: str
    condition: str | None
    hits: Sequence[SearchHit]
    index: IndexStatus


@dataclass(frozen=True)
class StatesStatus:
    """Image states kept for cheap new conditions: of how many images, in how many bytes of how many at most."""

    num_images: int
    num_bytes: int
    bytes_per_image: int
    max_bytes: int


@dataclass(frozen=True)
class CollectionListing:
    """A tenant's collections, and the names of those that can't be read at the moment, both by name."""

    collections: "Sequence[CollectionStatus]"
    unavailable: Sequence[str]


@dataclass(frozen=True)
class CollectionStatus:
    """A collection; `created` is Unix time in seconds, `num_bytes` those of the stored images."""

    name: str
    model: str
    created: float
    num_images: int
    num_bytes: int
    state: State
    indexes: Sequence[IndexStatus]
    states: StatesStatus | None
