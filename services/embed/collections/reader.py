"""Stored images under conditions: re-read from a kept state where there is one, else decoded and encoded."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import structlog

from services.core.batching import Submission
from services.core.errors import FoveaError
from services.core.images import ImageLimits, decode_image
from services.embed.embedder import Checkpoint
from services.embed.engine import Embeddings, EmbedEngine, ImageItem, ImageState, Item, StateItem, Text

# What one submission holds: large enough for full batches, small enough that requests find their turn between two.
PIECE_IMAGES = 64
PIECE_COST = 8192


@dataclass(frozen=True, eq=False)
class Source:
    """A stored image: its kept state, or its bytes where there is none."""

    row: int
    digest: str
    data: bytes | None = None
    state: ImageState | None = None


@dataclass(frozen=True, eq=False)
class Read:
    """An image under every condition asked for, (C, E), and its state where it was encoded for the first time."""

    row: int
    vectors: Embeddings
    state: ImageState | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """Images ready for a batch: what each row's items are, in order. Those that do not decode are left out;
    `through` is the last row, whether it decodes or not."""

    through: int
    items: Sequence[tuple[int, Sequence[Item]]]

    def one_by_one(self) -> "list[Prepared]":
        """Every image on its own."""
        return [Prepared(one[0], [one]) for one in self.items]


class ImageReader:
    """Reads images in pieces; decoding runs on `threads`, the model where the checkpoint's batcher runs."""

    def __init__(self, limits: ImageLimits, threads: Executor) -> None:
        self._limits = limits
        self._threads = threads

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def prepare(
        self, engine: EmbedEngine, sources: Sequence[Source], conditions: Sequence[Text | None], *, keeps_states: bool
    ) -> Prepared:
        """Decode what has no state. An image that does not decode is logged and left out."""
        decode = functools.partial(self._decode, engine, conditions=conditions, keeps_state=keeps_states)
        loop = asyncio.get_running_loop()
        decoded = await asyncio.gather(*[loop.run_in_executor(self._threads, decode, source) for source in sources])
        items = [(source.row, some) for source, some in zip(sources, decoded, strict=True) if some]
        return Prepared(sources[-1].row if sources else 0, items)

    async def run(self, checkpoint: Checkpoint, prepared: Prepared, *, deadline: float | None = None) -> list[Read]:
        """The images of `prepared`, in order. Raises Overloaded where the queue is full, DeadlineExceeded."""
        engine = checkpoint.engine
        items = [item for _, some in prepared.items for item in some]
        costs = [engine.cost(item) for item in items]
        if not items:
            return []
        answers = await checkpoint.batcher.submit(
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
        self, engine: EmbedEngine, sources: Sequence[Source], conditions: Sequence[Text | None], *, keeps_states: bool
    ) -> AsyncGenerator[Prepared]:
        """All `sources`, prepared for one submission after the other; the next is decoded while one is used."""

        def begin(piece: Sequence[Source]) -> asyncio.Task[Prepared]:
            return asyncio.create_task(self.prepare(engine, piece, conditions, keeps_states=keeps_states))

        first, *others = [*pieces(engine, sources, conditions), ()]
        coming = begin(first)
        try:
            for following in others:
                prepared = await coming
                coming = begin(following)
                yield prepared
        finally:
            coming.cancel()

    async def read(
        self,
        checkpoint: Checkpoint,
        sources: Sequence[Source],
        conditions: Sequence[Text | None],
        *,
        deadline: float | None = None,
    ) -> list[Read]:
        """All `sources`, piece by piece. Raises what `run` raises."""
        in_pieces = self.in_pieces(checkpoint.engine, sources, conditions, keeps_states=False)
        async with aclosing(in_pieces) as some:
            return [read async for prepared in some for read in await self.run(checkpoint, prepared, deadline=deadline)]

    def _decode(
        self, engine: EmbedEngine, source: Source, *, conditions: Sequence[Text | None], keeps_state: bool
    ) -> Sequence[Item]:
        if source.state is not None:
            return [StateItem(source.digest, source.state, tuple(conditions))]
        assert source.data is not None, "a source has a state or bytes"
        try:
            image = decode_image(source.data, self._limits)
        except FoveaError as error:  # it decoded when it was added, so the limits or the decoder have changed
            structlog.get_logger(__name__).warning("stored image left out", digest=source.digest, error=error.message)
            return []
        return engine.prepare_image(image, source.digest, conditions, keeps_state=keeps_state)


def pieces(engine: EmbedEngine, sources: Sequence[Source], conditions: Sequence[Text | None]) -> list[Sequence[Source]]:
    """Cut into submissions of at most PIECE_IMAGES images, and fewer where an image costs much."""
    no_pixels = np.empty((0, 0, 3), np.uint8)
    cost = engine.cost(ImageItem("", no_pixels, tuple(conditions)))
    size = max(1, min(PIECE_IMAGES, PIECE_COST // cost))
    return [sources[start : start + size] for start in range(0, len(sources), size)]
