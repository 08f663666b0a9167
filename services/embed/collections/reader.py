"""Reading of stored images under conditions: from a kept state if there is one, else by decoding and encoding.

Pixels that were decoded when an image was added are kept until it is indexed, so that it is decoded only once.
"""

import asyncio
import functools
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import structlog

from services.core.batching.batcher import Submission
from services.core.errors import FoveaError
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.embed.call import EmbedModel, ServedEmbed
from services.embed.model.items import Embeddings, ImageItem, ImageState, Item, Pixels, StateItem
from services.nn.clip_texts import Text

# Size of one submission: large enough for full batches, small enough that requests can be served in between.
PIECE_IMAGES = 64
PIECE_COST = 8192


@dataclass(frozen=True, eq=False)
class Source:
    """A stored image: its kept state, its pixels if it was decoded recently, or its bytes."""

    row: int
    digest: str
    state: ImageState | None = None
    pixels: Pixels | None = None
    data: bytes | None = None


class FreshPixels:
    """A cache of at most `max_bytes` that drops the oldest pixels first. Thread-safe.

    Pixels transformed for one checkpoint are useless to another, so the key consists of both digests.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._pixels: OrderedDict[tuple[str, str], Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, checkpoint: str, image: str, pixels: Pixels) -> None:
        with self._lock:
            self._forget((checkpoint, image))
            self._pixels[checkpoint, image] = pixels
            self._num_bytes += pixels.nbytes
            while self._num_bytes > self._max_bytes:
                self._forget(next(iter(self._pixels)))

    def take(self, checkpoint: str, image: str) -> Pixels | None:
        """Remove and return the pixels."""
        with self._lock:
            return self._forget((checkpoint, image))

    def _forget(self, key: tuple[str, str]) -> Pixels | None:
        pixels = self._pixels.pop(key, None)
        if pixels is not None:
            self._num_bytes -= pixels.nbytes
        return pixels


@dataclass(frozen=True, eq=False)
class Wanted:
    """Images to be read under conditions; `sources`, which may block, returns those of given rows that still exist."""

    rows: Sequence[int]
    conditions: Sequence[Text | None]
    sources: Callable[[Sequence[int]], Sequence[Source]]


@dataclass(frozen=True, eq=False)
class Read:
    """An image under each requested condition, (C, E), and its state if it was encoded for the first time."""

    row: int
    vectors: Embeddings
    state: ImageState | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """Images ready for a batch: the items of each row, in order. Images that do not decode are left out; `through` is
    the last row, whether it decodes or not."""

    through: int
    items: Sequence[tuple[int, Sequence[Item]]]

    def one_by_one(self) -> "list[Prepared]":
        """Split into one for each image."""
        return [Prepared(one[0], [one]) for one in self.items]

    @property
    def from_states(self) -> bool | None:
        """Whether all images are read from states; None if only some are."""
        kinds = {isinstance(some[0], StateItem) for _, some in self.items}
        return kinds.pop() if len(kinds) == 1 else None


class ImageReader:
    """Reads images in pieces; decoding runs on `threads`, the model in the checkpoint's batcher."""

    def __init__(self, limits: ImageLimits, threads: Executor) -> None:
        self._limits = limits
        self._threads = threads

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def prepare(
        self, engine: EmbedModel, sources: Sequence[Source], conditions: Sequence[Text | None], *, keeps_states: bool
    ) -> list[tuple[int, Sequence[Item]]]:
        """Prepare each row's items; decode images without state or pixels, and leave out those that do not decode."""
        decode = functools.partial(self._decode, engine)
        encoded = [source for source in sources if source.data is not None]
        loop = asyncio.get_running_loop()
        decoded = await asyncio.gather(*[loop.run_in_executor(self._threads, decode, source) for source in encoded])
        pixels = {source.row: source.pixels for source in sources}
        pixels |= {source.row: some for source, some in zip(encoded, decoded, strict=True)}

        def items_of(source: Source) -> Sequence[Item]:
            if source.state is not None:
                return [StateItem(source.digest, source.state, tuple(conditions))]
            own = pixels[source.row]
            if own is None:
                return []
            return engine.prepare_pixels(own, source.digest, conditions, keeps_state=keeps_states)

        return [(source.row, items) for source in sources if (items := items_of(source))]

    async def run(self, served: ServedEmbed, prepared: Prepared, *, deadline: float | None = None) -> list[Read]:
        """Read the images of `prepared`, in order. Raises Overloaded if the queue is full, DeadlineExceeded."""
        engine = served.engine
        items = [item for _, some in prepared.items for item in some]
        costs = [engine.cost(item) for item in items]
        if not items:
            return []
        answers = await served.batcher.submit(
            [Submission(item, cost, cost) for item, cost in zip(items, costs, strict=True)], deadline=deadline
        )
        readings = (answer.result for answer in answers)
        reads = []
        for row, some in prepared.items:
            own = [next(readings) for _ in some]
            vectors = own[0].rows if len(own) == 1 else np.concatenate([reading.rows for reading in own])
            reads.append(Read(row, vectors, own[0].state))
        return reads

    async def in_pieces(
        self, engine: EmbedModel, wanted: Wanted, *, keeps_states: bool = False
    ) -> AsyncGenerator[Prepared]:
        """Prepare one submission after the other; the next is prepared while one is in use."""

        async def prepare(rows: Sequence[int]) -> Prepared:
            sources = await asyncio.to_thread(wanted.sources, rows)
            items = await self.prepare(engine, sources, wanted.conditions, keeps_states=keeps_states)
            return Prepared(rows[-1] if rows else 0, items)

        first, *others = [*pieces(engine, wanted), ()]
        coming = asyncio.create_task(prepare(first))
        try:
            for following in others:
                prepared = await coming
                coming = asyncio.create_task(prepare(following))
                yield prepared
        finally:
            coming.cancel()

    async def read(self, served: ServedEmbed, wanted: Wanted, *, deadline: float | None = None) -> list[Read]:
        """Read everything in `wanted`, piece by piece. Raises what `run` raises."""
        async with aclosing(self.in_pieces(served.engine, wanted)) as some:
            return [read async for prepared in some for read in await self.run(served, prepared, deadline=deadline)]

    def _decode(self, engine: EmbedModel, source: Source) -> Pixels | None:
        assert source.data is not None, "there are bytes to decode"
        try:
            return engine.transform(decode_image(source.data, self._limits, side=engine.image_side))
        except FoveaError as error:  # it decoded when it was added, so the limits or the decoder have changed
            structlog.get_logger(__name__).warning("image left out", digest=source.digest, error=error.message)
            return None


def pieces(engine: EmbedModel, wanted: Wanted) -> list[Sequence[int]]:
    """Split rows into submissions: at most PIECE_IMAGES each, and fewer if an image costs much."""
    no_pixels = np.empty((0, 0, 3), np.uint8)
    cost = engine.cost(ImageItem("", no_pixels, tuple(wanted.conditions)))
    size = max(1, min(PIECE_IMAGES, PIECE_COST // cost))
    return [wanted.rows[start : start + size] for start in range(0, len(wanted.rows), size)]
