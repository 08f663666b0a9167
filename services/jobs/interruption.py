"""Ctrl-C in a job: finished work is kept, and the last message says how to continue.

A training ends after the current step, with its state saved; a second signal ends it at once.
"""

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import typer
from rich.console import Console

from services.core.printable import printable

EXIT_FAILED = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A Python signal handler may interrupt code that is printing, so it writes directly to the descriptor.
NOTICE = b"\nStopping at the end of this step; press again to stop at once.\n"
# Messages of a training whose current step was not saved.
RESUMABLE = "Stopped. Run the same command to continue from the last saved step."
NOTHING_SAVED = "Stopped before any step was saved; run the same command to begin again."

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(Exception):
    """A signal has asked the job to end."""


@contextmanager
def one_line_errors(
    command: str,
    console: Console,
    errors: tuple[type[Exception], ...],
    told: Callable[[Exception], str] = str,
    stopped: str = "Stopped. Run the same command to continue.",
) -> Iterator[None]:
    """End a command with status 1 and one line at these errors, and at Ctrl-C with status 130 and what is `stopped`."""
    try:
        yield
    except errors as error:
        console.print(f"{command}: {printable(told(error))}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (Interrupted, KeyboardInterrupt, asyncio.CancelledError):
        console.print(stopped, markup=False, soft_wrap=True)
        raise typer.Exit(128 + signal.SIGINT) from None


class Stopped(KeyboardInterrupt):
    """The end of a job by a signal; the message says what is kept and how to continue."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


class Stopping:
    """Context manager that defers signals which end a process, until a loop has finished its step.

    A second signal raises KeyboardInterrupt, or Stopped for SIGTERM. Ignored signals stay ignored.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._heeded = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._on_signal) for number in heeded}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_asked(self, share: Callable[[int], int] = int) -> bool:
        """Whether a signal has arrived, so that the step must be saved; later signals count for the next step.

        Processes that train together `share` the greatest of their numbers.
        """
        self._heeded = share(self._asked)
        return self._heeded != 0

    def check(self, step: int, num_steps: int, stage: str = "training") -> None:
        """Raise Stopped if `is_asked` was true; `step` steps of the stage are saved."""
        if self._heeded:
            told = f"Stopped: step {step} of {num_steps} ({stage}) is saved. Run the same command to continue."
            raise Stopped(told, self._heeded)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped("", number)
        self._asked = number
        if _is_main():
            os.write(2, NOTICE)


def ignore_interrupts(_worker: int = 0) -> None:
    """Ignore Ctrl-C in this process; a terminal also sends it to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def resumable(options: Mapping[str, Any]) -> str:
    """Say whether a training's folder, its option `output`, holds a step to continue from."""
    return RESUMABLE if any(Path(options["output"]).glob("resume*.pt")) else NOTHING_SAVED


def interruptible(words: str | Callable[[Mapping[str, Any]], str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a command end at Ctrl-C with status 130 and, on standard error, the message of Stopped or `words`.

    `words` may be a function of the command's options. Further signals are ignored: the process is about to end.
    """

    def decorate(command: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return command(*args, **kwargs)
            except KeyboardInterrupt as stopped:
                _ignore_signals()
                if _is_main():
                    typer.echo(str(stopped) or (words if isinstance(words, str) else words(kwargs)), err=True)
                number = stopped.number if isinstance(stopped, Stopped) else signal.SIGINT
                raise typer.Exit(128 + number) from None

        return run

    return decorate


def _ignore_signals() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _is_main() -> bool:
    """Whether this process is the only one of its job, or the first one started by torchrun."""
    return os.environ.get("RANK", "0") == "0"
