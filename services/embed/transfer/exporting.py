"""A collection of a running service written in the portable form."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import orjson

from services.embed.bulk.batches import in_workers
from services.embed.bulk.collection_client import CollectionClient
from services.embed.transfer.adding import batches
from services.embed.transfer.entries import (
    Entry,
    Total,
    TransferError,
    check_version,
    listed_entry,
)
from services.embed.transfer.portable import FORMAT, TAR, manifest_line
from services.embed.transfer.writing import FolderWriter, TarWriter, Writer
from services.jobs.progress import Bar, Bars

NUM_WORKERS = 4
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
# Images that change while they are exported are looked for so often.
MAX_PASSES = 5


async def export(client: CollectionClient, name: str, path: Path, bars: Bars) -> dict[str, Any]:
    """Write a collection to a folder or, if its name ends so, a tar. Returns what was written.

    Each image that exists all the while is in it. Raises TransferError, Unavailable, Refused, OSError.
    """
    if any(path.name.endswith(ending) for ending in COMPRESSED):
        raise TransferError(f"{path}: an export is a folder or an uncompressed {TAR}")
    described = await client.describe()
    check_version(described)
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
        async with aclosing(batches(_listed(client, lines, writer, bar))) as found:
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
    found = await asyncio.gather(*(client.data(entry.id) for entry in batch))
    for entry, data in zip(batch, found, strict=True):
        if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
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
