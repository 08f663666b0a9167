"""The images of a collection without their bytes, and two collections compared by them.

Both are listed in ascending order of id, so that neither has to fit into memory.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from services.embed.bulk.collection_client import CollectionClient


class TransferError(Exception):
    """A command that can't go on; the message can be shown to users."""


@dataclass(frozen=True)
class Entry:
    """An image: `sha256` is the digest of its bytes, `metadata` canonical JSON, `created` Unix time in seconds.

    In an entry that a user wrote, what is empty or None is not specified. `file` is where its bytes are.
    """

    id: str
    sha256: str
    num_bytes: int
    metadata: str | None
    created: float | None
    file: str = ""

    def line(self) -> bytes:
        """Return what a digest of the collection is made of."""
        parts = [self.id, self.sha256, int(self.created or 0)]
        return f"{json.dumps(parts, separators=(',', ':'))} {self.metadata}\n".encode()

    def as_json(self, data: bytes) -> dict[str, Any]:
        """Describe the image to a service that is to add it."""
        image: dict[str, Any] = {"id": self.id, "image": base64.b64encode(data).decode()}
        if self.metadata is not None:
            image["metadata"] = orjson.Fragment(self.metadata.encode())
        if self.created is not None:
            image["created"] = self.created
        return image


class Total:
    """The number of images, the sum of their sizes, and a digest of all that is known of them."""

    def __init__(self) -> None:
        self.num_images = 0
        self.num_bytes = 0
        self._digest = hashlib.sha256()

    def add(self, entry: Entry) -> None:
        self.num_images += 1
        self.num_bytes += entry.num_bytes
        self._digest.update(entry.line())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def canonical(metadata: Any) -> str:
    """Write metadata independently of the order of its fields, as the service compares it."""
    return json.dumps(metadata, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def listed_entry(image: dict[str, Any]) -> Entry:
    """Read an entry of a service's listing."""
    return Entry(image["id"], image["sha256"], image["bytes"], canonical(image["metadata"]), image["created"])


async def listed(client: CollectionClient) -> AsyncIterator[Entry]:
    """Yield the entries of a collection, in order of their ids. Raises Unavailable, CallRefused."""
    async with aclosing(client.listed()) as images:
        async for image in images:
            yield listed_entry(image)


async def fetched(client: CollectionClient, batch: Sequence[Entry]) -> list[tuple[Entry, bytes | None]]:
    """Fetch the bytes of images, None for one that has changed since it was listed. Raises Unavailable, CallRefused."""
    found = await asyncio.gather(*(client.data(entry.id) for entry in batch))
    return [
        (entry, data if data is not None and hashlib.sha256(data).hexdigest() == entry.sha256 else None)
        for entry, data in zip(batch, found, strict=True)
    ]


async def compared(
    one: AsyncIterator[Entry], other: AsyncIterator[Entry]
) -> AsyncGenerator[tuple[Entry | None, Entry | None], None]:
    """Yield the entries of each id that either has, in order of the ids. Raises TransferError for another order."""
    first, second = await anext(one, None), await anext(other, None)
    while first is not None or second is not None:
        if second is None or (first is not None and first.id < second.id):
            yield first, None
            first = await _next(one, first)
        elif first is None or second.id < first.id:
            yield None, second
            second = await _next(other, second)
        else:
            yield first, second
            first, second = await _next(one, first), await _next(other, second)


async def _next(entries: AsyncIterator[Entry], last: Entry | None) -> Entry | None:
    found = await anext(entries, None)
    if found is not None and last is not None and found.id <= last.id:
        raise TransferError(f"{found.id!r} comes after {last.id!r}: the images are not in order of their ids")
    return found
