"""Events just before a process's nth operation on a file, independent of its speed."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Whether an event of `sys.audit` with its arguments counts.
IsMeant = Callable[[str, tuple[Any, ...]], bool]


def before(is_meant: IsMeant, number: int, act: Callable[[], object]) -> None:
    """Act in this process when the `number`th event that counts is announced, which is before it happens."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if is_meant(event, arguments):
            seen += 1
            if seen == number:
                act()

    sys.addaudithook(watch)


def putting(path: Path) -> IsMeant:
    """Count the events that move a file to this path."""
    return lambda event, arguments: event == "os.rename" and str(arguments[1]) == str(path)


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)
