"""The job that embeds listed images locally into a folder of files."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.core.store.checkpoint_files import DESCRIPTION_FILE, digest_of
from services.embed.bulk.embedder import ModelChoice, Precision, devices
from services.embed.bulk.folder import BulkFolder, BulkPlan, StoredDtype, planned_shards
from services.embed.bulk.image_sources import Listing
from services.embed.bulk.loading import load_bulk_embedder
from services.embed.bulk.workers import ShardImages, Throughput, embed_on, embed_shards
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.progress import Bars


@dataclass(frozen=True)
class OutputRequest:
    """Output folder, checkpoint and devices of a bulk run; without devices, all GPUs or else the CPU.

    `checkpoint` is a folder or a name in the store, with or without `@` and an alias or a version.
    """

    directory: Path
    checkpoint: str
    conditions: Sequence[str] = ()
    store_url: str | None = None
    dtype: StoredDtype = "float32"
    precision: Precision | Literal["auto"] = "auto"
    shard_size: int = 4096
    batch_size: int = 32
    devices: Sequence[str] = ()
    num_threads: int | None = None
    overwrite: bool = False


def embed_into_files(request: OutputRequest, listing: Listing, bars: Bars) -> int:
    """Embed the images that are not yet embedded. Returns how many images of the whole job were skipped.

    Raises EmbeddingError, StoreError and OutputError.
    """
    source = find_checkpoint(request.checkpoint, request.store_url)
    device_names = list(request.devices) or devices()
    choice = ModelChoice(source.directory, request.conditions, _precision(request, device_names))
    # with several devices it only provides the embedding width, and shows errors before processes start
    embedder = load_bulk_embedder(choice, device_names[0] if len(device_names) == 1 else "cpu")
    folder = BulkFolder(request.directory, _plan(request, source, choice, embedder.width, listing))
    with folder.opened(overwrite=request.overwrite):
        size = request.shard_size
        shards = [ShardImages(i, listing.images[i * size : (i + 1) * size]) for i in folder.unfinished()]
        pace = Throughput(request.batch_size, request.num_threads or max(1, _num_cores() // len(device_names)))
        if shards:
            with bars.bar("Embedding", "images", total=len(listing.images), done=folder.num_embedded()) as bar:
                if len(device_names) == 1:
                    embed_shards(embedder, folder, shards, pace, bar.advance)
                else:
                    embed_on(device_names, choice, folder, shards, pace, bar.advance)
        num_skipped = folder.finish(listing.skipped)
    num_embedded = len(listing.images) - num_skipped + len(listing.skipped)
    bars.say(f"{num_embedded} images embedded, {num_skipped} skipped: {request.directory}")
    return num_skipped


def _plan(
    request: OutputRequest, source: CheckpointSource, choice: ModelChoice, width: int, listing: Listing
) -> BulkPlan:
    return BulkPlan(
        model=source.label,
        digest=_digest(source),
        conditions=list(request.conditions),
        width=width,
        precision=choice.precision,
        dtype=request.dtype,
        shard_size=request.shard_size,
        num_images=len(listing.images),
        shards=planned_shards(listing.images, request.shard_size),
    )


def _digest(source: CheckpointSource) -> str:
    """Take the digest of a version from the store, or compute a folder's from the digests of its files."""
    if source.manifest is not None:
        return source.manifest.digest
    sha256 = hashlib.sha256()
    for file in sorted(source.directory.iterdir()):
        if file.is_file() and file.name != DESCRIPTION_FILE:
            sha256.update(f"{file.name} {digest_of(file).sha256}\n".encode())
    return sha256.hexdigest()


def _precision(request: OutputRequest, device_names: Sequence[str]) -> Precision:
    """Resolve `auto` to the service's precision: bfloat16 on CUDA, float32 elsewhere."""
    if request.precision != "auto":
        return request.precision
    return "bfloat16" if all(device.startswith("cuda") for device in device_names) else "float32"


def _num_cores() -> int:
    """Count the cores that this process may use; in a container these may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
