"""Processes for tests, which end with them."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
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
    processes.set_forkserver_preload(["services.core.store.store", "tests.core.restless_writer", "tests.core.preload"])
    return processes


def start_module(
    command: Sequence[str], environment: Mapping[str, str], output: Path, *, stdin: int
) -> "subprocess.Popen[bytes] | ForkedModule":
    """Run a module that needs our packages with torch, as `python -m` would; `command` begins with its name."""
    output.touch()
    if sys.platform != "linux":
        # after a fork, libraries of macOS may not be used that have threads
        with output.open("wb") as written:
            return subprocess.Popen(
                [sys.executable, "-m", *command], env=environment, stdin=stdin, stdout=written, stderr=subprocess.STDOUT
            )
    else:
        return ForkedModule(command, environment, stdin, output)


class ForkedModule:
    """A module that runs as `python -m` would run it, in a process forked from one that has imported most of it.

    `stdin` is the file descriptor that it reads. Its methods are those of Popen.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stdin: int, output: Path) -> None:
        arguments = (command, dict(environment), DupFd(stdin), output, Path.cwd())
        self._process = ForkServerProcess(target=_run_module, args=arguments, daemon=True)
        forked_processes()
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_module(command: Sequence[str], environment: Mapping[str, str], stdin: Any, output: Path, folder: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdin.detach(), 0)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
