"""python -m tests.embed.interrupted_bulk_job FILE ARGUMENT…

`fovea ARGUMENT…`, interrupted as by Ctrl-C where it puts FILE into its place.
"""

import os
import runpy
import signal
import sys
from typing import Any


def interrupt_where_it_is_put(path: str) -> None:
    """An audit event comes before what it announces."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(arguments[1]) == path:
            os.kill(os.getpid(), signal.SIGINT)

    sys.addaudithook(watch)


if __name__ == "__main__":
    _, path, *sys.argv[1:] = sys.argv
    interrupt_where_it_is_put(path)
    runpy.run_module("services.cli", run_name="__main__", alter_sys=True)
