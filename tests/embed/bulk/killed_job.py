"""`python -m tests.embed.bulk.killed_job FILE ARGUMENT…`: `fovea ARGUMENT…`, killed where it puts FILE in its place."""

import runpy
import sys
from pathlib import Path

from tests.file_events import before, die, putting

if __name__ == "__main__":
    _, path, *sys.argv[1:] = sys.argv
    before(putting(Path(path)), 1, die)
    runpy.run_module("services.cli.main", run_name="__main__", alter_sys=True)
