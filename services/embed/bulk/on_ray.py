"""Embedding of listed images by workers on Ray, into the same files as without it.

Workers embed pieces of a shard and hand them back; this process alone writes, a shard once it has all of its pieces.
A worker that dies is replaced and its piece embedded again, so no image is lost or written twice, and what Ray begins
can be continued without it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from services.core.store.errors import StoreError
from services.embed.bulk.embedder import ModelChoice, Precision, load_bulk_embedder
from services.embed.bulk.folder import BulkFolder, EmbeddingError, Shard
from services.embed.bulk.workers import Report, ShardImages, Throughput, embedded, joined
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.ray.cluster import Pool
from services.jobs.ray.pool import Work, mapped

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

    @classmethod
    def of(cls, source: CheckpointSource, digest: str, store_url: str | None, choice: ModelChoice) -> Self:
        """Describe to other machines what this one has found."""
        return cls(source.reference, digest, store_url, choice.conditions, choice.precision)

    def find(self) -> ModelChoice:
        """Find it on another machine. Raises EmbeddingError for a folder with other content, and StoreError."""
        source = find_checkpoint(self.reference, self.store_url)
        if source.digest() != self.digest:
            raise EmbeddingError(f"{self.reference} differs between this machine and a worker's")
        return ModelChoice(source.directory, self.conditions, self.precision)


@dataclass(frozen=True)
class _Piece:
    """A run of a shard's images, and its number within the shard."""

    number: int
    images: ShardImages

    def __str__(self) -> str:
        images = self.images.images
        return f"the images {images[0].id} to {images[-1].id}"


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
    size = pace.batch_size * BATCHES_PER_PIECE
    pieces = [_Piece(number, images) for shard in shards for number, images in enumerate(_everywhere(shard).cut(size))]
    num_missing = Counter(piece.images.index for piece in pieces)
    arrived: dict[int, dict[int, Shard]] = {}
    work = Work(_worker, (model, pool.device, pace), refusals=(EmbeddingError, StoreError))
    for number, part in mapped(pieces, work, pool):
        arrived.setdefault(part.index, {})[number] = part
        report(part.num_images)
        num_missing[part.index] -= 1
        if not num_missing[part.index]:
            parts = arrived.pop(part.index)
            folder.write(joined(part.index, [parts[number] for number in sorted(parts)]))


def _everywhere(shard: ShardImages) -> ShardImages:
    """Name its files so that processes with other working folders find them."""
    here = Path.cwd()
    return ShardImages(
        shard.index,
        [replace(one, file=here / one.file) if isinstance(one.file, Path) else one for one in shard.images],
    )


def _worker(model: SharedModel, device: str, pace: Throughput) -> Callable[[_Piece], tuple[int, Shard]]:
    """Load the checkpoint in a worker. Raises EmbeddingError, StoreError."""
    embedder = load_bulk_embedder(model.find(), device)

    def embed(piece: _Piece) -> tuple[int, Shard]:
        batches = embedded(embedder, piece.images.cut(pace.batch_size), pace)
        return piece.number, joined(piece.images.index, list(batches))

    return embed
