"""Collections in memory, as the routes use them; and what the tests of the wire send and read."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.core.errors import NotFound
from services.core.exchange import RequestContext
from services.core.images.references import ImageLimits
from services.embed.call import CallLimits
from services.embed.collections.answers import (
    Collection,
    CollectionList,
    CreateRequest,
    ImageStates,
    ImageToAdd,
    SearchIndex,
    SearchQuery,
    SearchResult,
    SearchResults,
)
from services.embed.collections.search import not_indexed
from services.embed.collections.service import CollectionService
from services.embed.collections.storage.image_store import Access, Added, StoredImage
from tests.core.image_files import encode, scene

COLOR, SHAPE = "What is the color?", "What is the shape?"
PHOTO = encode(scene(), "PNG")
OTHER = encode(scene().rotate(90, expand=True), "JPEG")
LIMITS = CallLimits(max_inputs=8, max_conditions=3, images=ImageLimits(max_image_bytes=100_000), max_k=50)
MODEL = "tiny@0123456789ab"
UNCONDITIONAL = not_indexed(None).model_copy(update={"indexed": 2, "state": "ready", "bytes": 192})
COLORS = not_indexed(COLOR, exact=False, waiting=1).model_copy(
    update={"kind": "ivf", "indexed": 1, "bytes": 96, "recall_at_10": 0.98}
)


class InMemory(CollectionService):
    """Collections that keep what they are asked."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, StoredImage]] = {}
        self.data: dict[str, bytes] = {}
        self.conditions: Sequence[str] = ()
        self.model: str | None = None
        self.access: Access = "open"
        self.added: Sequence[ImageToAdd] = ()
        self.waited = self.fills = False
        self.unavailable: Sequence[str] = ()
        self.query: SearchQuery | None = None
        self.deadline = 0.0
        self.cosine: Callable[[StoredImage], float] = lambda image: 1 - image.row / 8

    async def create(self, name: str, creation: CreateRequest, context: RequestContext) -> tuple[Collection, bool]:
        self.conditions, self.model = list(creation.conditions), creation.model
        self.access = creation.access or self.access
        is_new = name not in self.stored
        self.stored.setdefault(name, {})
        return await self.describe(name), is_new

    async def list(self) -> CollectionList:
        found = [await self.describe(name) for name in sorted(self.stored)]
        return CollectionList(data=found, unavailable=list(self.unavailable))

    async def describe(self, name: str) -> Collection:
        images = self._images(name).values()
        num_bytes = sum(image.num_bytes for image in images)
        states = ImageStates(images=1, bytes=64, bytes_per_image=64, max_bytes=4096) if images else None
        return Collection(
            name=name,
            model="tiny",
            created=1700000000,
            access=self.access,
            size=len(images),
            bytes=num_bytes,
            state="building",
            conditions=[UNCONDITIONAL, COLORS],
            image_states=states,
        )

    async def delete(self, name: str) -> None:
        self._images(name)
        del self.stored[name]

    async def add(
        self, name: str, images: Sequence[ImageToAdd], context: RequestContext, *, wait: bool, fill: bool = False
    ) -> Added:
        stored = self._images(name)
        self.added, self.deadline, self.waited, self.fills = images, context.deadline, wait, fill
        context.timing.add("store", 0.001)
        ids = []
        for image in images:
            assert isinstance(image.image.reference, bytes)
            data = image.image.reference
            digest = hashlib.sha256(data).hexdigest()
            ids.append(image.id if image.id is not None else digest)
            self.data[ids[-1]] = data
            metadata = image.metadata or {}
            stored[ids[-1]] = StoredImage(
                len(stored) + 1, ids[-1], digest, len(data), metadata, image.created or 1700000001.5
            )
        return Added(len(ids) - 1, 1, ids, [])

    async def image(self, name: str, image_id: str) -> bytes:
        self._image(name, image_id)
        return self.data[image_id]

    async def delete_image(self, name: str, image_id: str, *, fill: bool = False) -> None:
        self._image(name, image_id)
        self.fills = fill
        del self.stored[name][image_id]

    async def patch_image(self, name: str, image_id: str, changes: Mapping[str, Any]) -> StoredImage:
        image = self._image(name, image_id)
        self.stored[name][image_id] = replace(image, metadata={**image.metadata, **changes})
        return self.stored[name][image_id]

    async def images(self, name: str, *, after: str | None, limit: int) -> Sequence[StoredImage]:
        stored = self._images(name)
        return [stored[image_id] for image_id in sorted(stored) if image_id > (after or "")][:limit]

    async def search(self, name: str, query: SearchQuery, context: RequestContext) -> SearchResults:
        stored = self._images(name)
        self.query, self.deadline = query, context.deadline
        hits = [SearchResult.of(image, self.cosine(image)) for image in stored.values()]
        index = SearchIndex(
            condition=query.condition, kind="ivf", size=1, exact=False, state="building", recall_at_10=0.98
        )
        return SearchResults(model=MODEL, condition=query.condition, results=hits, index=index)

    def _images(self, name: str) -> dict[str, StoredImage]:
        if name not in self.stored:
            raise NotFound(f"There is no collection {name!r}.", param="collection")
        return self.stored[name]

    def _image(self, name: str, image_id: str) -> StoredImage:
        try:
            return self._images(name)[image_id]
        except KeyError:
            raise NotFound(f"There is no image {image_id!r}.") from None


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
