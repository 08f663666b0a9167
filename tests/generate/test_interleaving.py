"""Several streams read as one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from services.generate.service import interleaved


class Streams:
    """Streams that yield what they are handed, and tell which of them were closed."""

    def __init__(self, count: int) -> None:
        self.queues: list[asyncio.Queue[int | Exception | None]] = [asyncio.Queue() for _ in range(count)]
        self.readings: asyncio.Queue[None] = asyncio.Queue()
        self.closed: set[int] = set()

    def all(self) -> list[AsyncGenerator[int, None]]:
        return [self._stream(place) for place in range(len(self.queues))]

    async def are_read(self, count: int) -> None:
        """Return when this number of them have a reader."""
        for _ in range(count):
            await self.readings.get()

    async def _stream(self, place: int) -> AsyncGenerator[int, None]:
        self.readings.put_nowait(None)
        try:
            while (item := await self.queues[place].get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed.add(place)


async def test_items_come_in_the_order_in_which_they_were_made() -> None:
    streams = Streams(3)
    for place in range(3):
        streams.queues[place].put_nowait(10 * place)
    received = []
    async with aclosing(interleaved(streams.all())) as items:
        async for place, item in items:
            received.append((place, item))
            if len(received) == 3:
                streams.queues[2].put_nowait(21)
            elif item == 21:
                streams.queues[0].put_nowait(1)
            elif item == 1:
                for queue in streams.queues:
                    queue.put_nowait(None)
    assert received == [(0, 0), (1, 10), (2, 20), (2, 21), (0, 1)]
    assert streams.closed == {0, 1, 2}


async def test_one_stream_that_ends_does_not_end_the_others() -> None:
    streams = Streams(2)
    streams.queues[0].put_nowait(None)
    for item in (1, 2, None):
        streams.queues[1].put_nowait(item)
    assert [pair async for pair in interleaved(streams.all())] == [(1, 1), (1, 2)]


@pytest.mark.parametrize("count", [1, 3])
async def test_what_one_stream_raises_ends_all_of_them(count: int) -> None:
    streams = Streams(count)
    streams.queues[count - 1].put_nowait(KeyError("broken"))
    with pytest.raises(KeyError, match="broken"):
        async for _ in interleaved(streams.all()):
            pass
    assert streams.closed == set(range(count))


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_early_closes_all_of_them(count: int) -> None:
    streams = Streams(count)
    for queue in streams.queues:
        queue.put_nowait(1)
    async with aclosing(interleaved(streams.all())) as items:
        await anext(items)
    # streams that were never read hold nothing that could be closed
    assert streams.closed == set(range(count))


async def test_cancelling_the_reader_closes_all_of_them() -> None:
    streams = Streams(3)

    async def read() -> None:
        async with aclosing(interleaved(streams.all())) as items:
            async for _ in items:
                pass

    reader = asyncio.create_task(read())
    await streams.are_read(3)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert streams.closed == {0, 1, 2}
