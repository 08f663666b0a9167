"""Thread work that ends soon after its request is cancelled: threads can't be stopped, so they check regularly."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_is_abandoned: ContextVar[threading.Event | None] = ContextVar("fovea_is_abandoned", default=None)


class Abandoned(Exception):
    """Raised in a thread to end the work of a cancelled request; it never leaves the thread."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run work in a thread. If cancelled, the thread ends it at its next `check_wanted`."""
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
    """Raise Abandoned if the task that waited for this thread was cancelled."""
    is_abandoned = _is_abandoned.get()
    if is_abandoned is not None and is_abandoned.is_set():
        raise Abandoned
