"""Several streams read as one, in the order in which things come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleaved(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """What all streams yield, each with the place of its stream, until all have ended.

    Raises what the first of them raises. All are closed however it ends.
    """
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        if len(streams) == 1:
            async for item in streams[0]:
                yield 0, item
            return
        async with aclosing(_as_they_come(streams)) as items:
            async for place, item in items:
                yield place, item


async def _as_they_come(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    coming = {asyncio.create_task(_next(stream)): place for place, stream in enumerate(streams)}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=coming.__getitem__):
                items = task.result()
                place = coming.pop(task)
                if items:
                    coming[asyncio.create_task(_next(streams[place]))] = place
                    yield place, items[0]
    finally:
        for task in coming:
            task.cancel()
        # a stream is closed only once nobody reads it
        await asyncio.gather(*coming, return_exceptions=True)


async def _next(stream: AsyncGenerator[T, None]) -> list[T]:
    """The next item alone; empty after the last."""
    try:
        return [await anext(stream)]
    except StopAsyncIteration:
        return []
