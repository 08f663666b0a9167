"""Batches limited by count and bytes, and workers that share what there is to do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A thing of a known size."""

    @property
    def num_bytes(self) -> int: ...


T = TypeVar("T")
SizedT = TypeVar("SizedT", bound=Sized)


class Batches(Generic[SizedT]):
    """Collects things into batches of at most `size` of them and `max_bytes`; a larger one is a batch of its own."""

    def __init__(self, size: int, max_bytes: int) -> None:
        self._size = size
        self._max_bytes = max_bytes
        self._batch: list[SizedT] = []
        self._num_bytes = 0

    def add(self, one: SizedT) -> list[SizedT]:
        """Collect one more; return the batch that has no room for it, empty if there is room."""
        is_full = len(self._batch) == self._size or self._num_bytes + one.num_bytes > self._max_bytes
        complete = self.rest() if is_full else []
        self._batch.append(one)
        self._num_bytes += one.num_bytes
        return complete

    def rest(self) -> list[SizedT]:
        """Return the batch that is being collected, and begin another."""
        batch, self._batch, self._num_bytes = self._batch, [], 0
        return batch


async def in_workers(items: AsyncIterator[T], work: Callable[[T], Awaitable[None]], num_workers: int) -> None:
    """Work at items, several at once, each taken from the iterator when a worker is free. Raises the first failure."""
    taking = asyncio.Lock()

    async def keep_working() -> None:
        while True:
            async with taking:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_workers):
                group.create_task(keep_working())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
