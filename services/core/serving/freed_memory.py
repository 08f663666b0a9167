"""Memory that was freed, back to the system."""

import ctypes
from collections.abc import Callable
from functools import cache

# glibc's name for how many separate heaps its allocator may have
M_ARENA_MAX = -8


def return_freed_memory() -> None:
    """Give back what C's allocator keeps of freed memory; nothing where it is not glibc's.

    What a checkpoint leaves behind is hundreds of megabytes in pieces that glibc would keep for later.
    """
    _allocator("malloc_trim")(0)


def allocate_in_one_arena() -> None:
    """Have the threads of this process share what they free; to be called before there are any.

    By default each thread has memory of its own. What a loading thread frees among things that stay, glibc then keeps
    for threads to come: half as much as the checkpoint, in the worst case seen.
    """
    _allocator("mallopt")(M_ARENA_MAX, 1)


@cache
def _allocator(function: str) -> Callable[..., object]:
    return getattr(ctypes.CDLL(None), function, lambda *arguments: None)
