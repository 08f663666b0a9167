"""Calls on a compute thread whose outcome a test waits for."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from services.core.batching.compute_thread import ComputeThread

T = TypeVar("T")


async def run_on(thread: ComputeThread, call: Callable[[], T]) -> T:
    """Return what a call returned."""
    answer: Future[T] = Future()
    thread.post(lambda: answer.set_result(call()))
    return await asyncio.wrap_future(answer)
