"""Jobs that are killed in their middle, however fast they are: by themselves, where they replace a file.

python -m tests.killed_job FILE MODULE ARGUMENT…   as `python -m MODULE ARGUMENT…`, killed where FILE is replaced
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any


def die_where_it_is_put(path: Path, number: int) -> None:
    """End this process as kill -9 does, when it is about to move the file to this place for the `number`th time."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "os.rename" and str(arguments[1]) == str(path):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main() -> None:
    _, path, module, *arguments = sys.argv
    die_where_it_is_put(Path(path), 2)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
