"""`python -m tests.embed.killed_bulk_job`: bulk jobs that are killed and begun again.

    writes CHECKPOINT SOURCE FOLDER [OLD]     one job after the other, each killed once, in FOLDER/1, FOLDER/2, …: job n
                                              before the nth time that it opens, renames or removes one of its files;
                                              with OLD each overwrites a copy of it
    times CHECKPOINT SOURCE OUTPUT SECONDS…   one job, killed after each of these seconds in turn

In the end every job is given its time. Prints how many there were. Each is forked from a process that has done such a
job and so has imported and read what one needs: it begins in milliseconds.
"""

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from services.embed.bulk.folder import OutputError
from services.embed.bulk.image_sources import list_images
from services.embed.bulk.to_files import OutputRequest, embed_into_files
from services.jobs.progress import Bars
from tests.file_events import IsMeant, before, die


def run_job(checkpoint: str, source: str, output: Path, *, overwrite: bool = False) -> None:
    request = OutputRequest(
        output, checkpoint, ["what color is it?"], shard_size=8, batch_size=3, num_threads=2, devices=["cpu"],
        overwrite=overwrite,
    )  # fmt: skip
    embed_into_files(request, list_images([source]), Bars(Console(file=StringIO())))


def continue_job(checkpoint: str, source: str, output: Path) -> None:
    """A job that is continued where it may be is right; one that is refused may overwrite."""
    try:
        run_job(checkpoint, source, output)
    except OutputError:
        run_job(checkpoint, source, output, overwrite=True)


def touching(output: Path) -> IsMeant:
    def is_meant(event: str, arguments: tuple[Any, ...]) -> bool:
        return event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(str(output))

    return is_meant


def in_a_process(work: Callable[[], None], *, killed_after_s: float | None = None) -> bool:
    """Whether it came to its end."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if killed_after_s is not None:
        time.sleep(killed_after_s)  # the moment itself
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"a job ended with status {os.WEXITSTATUS(status)}")
    return os.WIFEXITED(status)


def kill_at_writes(checkpoint: str, source: str, folder: Path, old: Path | None) -> int:
    for event in itertools.count(1):
        output = folder / str(event)
        if old is not None:
            shutil.copytree(old, output)

        def run_until_event(event: int = event, output: Path = output) -> None:
            before(touching(output), event, die)
            run_job(checkpoint, source, output, overwrite=old is not None)

        has_ended = in_a_process(run_until_event)
        assert in_a_process(partial(continue_job, checkpoint, source, output))
        if has_ended:
            return event
    raise AssertionError


def kill_at_times(checkpoint: str, source: str, output: Path, seconds: list[float]) -> int:
    for after_s in seconds:
        in_a_process(partial(run_job, checkpoint, source, output), killed_after_s=after_s)
    assert in_a_process(partial(run_job, checkpoint, source, output))
    return 1


if __name__ == "__main__":
    mode, checkpoint, source, output, *others = sys.argv[1:]
    with TemporaryDirectory() as scratch:
        run_job(checkpoint, source, Path(scratch) / "output")
    if mode == "writes":
        print(kill_at_writes(checkpoint, source, Path(output), Path(others[0]) if others else None))
    else:
        print(kill_at_times(checkpoint, source, Path(output), [float(after_s) for after_s in others]))
