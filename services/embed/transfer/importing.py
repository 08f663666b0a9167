"""The portable form added to a collection of a running service. What the collection has already is not sent again."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from itertools import pairwise
from typing import Any

from services.embed.bulk.batches import in_workers
from services.embed.bulk.collection_client import CollectionClient
from services.embed.transfer.adding import Rejected, batches, send
from services.embed.transfer.entries import (
    Entry,
    Total,
    TransferError,
    check_version,
    compared,
    listed_entry,
)
from services.embed.transfer.portable import MANIFEST, Description, Form, checked_bytes, read_manifest
from services.jobs.progress import Bar, Bars

NUM_WORKERS = 4


class Import:
    """One import of a form; `on_rejected` is told each image that the service does not take."""

    def __init__(
        self, client: CollectionClient, form: Form, bars: Bars, on_rejected: Callable[[Rejected], None]
    ) -> None:
        self._client = client
        self._form = form
        self._bars = bars
        self._on_rejected = on_rejected
        self._rejected: set[str] = set()
        self._num_added = 0
        self._total = Total()

    async def run(self, description: Description, model: str | None) -> dict[str, Any]:
        """Add all images, and make sure afterwards that they are there. Returns the numbers.

        Raises TransferError, Unavailable, Refused.
        """
        ordered = await asyncio.to_thread(_checked_order, self._form, description)
        num_images = len(ordered) if isinstance(ordered, list) else ordered
        asked = {"model": model or description.model, "created": description.created}
        pinned = [one.text for one in description.conditions if one.pinned]
        known = {key: value for key, value in asked.items() if value is not None}
        check_version(await self._client.put({**known, "conditions": pinned}))
        with self._bars.bar("Importing", "images", total=num_images) as bar:
            await self._add(ordered, bar)
        num_added, self._num_added, self._total = self._num_added, 0, Total()
        missing = [one async for one in self._lacking(ordered, None)]
        if missing:
            raise TransferError(f"{len(missing)} images, such as {missing[0].id!r}, are not there; run it again")
        return {
            "images": num_images,
            "added": num_added,
            "unchanged": num_images - num_added - len(self._rejected),
            "rejected": len(self._rejected),
            "digest": self._total.digest,
        }

    async def _add(self, ordered: list[Entry] | int, bar: Bar) -> None:
        async with aclosing(batches(self._lacking(ordered, bar))) as found:
            await in_workers(found, self._send, NUM_WORKERS)

    async def _lacking(self, ordered: list[Entry] | int, bar: Bar | None) -> AsyncIterator[Entry]:
        """Yield the images that the collection lacks; those that it has with other content are rejected."""
        async with aclosing(compared(self._entries(ordered), self._stored())) as pairs:
            async for one, other in pairs:
                if one is None or one.id in self._rejected:
                    continue
                if bar is not None:
                    bar.advance()
                if other is None:
                    yield one
                    continue
                digest = one.sha256 or await asyncio.to_thread(_digest, self._form, one)
                is_same = digest == other.sha256 and one.metadata in (None, other.metadata)
                if not is_same:
                    what = "content" if digest != other.sha256 else "metadata"
                    self._reject(Rejected(one.id, f"409: The image {one.id!r} exists with different {what}."))
                self._total.add(other)

    async def _entries(self, ordered: list[Entry] | int) -> AsyncIterator[Entry]:
        for entry in ordered if isinstance(ordered, list) else read_manifest(self._form):
            yield entry

    async def _stored(self) -> AsyncIterator[Entry]:
        async with aclosing(self._client.listed()) as listed:
            async for image in listed:
                yield listed_entry(image)

    async def _send(self, batch: list[Entry]) -> None:
        images = await asyncio.to_thread(lambda: [(entry, checked_bytes(self._form, entry)) for entry in batch])
        rejected = await send(self._client, images)
        for one in rejected:
            self._reject(one)
        self._num_added += len(batch) - len(rejected)

    def _reject(self, rejected: Rejected) -> None:
        self._rejected.add(rejected.id)
        self._on_rejected(rejected)


def _checked_order(form: Form, description: Description) -> list[Entry] | int:
    """Check every line before the first image is sent. Returns the number of lines if they are in order of their ids,
    otherwise all of them, sorted. Raises TransferError."""
    last, number, is_sorted = "", 0, True
    for line, entry in enumerate(read_manifest(form), 1):
        if not form.has(entry.file):
            raise TransferError(f"{form.label}/{MANIFEST}, line {line}, file: there is no {entry.file}")
        is_sorted = is_sorted and entry.id > last
        last = entry.id
        number += 1
    if description.images not in (None, number):
        raise TransferError(f"{form.label}/{MANIFEST} has {number} lines, not {description.images}: a part is missing")
    if is_sorted:
        return number
    entries = sorted(read_manifest(form), key=lambda entry: entry.id)
    for one, other in pairwise(entries):
        if one.id == other.id:
            raise TransferError(f"{form.label}/{MANIFEST} has two images {one.id!r}")
    return entries


def _digest(form: Form, entry: Entry) -> str:
    return hashlib.sha256(form.read(entry.file)).hexdigest()
