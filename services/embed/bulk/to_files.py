"""The job that embeds listed images here, into a folder of files."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from services.core.store.checkpoint_files import DESCRIPTION_FILE, digest_of
from services.core.store.manifest import MANIFEST_FILE
from services.embed.bulk.embedder import BulkEmbedder, ModelChoice, Precision, devices
from services.embed.bulk.folder import BulkFolder, BulkPlan, StoredDtype, planned_shards
from services.embed.bulk.image_sources import Listing
from services.embed.bulk.progress import Bars
from services.embed.bulk.workers import Pace, ShardImages, embed_on, embed_shards
from services.embed.evaluation.loading import checkpoint_directory


@dataclass(frozen=True)
class OutputRequest:
    """Where the embeddings go, what makes them, and on what: no devices are all GPUs, or else the processor.

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
    """Embed what is not yet embedded. Returns how many images of the whole job were skipped.

    Raises EmbeddingError, StoreError and OutputError.
    """
    directory = checkpoint_directory(request.checkpoint, request.store_url)
    device_names = list(request.devices) or devices()
    choice = ModelChoice(directory, request.conditions, _precision(request, device_names))
    # with several devices it only says what each of them will find
    embedder = BulkEmbedder.load(choice, device_names[0] if len(device_names) == 1 else "cpu")
    folder = BulkFolder(request.directory, _plan(request, choice, embedder.width, listing))
    with folder.opened(overwrite=request.overwrite):
        size = request.shard_size
        shards = [ShardImages(i, listing.images[i * size : (i + 1) * size]) for i in folder.unfinished()]
        pace = Pace(request.batch_size, request.num_threads or max(1, _num_cores() // len(device_names)))
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


def _plan(request: OutputRequest, choice: ModelChoice, width: int, listing: Listing) -> BulkPlan:
    model, digest = _identity(request.checkpoint, choice.directory)
    return BulkPlan(
        model=model,
        digest=digest,
        conditions=list(request.conditions),
        width=width,
        precision=choice.precision,
        dtype=request.dtype,
        shard_size=request.shard_size,
        num_images=len(listing.images),
        shards=planned_shards(listing.images, request.shard_size),
    )


def _identity(reference: str, directory: Path) -> tuple[str, str]:
    """`name@version` and digest of a version of the store; of a folder its name and the digest of its files."""
    if not Path(reference).is_dir():
        manifest = orjson.loads((directory / MANIFEST_FILE).read_bytes())
        return f"{manifest['name']}@{manifest['version']}", manifest["digest"]
    sha256 = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if file.is_file() and file.name != DESCRIPTION_FILE:
            sha256.update(f"{file.name} {digest_of(file).sha256}\n".encode())
    return directory.resolve().name, sha256.hexdigest()


def _precision(request: OutputRequest, device_names: Sequence[str]) -> Precision:
    """`auto` is what the service runs: bfloat16 on CUDA, float32 elsewhere."""
    if request.precision != "auto":
        return request.precision
    return "bfloat16" if all(device.startswith("cuda") for device in device_names) else "float32"


def _num_cores() -> int:
    """Those that this process may use, which in a container are not all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
