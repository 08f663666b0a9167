"""Who goes first where the processor is short: the threads that answer, and then those that compute.

An event loop works for microseconds and then sleeps; behind a thread that computes for as long as it may, it would wait
for a slice of the processor at every turn, and refusals and probes with it.
"""

import os
import sys
import threading
from contextlib import suppress

# Beside a thread that has not stepped back, about a third of the processor.
NICENESS = 5


def step_back() -> None:
    """Lower the calling thread's priority, and that of threads that it starts. Only Linux has one for each thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
