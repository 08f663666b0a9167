"""Images sent to a collection of a running service, in batches limited by count and bytes."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from services.embed.bulk.collection_client import COLLECTION_FULL, NOT_A_COPY, Batches, CollectionClient, Refused
from services.embed.bulk.to_collection import MAX_BATCH_BYTES
from services.embed.transfer.entries import Entry

BATCH_SIZE = 64
# A service that takes fewer images or bytes in a request is sent smaller batches.
_TOO_LARGE = frozenset({413, 422})
_ABOUT_THE_COLLECTION = frozenset({COLLECTION_FULL, NOT_A_COPY})


@dataclass(frozen=True)
class Rejected:
    """An image that the service did not take, and why."""

    id: str
    reason: str


async def batches(entries: AsyncIterator[Entry]) -> AsyncGenerator[list[Entry], None]:
    """Cut into batches of at most BATCH_SIZE images and MAX_BATCH_BYTES; a larger image is a batch of its own."""
    collected = Batches[Entry](BATCH_SIZE, MAX_BATCH_BYTES)
    async for entry in entries:
        if batch := collected.add(entry):
            yield batch
    if batch := collected.rest():
        yield batch


async def send(client: CollectionClient, images: Sequence[tuple[Entry, bytes]]) -> list[Rejected]:
    """Add images; return those that are at fault, without which the others were added. Raises Unavailable, Refused."""
    if not images:
        return []
    try:
        await client.add(await asyncio.to_thread(_body, images))
        return []
    except Refused as refused:
        if refused.code in _ABOUT_THE_COLLECTION:
            raise
        if len(images) == 1 and refused.status in (400, 409, 413, 422):
            return [Rejected(images[0][0].id, str(refused))]
        if refused.image is not None and refused.image < len(images):
            entry, _ = images[refused.image]
            others = [*images[: refused.image], *images[refused.image + 1 :]]
            return [Rejected(entry.id, str(refused)), *await send(client, others)]
        if len(images) == 1 or refused.status not in _TOO_LARGE:
            raise
    half = len(images) // 2
    return [*await send(client, images[:half]), *await send(client, images[half:])]


def _body(images: Iterable[tuple[Entry, bytes]]) -> bytes:
    return orjson.dumps({"images": [_as_json(entry, data) for entry, data in images]})


def _as_json(entry: Entry, data: bytes) -> dict[str, Any]:
    image: dict[str, Any] = {"id": entry.id, "image": base64.b64encode(data).decode()}
    if entry.metadata is not None:
        image["metadata"] = orjson.Fragment(entry.metadata.encode())
    if entry.created is not None:
        image["created"] = entry.created
    return image
