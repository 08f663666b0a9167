"""Processing of listed images into written shards: all cores decode, and each GPU has its own process.

On a CPU each thread processes a whole batch, from files to embeddings, on one core: this was measured to be faster than
decoding threads and a forward pass on all cores. On a GPU the threads decode, and forward passes run one at a time.

Shapes: B images of a batch, C conditions (1 if there are none), E embedding width.
"""

import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from services.core.errors import FoveaError
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.core.logs import log_warnings_to_stderr
from services.embed.bulk.folder import Array, BulkFolder, EmbeddingError, Precision, Shard
from services.embed.bulk.image_sources import ListedImage, Skipped, Unreadable, read_image, read_metadata
from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import MAX_READOUTS_AT_ONCE, FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.plain_engine import PlainEngine
from services.jobs.interruption import ignore_interrupts
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text

Pixels = NDArray[np.uint8]
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class ModelChoice:
    """A checkpoint folder, the conditions to embed under, and the dtype of the forward pass."""

    directory: Path
    conditions: Sequence[str]
    precision: Precision


class BulkEmbedder:
    """A checkpoint on a device, exclusively owned, and its conditions. Safe to call from several threads."""

    def __init__(self, engine: ImageEngine[Any], conditions: Sequence[str], device: torch.device) -> None:
        """Raises EmbeddingError for a condition that the checkpoint can't follow."""
        self.device = device
        self._engine = engine
        self._conditions = [_prepared(engine, text) for text in conditions] or [None]
        # CLIP's passes share nothing; those of transformers' models may
        self._passing = nullcontext() if isinstance(engine, FocalLensEngine | PlainEngine) else Lock()

    @property
    def width(self) -> int:
        """E."""
        return self._engine.embedding_width

    @property
    def num_conditions(self) -> int:
        """C."""
        return len(self._conditions)

    def prepare(self, data: bytes) -> Pixels:
        """Decode a file → (height, width, 3) uint8. Raises FoveaError if it is not an image within the limits."""
        return self._engine.transform(decode_image(data, ImageLimits(), side=self._engine.image_side))

    def embed(self, pixels: Sequence[Pixels]) -> Array:
        """Embed B images → (B, C, E) float32, L2-normalised. Raises EmbeddingError if a number is not finite."""
        # each readout takes memory of its own, so images under many conditions are processed in smaller batches
        step = max(1, MAX_READOUTS_AT_ONCE // self.num_conditions)
        try:
            parts = [self._embed(pixels[start : start + step]) for start in range(0, len(pixels), step)]
        except torch.OutOfMemoryError:
            raise EmbeddingError(f"{len(pixels)} images do not fit into memory: try a smaller --batch-size") from None
        except BrokenModel as error:
            raise EmbeddingError(f"{error}: try --precision float32") from None
        except FoveaError as error:
            raise EmbeddingError(error.message) from None
        rows = np.concatenate([np.zeros((0, self.width), np.float32), *parts])
        return rows.reshape(len(pixels), self.num_conditions, self.width)

    def _embed(self, pixels: Sequence[Pixels]) -> Array:
        engine = self._engine
        prepared = [engine.prepare_pixels(one, str(place), self._conditions) for place, one in enumerate(pixels)]
        batch = engine.collate([item for items in prepared for item in items])
        with self._passing:
            return np.concatenate([reading.rows for reading in engine.run_collated(batch)])


def devices() -> list[str]:
    """Return the default devices: every GPU, or else the CPU."""
    if torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["mps" if torch.backends.mps.is_available() else "cpu"]


def load_bulk_embedder(choice: ModelChoice, device: str) -> BulkEmbedder:
    """Load a checkpoint. Raises EmbeddingError for a folder that is not a checkpoint, a device that this machine lacks,
    and conditions that the checkpoint can't follow."""
    try:
        dtype: torch.dtype = getattr(torch, choice.precision)
        place = torch.device(device)
        kind = engine_of(choice.directory)
        engine = kind(kind.read(choice.directory, place, dtype), place, dtype)
        return BulkEmbedder(engine, choice.conditions, place)
    except FoveaError as error:
        raise EmbeddingError(f"{choice.directory}: {error.message}") from error
    except (OSError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise EmbeddingError(f"{choice.directory}: {error}") from error


def _prepared(engine: ImageEngine[Any], condition: str) -> Text | None:
    try:
        return engine.prepare_condition(condition)
    except FoveaError as error:
        raise EmbeddingError(f"the condition {condition[:50]!r}: {error.message}") from None


NOT_EMBEDDED = np.empty(0, np.float32)
# Called with the number of images that are done, including skipped ones.
Report = Callable[[int], None]


@dataclass(frozen=True)
class Throughput:
    """Images per forward pass, and number of decoding threads (on a CPU they do everything)."""

    batch_size: int
    num_threads: int


@dataclass(frozen=True)
class ShardImages:
    """Listed images of a shard of the output: all of them, or a run."""

    index: int
    images: Sequence[ListedImage]

    def __str__(self) -> str:
        return f"the images {self.images[0].id} to {self.images[-1].id}"

    def cut(self, num_images: int) -> Iterator["ShardImages"]:
        """Cut into runs of at most this many images."""
        for start in range(0, len(self.images), num_images):
            yield ShardImages(self.index, self.images[start : start + num_images])


def embed_shards(
    embedder: BulkEmbedder, folder: BulkFolder, shards: Iterable[ShardImages], pace: Throughput, report: Report
) -> None:
    """Embed and write shards in order. Raises EmbeddingError if the model fails, OSError if one can't be written."""
    batches = [batch for shard in shards for batch in shard.cut(pace.batch_size)]
    write_parts(folder, batches, enumerate(embedded(embedder, batches, pace)), report)


def write_parts(
    folder: BulkFolder, parts: Sequence[ShardImages], results: Iterable[tuple[int, Shard]], report: Report
) -> None:
    """Write each shard once all its parts have results, which come with their places, in any order."""
    num_missing = Counter(part.index for part in parts)
    arrived: dict[int, dict[int, Shard]] = {}
    for place, result in results:
        arrived.setdefault(result.index, {})[place] = result
        report(result.num_images)
        num_missing[result.index] -= 1
        if not num_missing[result.index]:
            found = arrived.pop(result.index)
            folder.write(joined(result.index, [found[place] for place in sorted(found)]))


def embedded(embedder: BulkEmbedder, batches: Iterable[ShardImages], pace: Throughput) -> Iterator[Shard]:
    """Yield the results of each batch, in order; the next ones are read meanwhile.

    Raises EmbeddingError if the model fails.
    """
    is_cpu = embedder.device.type == "cpu"

    def work(listed: ShardImages) -> tuple[Shard, list[Pixels]]:
        read, pixels = _read_batch(embedder, listed)
        return (replace(read, embeddings=embedder.embed(pixels)), []) if is_cpu else (read, pixels)

    # the tensor operations of each thread use one core
    pool = ThreadPoolExecutor(pace.num_threads, "bulk", initializer=torch.set_num_threads, initargs=(1,))
    try:
        for shard, pixels in _in_order(pool, work, batches, ahead=pace.num_threads + 1):
            yield shard if is_cpu else replace(shard, embeddings=embedder.embed(pixels))
    finally:
        pool.shutdown(cancel_futures=True)


def joined(index: int, parts: Sequence[Shard]) -> Shard:
    """Join the results of consecutive runs of a shard's images."""
    return Shard(
        index,
        np.concatenate([part.embeddings for part in parts]),
        [record for part in parts for record in part.records],
        [skipped for part in parts for skipped in part.skipped],
    )


def embed_on(
    device_names: Sequence[str],
    choice: ModelChoice,
    folder: BulkFolder,
    shards: Sequence[ShardImages],
    pace: Throughput,
    report: Report,
) -> None:
    """Run `embed_shards` in one process per device; shards are distributed round-robin.

    Raises EmbeddingError if one process fails; the others are then terminated, and written shards remain.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    try:
        for place, device in enumerate(device_names):
            ours, theirs = context.Pipe(duplex=False)
            job = (device, choice, folder, shards[place :: len(device_names)], pace)
            process: BaseProcess = context.Process(target=_run_worker, args=(job, theirs), name=device)
            process.start()
            theirs.close()  # so that `ours` reaches its end when the process exits
            workers[ours] = process
        _listen(workers, report)
    finally:
        for process in workers.values():
            process.terminate()
            process.join()


def _run_worker(
    job: tuple[str, ModelChoice, BulkFolder, Sequence[ShardImages], Throughput], connection: Connection
) -> None:
    device, choice, folder, shards, pace = job
    ignore_interrupts()
    log_warnings_to_stderr()
    try:
        embedder = load_bulk_embedder(choice, device)
        embed_shards(embedder, folder, shards, pace, connection.send)
    except (EmbeddingError, OSError) as error:
        with suppress(OSError):  # the parent has stopped listening because of an error
            connection.send(f"{device}: {error}")


def _listen(workers: dict[Connection, BaseProcess], report: Report) -> None:
    """Report until every worker has ended. Raises EmbeddingError as soon as one fails."""
    listening = set(workers)
    while listening:
        for connection in wait(list(listening)):
            assert isinstance(connection, Connection)
            try:
                message = connection.recv()
            except EOFError:
                listening.remove(connection)
                worker = workers[connection]
                worker.join()
                if worker.exitcode:
                    raise EmbeddingError(f"the process on {worker.name} ended with status {worker.exitcode}") from None
                continue
            if isinstance(message, str):
                raise EmbeddingError(message)
            report(message)


def _read_batch(embedder: BulkEmbedder, listed: ShardImages) -> tuple[Shard, list[Pixels]]:
    """Read images; return their records, without embeddings yet, and the pixels of each."""
    records: list[dict[str, Any]] = []
    pixels: list[Pixels] = []
    skipped: list[Skipped] = []
    max_bytes = ImageLimits().max_image_bytes
    for image in listed.images:
        try:
            metadata = read_metadata(image)
            pixels.append(embedder.prepare(read_image(image, max_bytes)))
        except Unreadable as error:
            skipped.append(Skipped(image.id, str(error)))
        except FoveaError as error:
            skipped.append(Skipped(image.id, error.message))
        else:
            records.append({"id": image.id, "metadata": metadata})
    return Shard(listed.index, NOT_EMBEDDED, records, skipped), pixels


def _in_order(pool: ThreadPoolExecutor, work: Callable[[S], T], items: Iterable[S], ahead: int) -> Iterator[T]:
    """Yield the results in the order of the items, with at most `ahead` items submitted in advance."""
    waiting: deque[Future[T]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
