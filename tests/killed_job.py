"""Jobs that are killed in their middle, however fast they are: by themselves, where they save their state again.

python -m tests.killed_job STATE MODULE ARGUMENT…   as `python -m MODULE ARGUMENT…`, killed there
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from tests.core.child_processes import start_module
from tests.file_events import before, die, putting

ROOT = Path(__file__).parents[1]


def run_until_killed(state: Path, module: str, *arguments: str) -> None:
    """`python -m module …` as a process of its own, which leaves the first state that it saved."""
    output = state.parent.with_suffix(".log")
    # A test may stand in another folder than the repository's, where `tests` is found.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ("tests.killed_job", str(state), module, *arguments)
    with Path(os.devnull).open() as nothing:
        status = start_module(command, environment, output, stdin=nothing.fileno()).wait()
    assert status == -signal.SIGKILL, output.read_text()
    assert state.exists()


def main() -> None:
    _, state, module, *arguments = sys.argv
    before(putting(Path(state)), 2, die)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
