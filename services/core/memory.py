"""Free memory: checks where its lack would crash the process or look like a client's fault, and returning it."""

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

MEMINFO, STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_within_limits() -> tuple[int, int]:
    """Return the bytes of memory in total and available without swapping, within the limit of a container."""
    try:
        memory = _figures(MEMINFO, 1024)
        total, available = memory["MemTotal"], memory["MemAvailable"]
    except (OSError, KeyError):
        total = available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(MEMORY_LIMIT.read_text())
        used = int(MEMORY_LIMIT.with_name("memory.current").read_text())
        cached = _figures(MEMORY_LIMIT.with_name("memory.stat"))
    except (OSError, ValueError):  # no container, or one without a limit
        return total, available
    # files that were read or written, such as a model that was just downloaded: the kernel drops them where it must
    used -= cached.get("inactive_file", 0) + cached.get("active_file", 0)
    return min(total, limit), min(available, max(0, limit - used))


def _figures(path: Path, unit: int = 1) -> dict[str, int]:
    """Read the system's figures by name. Raises OSError where it tells none (all but Linux)."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {name.rstrip(":"): int(number) * unit for name, number, *_ in lines}


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
