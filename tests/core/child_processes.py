"""Processes for tests, which end with them."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext
from typing import Any


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and wait for its end; it is killed, with all that it started, if it does not end or the block
    raises.

    Popen's own context would wait without an end for the process of a test that is stopped because it takes too long.
    """
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    try:
        yield process
        process.wait(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def forked_processes() -> ForkServerContext:
    """Return what forks processes from a server that has our modules loaded, so that each starts in milliseconds."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["services.core.store.store", "tests.core.restless_writer"])
    return processes
