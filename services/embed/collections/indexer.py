"""Indexing of a collection's images in the background, in the order in which they were added."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from services.core.errors import InternalError, Overloaded
from services.embed.call import ServedEmbed
from services.embed.collections.checkpoint_indexes import CheckpointIndexes, Step
from services.embed.collections.reader import ImageReader, Prepared, Read, Wanted

RETRY_S = 1.0


class Indexer:
    """Advances the indexes of one checkpoint."""

    def __init__(self, reader: ImageReader) -> None:
        self._reader = reader

    async def advance(self, served: ServedEmbed, indexes: CheckpointIndexes) -> bool:
        """Take one step; False if there is nothing to do. Raises what the batcher raises."""
        step = await asyncio.to_thread(indexes.next_step)
        if step is None:
            return False
        try:
            await self._take(served, indexes, step)
        except BaseException:
            await asyncio.to_thread(step.give_up)
            raise
        return True

    async def _take(self, served: ServedEmbed, indexes: CheckpointIndexes, step: Step) -> None:
        wanted = Wanted(step.rows, step.conditions, indexes.sources)
        in_pieces = self._reader.in_pieces(served.engine, wanted, keeps_states=indexes.keeps_states)
        began = time.perf_counter()
        async with aclosing(in_pieces) as some:
            async for prepared in some:
                await self._take_in(served, step, prepared)
                ended = time.perf_counter()
                if (from_states := prepared.from_states) is not None:
                    indexes.pace.note(len(prepared.items), ended - began, from_states=from_states)
                began = ended
        await asyncio.to_thread(step.finish)

    async def _take_in(self, served: ServedEmbed, step: Step, prepared: Prepared) -> None:
        reads: Sequence[Read]
        try:
            reads = await self._run(served, prepared)
        except InternalError:  # caused by one image: the others are still indexed
            reads = [read for one in prepared.one_by_one() for read in await self._run_or_leave_out(served, one)]
        await asyncio.to_thread(step.append, reads, through=prepared.through)

    async def _run(self, served: ServedEmbed, prepared: Prepared) -> list[Read]:
        """Run with lower priority than requests: if these fill the queue, indexing waits."""
        while True:
            try:
                return await self._reader.run(served, prepared)
            except Overloaded as error:
                if error.code != "queue_full":
                    raise
                await asyncio.sleep(error.retry_after_s or RETRY_S)

    async def _run_or_leave_out(self, served: ServedEmbed, prepared: Prepared) -> list[Read]:
        try:
            return await self._run(served, prepared)
        except InternalError:
            rows = [row for row, _ in prepared.items]
            structlog.get_logger(__name__).error("stored image left out of the indexes", rows=rows, exc_info=True)
            return []
