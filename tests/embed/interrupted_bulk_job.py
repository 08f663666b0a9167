"""python -m tests.embed.interrupted_bulk_job FILE ARGUMENT…

`fovea ARGUMENT…`, interrupted as by Ctrl-C where it puts FILE into its place.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from tests.file_events import before, putting

if __name__ == "__main__":
    _, path, *sys.argv[1:] = sys.argv
    before(putting(Path(path)), 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    runpy.run_module("services.cli.main", run_name="__main__", alter_sys=True)
