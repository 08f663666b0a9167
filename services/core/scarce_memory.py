"""A check for free memory, for code where its lack would crash the process or look like a client's fault."""

import mmap


def check_memory(num_bytes: int) -> None:
    """Raises MemoryError unless the process could allocate that much more now. None of it is touched, so that the check
    takes microseconds whatever the size.
    """
    try:
        mmap.mmap(-1, max(1, num_bytes)).close()
    except OSError as error:
        raise MemoryError(f"no {num_bytes} bytes") from error
