"""Thread priorities where the processor is short: threads that answer requests come before those that compute.

An event loop works for microseconds and then sleeps; behind a thread that computes without pause it would wait for a
slice of the processor at every iteration, and refusals and probes with it.
"""

import os
import sys
import threading
from contextlib import suppress

# Gives about a third of the processor beside a thread of normal priority.
NICENESS = 5


def step_back() -> None:
    """Lower the priority of the calling thread and of threads it starts. Only Linux has one for each thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def num_cores() -> int:
    """Count the cores that this process may use; in a container these may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
