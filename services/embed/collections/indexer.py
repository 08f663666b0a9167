"""Indexing of a collection's images in the background, in the order in which they were added.

Every index stores the last row that it has processed, so there is no work queue that could be lost: the images that it
lacks are always the live ones after that row. Indexes at the same row are filled by one pass over the images.
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

# Rows per step; another checkpoint can take over between two steps.
STEP_ROWS = 512
RETRY_S = 1.0


@dataclass(frozen=True, eq=False)
class Step:
    """Images that the indexes of `group` lack, ascending; `through` is the row that these have processed afterwards."""

    rows: Sequence[int]
    group: Sequence[ConditionIndex]
    through: int

    @property
    def conditions(self) -> list[Text | None]:
        return [index.text for index in self.group]


class Indexer:
    """Advances the indexes of one checkpoint.

    `last_row` returns the newest image's row, `is_deleted` whether an image has been deleted.
    """

    def __init__(
        self, store: ImageStore, reader: ImageReader, *, last_row: Callable[[], int], is_deleted: Callable[[int], bool]
    ) -> None:
        self._store = store
        self._reader = reader
        self._last_row = last_row
        self._is_deleted = is_deleted

    async def advance(self, served: ServedEmbed, indexes: CheckpointIndexes) -> bool:
        """Take one step; False if every index has every image. Raises what the batcher raises."""
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
        # rows of deleted images may follow the last image
        await self._append(indexes, step, [], through=step.through)
        return True

    async def rebuild(self, indexes: CheckpointIndexes) -> None:
        """Rebuild the indexes that have grown or shrunk too much; searches continue meanwhile."""
        for index in indexes:
            if index.vectors.needs_rebuild:
                await asyncio.to_thread(index.vectors.rebuild)
                index.saved_through = 0

    def _next_step(self, indexes: CheckpointIndexes) -> Step | None:
        """Return the images that the indexes furthest behind lack, up to the row that the next ones have reached."""
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
        except InternalError:  # caused by one image: the others are still indexed
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
