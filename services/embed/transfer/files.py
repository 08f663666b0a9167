"""A collection of a running service written in the portable form, and added from it."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import orjson

from services.embed.bulk.collection_client import CollectionClient, in_batches, in_workers
from services.embed.bulk.image_sources import Skipped
from services.embed.transfer.entries import Entry, Total, TransferError, compared, fetched, listed, listed_entry
from services.embed.transfer.portable import (
    FORMAT,
    MANIFEST,
    TAR,
    Description,
    FolderWriter,
    Form,
    TarWriter,
    Writer,
    checked_bytes,
    manifest_line,
    read_manifest,
)
from services.jobs.progress import Bar, Bars

NUM_WORKERS = 4
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
# Images that change while they are exported are looked for so often.
MAX_PASSES = 5


async def export(client: CollectionClient, name: str, path: Path, bars: Bars) -> dict[str, Any]:
    """Write a collection to a folder or, if its name ends so, a tar. Returns what was written.

    Each image that exists all the while is in it. Raises TransferError, Unavailable, CallRefused, OSError.
    """
    if any(path.name.endswith(ending) for ending in COMPRESSED):
        raise TransferError(f"{path}: an export is a folder or an uncompressed {TAR}")
    described = await client.describe()
    origin = {"collection": name, "service": client.service}
    writer: Writer = TarWriter(path) if path.suffix == TAR else FolderWriter(path, origin)
    try:
        with tempfile.TemporaryFile() as lines:
            for _ in range(MAX_PASSES):
                missed = await _pass(client, writer, lines, bars, described["size"])
                if not missed:
                    break
            total = Total()
            for entry in _entries(lines, missed):
                total.add(entry)
            description = {
                "format": FORMAT,
                "name": name,
                "model": described["model"],
                "created": described["created"],
                "conditions": [
                    {"text": one["condition"], "pinned": one["pinned"]}
                    for one in described["conditions"]
                    if one["condition"] is not None
                ],
                "images": total.num_images,
            }
            named = (
                manifest_line(replace(entry, file=writer.names[entry.sha256])) for entry in _entries(lines, missed)
            )
            await asyncio.to_thread(writer.finish, named, description)
    finally:
        writer.close()
    return {"images": total.num_images, "bytes": total.num_bytes, "digest": total.digest, "path": str(path)}


async def _pass(client: CollectionClient, writer: Writer, lines: IO[bytes], bars: Bars, expected: int) -> set[str]:
    """Note all images, and write the bytes that are not there yet. Returns the ids that changed meanwhile."""
    missed: set[str] = set()
    lines.seek(0)
    lines.truncate()
    with bars.bar("Exporting", "images", total=expected) as bar:
        async with aclosing(in_batches(_listed(client, lines, writer, bar))) as found:
            await in_workers(found, lambda batch: _fetch(client, batch, writer, missed), NUM_WORKERS)
    return missed


async def _listed(client: CollectionClient, lines: IO[bytes], writer: Writer, bar: Bar) -> AsyncIterator[Entry]:
    """Yield the images whose bytes are to be fetched."""
    asked: set[str] = set()
    async for image in client.listed():
        entry = listed_entry(image)
        lines.write(manifest_line(entry))
        bar.advance()
        if entry.sha256 not in writer.names and entry.sha256 not in asked:
            asked.add(entry.sha256)
            yield entry


async def _fetch(client: CollectionClient, batch: list[Entry], writer: Writer, missed: set[str]) -> None:
    for entry, data in await fetched(client, batch):
        if data is None:
            missed.add(entry.id)
        else:
            # the loop waits, so that two never write to a tar at once
            writer.put(entry.sha256, data)


def _entries(lines: IO[bytes], missed: set[str]) -> Iterator[Entry]:
    lines.seek(0)
    for line in lines:
        entry = listed_entry(orjson.loads(line))
        if entry.id not in missed:
            yield entry


class Import:
    """One import of a form; `on_rejected` is told each image that the service does not take."""

    def __init__(
        self, client: CollectionClient, form: Form, bars: Bars, on_rejected: Callable[[Skipped], None]
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

        Raises TransferError, Unavailable, CallRefused.
        """
        ordered = await asyncio.to_thread(_checked_order, self._form, description)
        num_images = len(ordered) if isinstance(ordered, list) else ordered
        asked = {"model": model or description.model, "created": description.created}
        pinned = [one.text for one in description.conditions if one.pinned]
        known = {key: value for key, value in asked.items() if value is not None}
        await self._client.put({**known, "conditions": pinned})
        with self._bars.bar("Importing", "images", total=num_images) as bar:
            async with aclosing(in_batches(self._lacking(ordered, bar))) as found:
                await in_workers(found, self._send, NUM_WORKERS)
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

    async def _lacking(self, ordered: list[Entry] | int, bar: Bar | None) -> AsyncIterator[Entry]:
        """Yield the images that the collection lacks; those that it has with other content are rejected."""
        async with aclosing(compared(self._entries(ordered), listed(self._client))) as pairs:
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
                    self._reject(Skipped(one.id, f"409: The image {one.id!r} exists with different {what}."))
                self._total.add(other)

    async def _entries(self, ordered: list[Entry] | int) -> AsyncIterator[Entry]:
        for entry in ordered if isinstance(ordered, list) else read_manifest(self._form):
            yield entry

    async def _send(self, batch: list[Entry]) -> None:
        images = await asyncio.to_thread(lambda: [(entry, checked_bytes(self._form, entry)) for entry in batch])
        rejected = (await self._client.add([entry.as_json(data) for entry, data in images])).rejected
        for one in rejected:
            self._reject(one)
        self._num_added += len(batch) - len(rejected)

    def _reject(self, rejected: Skipped) -> None:
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
