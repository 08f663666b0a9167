"""Large requests in slices, a few at a time, so that no request fills the memory or the queue."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

SLICE_INPUTS = 64
SLICES_AT_ONCE = 2

T = TypeVar("T")
ResultT = TypeVar("ResultT")


async def map_slices(inputs: Sequence[T], work: Callable[[Sequence[T]], Awaitable[ResultT]]) -> list[ResultT]:
    """Return `work` of each slice, in order; where one fails the others are cancelled and its error is raised."""
    turns = asyncio.Semaphore(SLICES_AT_ONCE)

    async def in_turn(some: Sequence[T]) -> ResultT:
        async with turns:
            return await work(some)

    slices = [inputs[start : start + SLICE_INPUTS] for start in range(0, len(inputs), SLICE_INPUTS)]
    return await all_or_first_failure([in_turn(some) for some in slices])


async def all_or_first_failure(work: Sequence[Coroutine[Any, Any, T]], *, at_once: int | None = None) -> list[T]:
    """Run coroutines together, or `at_once` at a time; where one fails the others are cancelled and its own error is
    raised, not a group of errors."""
    if len(work) == 1:
        return [await work[0]]
    turns = asyncio.Semaphore(at_once or max(1, len(work)))

    async def in_turn(one: Coroutine[Any, Any, T]) -> T:
        async with turns:
            return await one

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(in_turn(one)) for one in work]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        for one in work:
            one.close()  # the ones that never started
    return [task.result() for task in tasks]
