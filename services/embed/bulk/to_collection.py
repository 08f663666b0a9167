"""Upload of many images into a collection of a running Fovea, in concurrent batches limited by count and bytes.

They are sent as JSON, which can represent any id; its base64 costs little compared with decoding the images. An image
that is rejected does not affect others: it is left out and reported, and the rest of its batch is sent again.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from services.embed.bulk.collection_client import (
    COLLECTION_FULL,
    Batches,
    CollectionClient,
    Patience,
    Refused,
    in_workers,
)
from services.embed.bulk.image_sources import ListedImage, Listing, Skipped, Unreadable, read_image, read_metadata
from services.jobs.progress import Bar, Bars

# Far below the size that a service accepts for a body (64 MiB undecoded), base64 included.
MAX_BATCH_BYTES = 8 * 1024 * 1024
# A service has its own limit for an image; this is the most that fits into a body.
MAX_IMAGE_BYTES = 47 * 1024 * 1024

# A wrong key, a missing collection, a full one: these errors do not concern a single image.
_ABOUT_EVERY_IMAGE = frozenset({401, 403, 404, 405})


@dataclass(frozen=True)
class UploadTarget:
    """A collection of the Fovea at `url`, the conditions to index in advance, and how it is filled.

    `batch_size` is the number of images per request, `num_in_flight` the number of concurrent requests. `skips_present`
    leaves out ids that exist already; `waits` waits until every index holds every image, polling every `poll_s`.
    """

    url: str
    collection: str
    api_key: str | None = None
    conditions: Sequence[str] = ()
    batch_size: int = 64
    num_in_flight: int = 4
    skips_present: bool = True
    waits: bool = True
    patience: Patience | None = None
    poll_s: float = 0.5


@dataclass
class Uploaded:
    """Numbers of images that were added, that existed with the same content, and that were skipped."""

    num_added: int = 0
    num_unchanged: int = 0
    num_skipped: int = 0


async def upload(target: UploadTarget, listing: Listing, bars: Bars, on_skipped: Callable[[Skipped], None]) -> int:
    """Send the listed images that do not exist yet, and wait for the indexes. Returns how many images were skipped.

    Raises Unavailable if the service stays unavailable, and Refused if it would reject every image.
    """
    for skipped in listing.skipped:
        on_skipped(skipped)
    async with CollectionClient(
        target.url, target.collection, api_key=target.api_key, patience=target.patience
    ) as client:
        await client.create(target.conditions)
        images = listing.images
        if target.skips_present:
            present = {image_id async for image_id in client.ids()}
            images = [image for image in images if image.id not in present]
        num_present = len(listing.images) - len(images)
        with bars.bar("Uploading", "images", total=len(listing.images), done=num_present) as bar:
            sent = await _Upload(client, target, bar, on_skipped).run(images)
        num_skipped = sent.num_skipped + len(listing.skipped)
        num_present += sent.num_unchanged
        bars.say(f"{sent.num_added} added, {num_present} already present, {num_skipped} skipped: {target.collection}")
        if target.waits:
            with bars.bar("Indexing", "embeddings", total=None) as bar:
                await _wait_for_indexes(client, bar, target.poll_s)
    return num_skipped


class _Upload:
    """One upload of listed images."""

    def __init__(
        self, client: CollectionClient, target: UploadTarget, bar: Bar, on_skipped: Callable[[Skipped], None]
    ) -> None:
        self._client = client
        self._target = target
        self._bar = bar
        self._on_skipped = on_skipped
        self._uploaded = Uploaded()

    async def run(self, images: Sequence[ListedImage]) -> Uploaded:
        async def batches() -> AsyncGenerator[list[ListedImage]]:
            for batch in cut_batches(images, self._target.batch_size):
                yield batch

        async def read_and_add(batch: list[ListedImage]) -> None:
            await self._add(await asyncio.to_thread(self._read, batch))

        async with aclosing(batches()) as found:
            await in_workers(found, read_and_add, self._target.num_in_flight)
        return self._uploaded

    def _read(self, batch: Sequence[ListedImage]) -> list[dict[str, Any] | Skipped]:
        return [_as_json(image) for image in batch]

    async def _add(self, batch: Sequence[dict[str, Any] | Skipped]) -> None:
        """Send the readable images of a batch; after each rejection, send those again that were not at fault."""
        waiting = []
        for one in batch:
            if isinstance(one, Skipped):
                self._skip(one)
            else:
                waiting.append(one)
        while waiting:
            try:
                answer = await self._client.add(orjson.dumps({"images": waiting}))
            except Refused as refused:
                if refused.status in _ABOUT_EVERY_IMAGE or refused.code == COLLECTION_FULL:
                    raise
                waiting = await self._without_the_refused(waiting, refused)
            else:
                self._uploaded.num_added += answer["added"]
                self._uploaded.num_unchanged += answer["unchanged"]
                self._bar.advance(len(waiting))
                return

    async def _without_the_refused(self, images: list[dict[str, Any]], refused: Refused) -> list[dict[str, Any]]:
        """Return the images to send again: all except the one named in the error, or none after sending each alone."""
        if len(images) == 1:
            self._skip(Skipped(images[0]["id"], str(refused)))
            return []
        if refused.image is not None and refused.image < len(images):
            self._skip(Skipped(images[refused.image]["id"], str(refused)))
            return images[: refused.image] + images[refused.image + 1 :]
        for image in images:
            await self._add([image])
        return []

    def _skip(self, skipped: Skipped) -> None:
        self._uploaded.num_skipped += 1
        self._on_skipped(skipped)
        self._bar.advance(1)


async def _wait_for_indexes(client: CollectionClient, bar: Bar, poll_s: float) -> None:
    """Wait until every index of the collection holds every image."""
    while True:
        indexes = await client.progress()
        num_indexed = sum(index.num_indexed for index in indexes)
        num_waiting = sum(index.num_waiting for index in indexes)
        bar.set(num_indexed, num_indexed + num_waiting)
        if num_waiting == 0:
            return
        await asyncio.sleep(poll_s)  # the service sends no notification


def cut_batches(images: Iterable[ListedImage], batch_size: int) -> Iterator[list[ListedImage]]:
    """Cut into batches of at most `batch_size` images and MAX_BATCH_BYTES; a larger file is a batch of its own."""
    collected = Batches[ListedImage](batch_size, MAX_BATCH_BYTES)
    for image in images:
        if batch := collected.add(image):
            yield batch
    if batch := collected.rest():
        yield batch


def _as_json(image: ListedImage) -> dict[str, Any] | Skipped:
    try:
        metadata = read_metadata(image)
        data = base64.b64encode(read_image(image, MAX_IMAGE_BYTES)).decode()
    except Unreadable as error:
        return Skipped(image.id, str(error))
    return {"id": image.id, "image": data} | ({} if metadata is None else {"metadata": metadata})
