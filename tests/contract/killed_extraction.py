"""python -m tests.contract.killed_extraction NUMBER FILE ARGUMENT…

Runs `python -m services.predict.extraction.command ARGUMENT…`, which is killed once NUMBER outputs are on disk in
FILE.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any


def die_at(number: int, path: Path) -> None:
    """End this process as kill -9 does once the calling thread has written this number of lines to disk."""

    def watch(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_return" and function is os.fsync and path.exists() and path.read_bytes().count(b"\n") >= number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


if __name__ == "__main__":
    _, number, path, *sys.argv[1:] = sys.argv
    die_at(int(number), Path(path))
    runpy.run_module("services.predict.extraction.command", run_name="__main__", alter_sys=True)
