"""The job that embeds listed images locally into a folder of files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from services.core.store.errors import StoreError
from services.embed.bulk.folder import (
    BulkFolder,
    BulkPlan,
    EmbeddingError,
    Precision,
    Shard,
    StoredDtype,
    planned_shards,
)
from services.embed.bulk.image_sources import Listing
from services.embed.bulk.ray_pool import Cluster, Pool, RayOptions, connected, mapped, num_cores
from services.embed.bulk.workers import (
    ModelChoice,
    ShardImages,
    Throughput,
    devices,
    embed_on,
    embed_shards,
    embedded,
    joined,
    load_bulk_embedder,
    write_parts,
)
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.progress import Bars

# Long enough that handing a piece over costs little beside embedding it, short enough to share the end of a job.
BATCHES_PER_PIECE = 8


def _everywhere(shard: ShardImages) -> ShardImages:
    """Name its files so that processes with other working folders find them."""
    here = Path.cwd()
    images = [replace(one, file=here / one.file) if isinstance(one.file, Path) else one for one in shard.images]
    return ShardImages(shard.index, images)


def _worker(
    choice: ModelChoice, reference: str, digest: str, store_url: str | None, device: str, pace: Throughput
) -> Callable[[ShardImages], Shard]:
    """Load the checkpoint on another machine, which finds it by its `reference`: a folder at the same place on all, or
    a version in the store. Raises EmbeddingError, also for a folder with other content, and StoreError."""
    source = find_checkpoint(reference, store_url)
    if source.digest() != digest:
        raise EmbeddingError(f"{reference} differs between this machine and a worker's")
    embedder = load_bulk_embedder(replace(choice, directory=source.directory), device)
    return lambda piece: joined(piece.index, list(embedded(embedder, piece.cut(pace.batch_size), pace)))


@dataclass(frozen=True)
class OutputRequest:
    """Output folder, checkpoint and devices of a bulk run; without devices, all GPUs or else the CPU.

    With `ray` workers on Ray embed the images; a device is then `cpu` or `cuda`.

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
    ray: RayOptions | None = None


def embed_into_files(request: OutputRequest, listing: Listing, bars: Bars) -> int:
    """Embed the images that are not yet embedded. Returns how many images of the whole job were skipped.

    Raises EmbeddingError, StoreError, OutputError and, with Ray, RayError.
    """
    source = find_checkpoint(request.checkpoint, request.store_url)
    if request.ray is None:
        return _embed(request, source, listing, bars, list(request.devices) or devices(), None)
    with connected(request.ray, num_threads=request.num_threads or 1) as cluster:
        uses_gpus = _uses_gpus(request.devices, cluster)
        pool = cluster.pool(request.ray, uses_gpus=uses_gpus, num_threads=request.num_threads)
        return _embed(request, source, listing, bars, [pool.device], pool)


def _embed(
    request: OutputRequest,
    source: CheckpointSource,
    listing: Listing,
    bars: Bars,
    device_names: Sequence[str],
    pool: Pool | None,
) -> int:
    choice = ModelChoice(source.directory, request.conditions, _precision(request, device_names))
    is_here = pool is None and len(device_names) == 1
    # elsewhere it only provides the embedding width, and shows errors before processes start
    embedder = load_bulk_embedder(choice, device_names[0] if is_here else "cpu")
    plan = BulkPlan(
        model=source.label,
        digest=source.digest(),
        conditions=list(request.conditions),
        width=embedder.width,
        precision=choice.precision,
        dtype=request.dtype,
        shard_size=request.shard_size,
        num_images=len(listing.images),
        shards=planned_shards(listing.images, request.shard_size),
    )
    folder = BulkFolder(request.directory, plan)
    with folder.opened(overwrite=request.overwrite):
        size = request.shard_size
        shards = [ShardImages(i, listing.images[i * size : (i + 1) * size]) for i in folder.unfinished()]
        num_threads = request.num_threads or max(1, num_cores() // len(device_names))
        pace = Throughput(request.batch_size, pool.num_cpus if pool else num_threads)
        if shards:
            with bars.bar("Embedding", "images", total=len(listing.images), done=folder.num_embedded()) as bar:
                if pool is not None:
                    num_images = pace.batch_size * BATCHES_PER_PIECE
                    pieces = [piece for shard in shards for piece in _everywhere(shard).cut(num_images)]
                    worker = partial(
                        _worker, choice, source.reference, plan.digest, request.store_url, pool.device, pace
                    )
                    results = mapped(pieces, worker, pool, refusals=(EmbeddingError, StoreError))
                    write_parts(folder, pieces, results, bar.advance)
                elif is_here:
                    embed_shards(embedder, folder, shards, pace, bar.advance)
                else:
                    embed_on(device_names, choice, folder, shards, pace, bar.advance)
        num_skipped = folder.finish(listing.skipped)
    num_embedded = len(listing.images) - num_skipped + len(listing.skipped)
    bars.say(f"{num_embedded} images embedded, {num_skipped} skipped: {request.directory}")
    return num_skipped


def _uses_gpus(device_names: Sequence[str], cluster: Cluster) -> bool:
    """Whether workers on Ray have a GPU each. Raises EmbeddingError for devices that only Ray can give out."""
    if not device_names:
        return cluster.num_gpus > 0
    if list(device_names) not in (["cpu"], ["cuda"]):
        raise EmbeddingError("with --ray a device is cpu or cuda: Ray gives each worker its GPU")
    return list(device_names) == ["cuda"]


def _precision(request: OutputRequest, device_names: Sequence[str]) -> Precision:
    """Resolve `auto` to the service's precision: bfloat16 on CUDA, float32 elsewhere."""
    if request.precision != "auto":
        return request.precision
    return "bfloat16" if all(device.startswith("cuda") for device in device_names) else "float32"
