"""Work in threads that ends soon after its request was cancelled: threads can't be stopped, so they ask regularly."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_is_abandoned: ContextVar[threading.Event | None] = ContextVar("fovea_is_abandoned", default=None)


class Abandoned(Exception):
    """Ends a thread's work whose request was cancelled; nobody sees it."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run this in a thread. Cancelled, it leaves the thread at the next `check_wanted` there."""
    is_abandoned = threading.Event()
    before = _is_abandoned.set(is_abandoned)
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        is_abandoned.set()
        raise
    finally:
        _is_abandoned.reset(before)


def check_wanted() -> None:
    """Raise Abandoned where the task that waited for this thread was cancelled."""
    is_abandoned = _is_abandoned.get()
    if is_abandoned is not None and is_abandoned.is_set():
        raise Abandoned
