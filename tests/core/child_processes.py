"""Processes for tests: forked from a server that has our modules loaded already, so each starts in milliseconds."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def forked_processes() -> ForkServerContext:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["services.core.store.store", "tests.core.restless_writer"])
    return processes
