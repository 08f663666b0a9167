"""Whether there is memory for what comes next: asked where its lack would crash, or be taken for a client's fault."""

import mmap


def check_memory(num_bytes: int) -> None:
    """Raises MemoryError unless the process may have that much more now. None of it is touched, so that asking takes
    microseconds whatever the size.
    """
    try:
        mmap.mmap(-1, max(1, num_bytes)).close()
    except OSError as error:
        raise MemoryError(f"no {num_bytes} bytes") from error
