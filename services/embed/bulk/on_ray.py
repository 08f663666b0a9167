"""Embedding of listed images by workers on Ray, into the same files as without it.

Workers embed pieces of a shard and hand them back; this process alone writes, a shard once it has all of its pieces.
A worker that dies is replaced and its piece embedded again, so no image is lost or written twice, and what Ray begins
can be continued without it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from services.core.store.errors import StoreError
from services.embed.bulk.embedder import ModelChoice, load_bulk_embedder
from services.embed.bulk.folder import BulkFolder, EmbeddingError, Precision, Shard
from services.embed.bulk.ray_pool import Pool, mapped
from services.embed.bulk.workers import Report, ShardImages, Throughput, embedded, joined
from services.jobs.checkpoints import find_checkpoint

# Long enough that handing a piece over costs little beside embedding it, short enough to share the end of a job.
BATCHES_PER_PIECE = 8


@dataclass(frozen=True)
class SharedModel:
    """A checkpoint that every machine finds by itself: a folder at the same place on all, or a version in the store.

    `digest` is that of its content.
    """

    reference: str
    digest: str
    store_url: str | None
    conditions: Sequence[str]
    precision: Precision

    def find(self) -> ModelChoice:
        """Find it on another machine. Raises EmbeddingError for a folder with other content, and StoreError."""
        source = find_checkpoint(self.reference, self.store_url)
        if source.digest() != self.digest:
            raise EmbeddingError(f"{self.reference} differs between this machine and a worker's")
        return ModelChoice(source.directory, self.conditions, self.precision)


def embed_on_ray(
    model: SharedModel,
    folder: BulkFolder,
    shards: Sequence[ShardImages],
    pace: Throughput,
    pool: Pool,
    report: Report,
) -> None:
    """Embed and write the shards; `connected` must hold.

    Raises EmbeddingError if the model fails, StoreError if a worker lacks the checkpoint, RayError if Ray fails, and
    OSError if a shard can't be written.
    """
    pieces = [piece for shard in shards for piece in _everywhere(shard).cut(pace.batch_size * BATCHES_PER_PIECE)]
    num_missing = Counter(piece.index for piece in pieces)
    arrived: dict[int, dict[int, Shard]] = {}
    worker = partial(_worker, model, pool.device, pace)
    for number, part in mapped(pieces, worker, pool, refusals=(EmbeddingError, StoreError)):
        arrived.setdefault(part.index, {})[number] = part
        report(part.num_images)
        num_missing[part.index] -= 1
        if not num_missing[part.index]:
            parts = arrived.pop(part.index)
            folder.write(joined(part.index, [parts[number] for number in sorted(parts)]))


def _everywhere(shard: ShardImages) -> ShardImages:
    """Name its files so that processes with other working folders find them."""
    here = Path.cwd()
    images = [replace(one, file=here / one.file) if isinstance(one.file, Path) else one for one in shard.images]
    return ShardImages(shard.index, images)


def _worker(model: SharedModel, device: str, pace: Throughput) -> Callable[[ShardImages], Shard]:
    """Load the checkpoint in a worker. Raises EmbeddingError, StoreError."""
    embedder = load_bulk_embedder(model.find(), device)
    return lambda piece: joined(piece.index, list(embedded(embedder, piece.cut(pace.batch_size), pace)))
