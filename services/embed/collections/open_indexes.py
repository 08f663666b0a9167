"""The indexes of the served checkpoint, and for a while those of the previous one."""

import asyncio
import time
from collections.abc import Iterator

from services.embed.call import ServedEmbed
from services.embed.collections.checkpoint_indexes import CheckpointIndexes, OpenCheckpoint

# After this time no request that began under another checkpoint can still use its indexes.
RETIRE_AFTER_S = 120.0


class OpenIndexes:
    """Opens a checkpoint's indexes when it is first used."""

    def __init__(self, open_checkpoint: OpenCheckpoint) -> None:
        self._open_checkpoint = open_checkpoint
        self._open: dict[str, CheckpointIndexes] = {}
        self._retired: list[tuple[float, CheckpointIndexes]] = []
        self._opening = asyncio.Lock()

    def __iter__(self) -> Iterator[CheckpointIndexes]:
        return iter([*self._open.values(), *(indexes for _, indexes in self._retired)])

    @property
    def newest(self) -> CheckpointIndexes | None:
        """Indexes of the most recent checkpoint; None before the first."""
        return next(reversed(self._open.values()), None)

    async def of(self, served: ServedEmbed) -> CheckpointIndexes:
        async with self._opening:
            if served.digest not in self._open:
                self._open[served.digest] = await asyncio.to_thread(self._open_checkpoint, served)
            return self._open[served.digest]

    async def delete(self, row: int) -> None:
        """Remove an image from all indexes, including those that are just being opened."""
        async with self._opening:
            for indexes in self:
                await asyncio.to_thread(indexes.delete, row)

    async def retire_others(self, current: CheckpointIndexes) -> None:
        """Drop the indexes of other checkpoints once they can't be in use any more."""
        now = time.monotonic()
        for digest in [digest for digest in self._open if digest != current.digest]:
            self._retired.append((now, self._open.pop(digest)))
        for retired in [one for one in self._retired if now - one[0] > RETIRE_AFTER_S]:
            self._retired.remove(retired)
            await asyncio.to_thread(retired[1].close)
            await asyncio.to_thread(current.remove_files_of_others)

    async def close(self, *, is_saving: bool) -> None:
        """Close all; save them unless the collection's folder must not be written to any more."""
        for indexes in self:
            if is_saving:
                await asyncio.to_thread(indexes.save)
            await asyncio.to_thread(indexes.close)
        self._open.clear()
        self._retired.clear()
