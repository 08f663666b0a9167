"""The place in a thread's long work at which it ends where nobody waits for it any more."""

from collections.abc import Callable
from contextvars import ContextVar

# What the work of this thread is checked by; `turns.py` sets it.
checked_by: ContextVar[Callable[[], None] | None] = ContextVar("fovea_checked_by", default=None)


class Abandoned(Exception):
    """Raised in a thread to end the work of a cancelled request; it never leaves the thread."""


def check_wanted() -> None:
    """Let other clients go first, and raise Abandoned if the request that this thread works for was cancelled."""
    if (check := checked_by.get()) is not None:
        check()
