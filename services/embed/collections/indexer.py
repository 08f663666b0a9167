"""Feeds a collection's indexes from its images, in the background and in the order in which they were added.

Every index remembers how far it has come, so there is no list of work that could be lost: what is missing is always
the live images behind that point. Indexes that have come to the same image are fed by one pass over it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import structlog

from services.core.errors import InternalError, Overloaded
from services.embed.collections.checkpoint_indexes import CheckpointIndexes, ConditionIndex
from services.embed.collections.reader import ImageReader, Prepared, Read, Wanted
from services.embed.collections.storage.image_store import ImageStore
from services.embed.service import ServedEmbed
from services.nn.clip_texts import Text

# Rows that one step takes; between two steps another checkpoint may take over.
STEP_ROWS = 512
RETRY_S = 1.0


@dataclass(frozen=True, eq=False)
class Step:
    """Images that the indexes of `group` lack, ascending; afterwards these have come to `through`."""

    rows: Sequence[int]
    group: Sequence[ConditionIndex]
    through: int

    @property
    def conditions(self) -> list[Text | None]:
        return [index.text for index in self.group]


class Indexer:
    """Brings the indexes of one checkpoint forward.

    `last_row` tells the newest image, `is_deleted` whether an image is gone by now.
    """

    def __init__(
        self, store: ImageStore, reader: ImageReader, *, last_row: Callable[[], int], is_deleted: Callable[[int], bool]
    ) -> None:
        self._store = store
        self._reader = reader
        self._last_row = last_row
        self._is_deleted = is_deleted

    async def advance(self, served: ServedEmbed, indexes: CheckpointIndexes) -> bool:
        """Take one step; False where every index has every image. Raises what the batcher raises."""
        step = await asyncio.to_thread(self._next_step, indexes)
        if step is None:
            return False
        wanted = Wanted(step.rows, step.conditions, indexes.sources)
        in_pieces = self._reader.in_pieces(served.engine, wanted, keeps_states=indexes.keeps_states)
        began = time.perf_counter()
        async with aclosing(in_pieces) as some:
            async for prepared in some:
                await self._take_in(served, indexes, step, prepared)
                ended = time.perf_counter()
                if (from_states := prepared.from_states) is not None:
                    indexes.pace.note(len(prepared.items), ended - began, from_states=from_states)
                began = ended
        # behind the last image there may be deleted ones to pass
        await self._append(indexes, step, [], through=step.through)
        return True

    async def rebuild(self, indexes: CheckpointIndexes) -> None:
        """Rebuild the indexes that have grown or shrunk too far; searches go on meanwhile."""
        for index in indexes:
            if index.vectors.needs_rebuild:
                await asyncio.to_thread(index.vectors.rebuild)
                index.saved_through = 0

    def _next_step(self, indexes: CheckpointIndexes) -> Step | None:
        """Return the images that the indexes furthest behind lack, up to the point that the next ones have come to."""
        last = self._last_row()
        start = min((index.vectors.through for index in indexes), default=last)
        if start >= last:
            return None
        group = [index for index in indexes if index.vectors.through == start]
        end = min((index.vectors.through for index in indexes if index.vectors.through > start), default=last)
        rows = self._store.rows(after=start, limit=STEP_ROWS)
        if len(rows) == STEP_ROWS:
            end = min(end, int(rows[-1]))
        return Step(rows[rows <= end].tolist(), group, end)

    async def _take_in(self, served: ServedEmbed, indexes: CheckpointIndexes, step: Step, prepared: Prepared) -> None:
        try:
            reads = await self._run(served, prepared)
        except InternalError:  # one image's fault: the others shall not be left out with it
            reads = [read for one in prepared.one_by_one() for read in await self._run_or_leave_out(served, one)]
        await self._append(indexes, step, reads, through=prepared.through)
        for read in reads:  # one that was deleted while it was read has come back with the others
            if self._is_deleted(read.row):
                indexes.delete(read.row)

    async def _append(self, indexes: CheckpointIndexes, step: Step, reads: Sequence[Read], *, through: int) -> None:
        def append() -> None:
            new = {read.row: read.state for read in reads if read.state is not None}
            if new and indexes.states is not None:
                indexes.states.put(list(new), list(new.values()))
            rows = np.array([read.row for read in reads], dtype=np.int64)
            for place, index in enumerate(step.group):
                vectors = [read.vectors[place] for read in reads]
                shape = (len(reads), index.vectors.width)
                index.vectors.append(rows, np.array(vectors, dtype=np.float32).reshape(shape), through=through)

        await asyncio.to_thread(append)

    async def _run(self, served: ServedEmbed, prepared: Prepared) -> list[Read]:
        """Requests come first: where they fill the queue, the background waits."""
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
