"""Free memory: checks where its lack would crash the process or look like a client's fault, and returning it."""

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from pathlib import Path

MEMINFO, STATM = Path("/proc/meminfo"), Path("/proc/self/statm")


def available_bytes() -> int | None:
    """Return the memory that programs can take without swapping, None where the system does not tell (all but Linux).

    The limit of a container is not known here.
    """
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) * 1024 if kibibytes else None


def resident_bytes() -> int:
    """Return the memory that this process holds, 0 where the system does not tell (all but Linux)."""
    try:
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def check_memory(num_bytes: int) -> None:
    """Raises MemoryError unless the process could allocate that much more now. None of it is touched, so that the check
    takes microseconds whatever the size.
    """
    try:
        mmap.mmap(-1, max(1, num_bytes)).close()
    except OSError as error:
        raise MemoryError(f"no {num_bytes} bytes") from error


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
