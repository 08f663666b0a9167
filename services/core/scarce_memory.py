"""Checks for free memory, for code where its lack would crash the process or look like a client's fault."""

import mmap
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


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


def check_memory(num_bytes: int) -> None:
    """Raises MemoryError unless the process could allocate that much more now. None of it is touched, so that the check
    takes microseconds whatever the size.
    """
    try:
        mmap.mmap(-1, max(1, num_bytes)).close()
    except OSError as error:
        raise MemoryError(f"no {num_bytes} bytes") from error
