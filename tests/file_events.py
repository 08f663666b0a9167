"""What befalls a process just before it touches a file for a certain time, however fast it is."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Of an event of `sys.audit` and its arguments.
IsMeant = Callable[[str, tuple[Any, ...]], bool]


def before(is_meant: IsMeant, number: int, act: Callable[[], object]) -> None:
    """Act in this process as soon as the `number`th event that is meant is announced, which is before it happens."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if is_meant(event, arguments):
            seen += 1
            if seen == number:
                act()

    sys.addaudithook(watch)


def putting(path: Path) -> IsMeant:
    """The events in which a file is moved to this place."""
    return lambda event, arguments: event == "os.rename" and str(arguments[1]) == str(path)


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)
