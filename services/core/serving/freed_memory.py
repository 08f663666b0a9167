"""Returning freed memory to the system."""

import ctypes
from collections.abc import Callable
from functools import cache

# M_ARENA_MAX, glibc's limit on the number of its allocator's heaps
M_ARENA_MAX = -8


def return_freed_memory() -> None:
    """Return freed memory that glibc's allocator keeps; does nothing with other allocators.

    A checkpoint leaves hundreds of megabytes in pieces that glibc would keep for later.
    """
    _allocator("malloc_trim")(0)


def allocate_in_one_arena() -> None:
    """Have the threads of this process share one heap; call it before any is started.

    By default each thread has a heap of its own. Memory that a loading thread frees between objects that stay, glibc
    then keeps for later threads: half as much as the checkpoint, in the worst case seen.
    """
    _allocator("mallopt")(M_ARENA_MAX, 1)


@cache
def _allocator(function: str) -> Callable[..., object]:
    return getattr(ctypes.CDLL(None), function, lambda *arguments: None)
