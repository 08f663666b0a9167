"""Upload of many images into a collection of a running Fovea, in concurrent batches limited by count and bytes.

They are sent as JSON, which can represent any id; its base64 costs little compared with decoding the images. An image
that is rejected does not affect others: it is left out and reported, and the rest of its batch is sent again.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from services.embed.bulk.collection_client import BATCH_SIZE, CollectionClient, Patience, each, in_batches, in_workers
from services.embed.bulk.image_sources import ListedImage, Listing, Skipped, Unreadable, read_image, read_metadata
from services.jobs.progress import Bar, Bars

# A service has its own limit for an image; this is the most that fits into a body.
MAX_IMAGE_BYTES = 47 * 1024 * 1024


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
    batch_size: int = BATCH_SIZE
    num_in_flight: int = 4
    skips_present: bool = True
    waits: bool = True
    patience: Patience | None = None
    poll_s: float = 0.5


async def upload(target: UploadTarget, listing: Listing, bars: Bars, on_skipped: Callable[[Skipped], None]) -> int:
    """Send the listed images that do not exist yet, and wait for the indexes. Returns how many images were skipped.

    Raises Unavailable if the service stays unavailable, and CallRefused if it would reject every image.
    """
    for skipped in listing.skipped:
        on_skipped(skipped)
    async with CollectionClient(
        target.url, target.collection, api_key=target.api_key, patience=target.patience
    ) as client:
        await client.put({"conditions": list(target.conditions)})
        images = listing.images
        if target.skips_present:
            present = {image["id"] async for image in client.listed()}
            images = [image for image in images if image.id not in present]
        num_added, num_present, num_skipped = 0, len(listing.images) - len(images), len(listing.skipped)
        with bars.bar("Uploading", "images", total=len(listing.images), done=num_present) as bar:

            async def send(batch: list[ListedImage]) -> None:
                nonlocal num_added, num_present, num_skipped
                read = await asyncio.to_thread(lambda: [_as_json(image) for image in batch])
                done = await client.add([one for one in read if not isinstance(one, Skipped)])
                skipped = [*(one for one in read if isinstance(one, Skipped)), *done.rejected]
                for one in skipped:
                    on_skipped(one)
                num_added += done.num_added
                num_present += done.num_unchanged
                num_skipped += len(skipped)
                bar.advance(len(batch))

            async with aclosing(in_batches(each(images), target.batch_size)) as batches:
                await in_workers(batches, send, target.num_in_flight)
        bars.say(f"{num_added} added, {num_present} already present, {num_skipped} skipped: {target.collection}")
        if target.waits:
            with bars.bar("Indexing", "embeddings", total=None) as bar:
                await _wait_for_indexes(client, bar, target.poll_s)
    return num_skipped


async def _wait_for_indexes(client: CollectionClient, bar: Bar, poll_s: float) -> None:
    """Wait until every index of the collection holds every image."""
    while True:
        indexes = (await client.describe())["conditions"]
        num_indexed = sum(index["indexed"] for index in indexes)
        num_waiting = sum(index["waiting"] for index in indexes)
        bar.set(num_indexed, num_indexed + num_waiting)
        if num_waiting == 0:
            return
        await asyncio.sleep(poll_s)  # the service sends no notification


def _as_json(image: ListedImage) -> dict[str, Any] | Skipped:
    try:
        metadata = read_metadata(image)
        data = base64.b64encode(read_image(image, MAX_IMAGE_BYTES)).decode()
    except Unreadable as error:
        return Skipped(image.id, str(error))
    return {"id": image.id, "image": data} | ({} if metadata is None else {"metadata": metadata})
