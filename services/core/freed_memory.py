"""Memory that was freed, back to the system."""

import ctypes
from collections.abc import Callable
from functools import cache


def return_freed_memory() -> None:
    """Give back what C's allocator keeps of freed memory; nothing where it is not glibc's.

    What a checkpoint leaves behind is hundreds of megabytes in pieces that glibc would keep for later.
    """
    _trimmer()(0)


@cache
def _trimmer() -> Callable[[int], object]:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)
