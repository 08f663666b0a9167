"""Progress of jobs, on standard error: a bar on a terminal, elsewhere a line from time to time."""

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")

# Seconds between two lines without a terminal.
LINE_SECONDS = 30.0


class Bar:
    """One visible bar for the consecutive parts of a job."""

    last_line: ClassVar[float] = time.monotonic()  # shared by all bars, because many short bars can make one long job

    def __init__(self, progress: Progress, task: TaskID, line_seconds: float | None) -> None:
        """`line_seconds` is None for a bar that is shown on a terminal, or not at all."""
        self._progress = progress
        self._task = task
        self._line_seconds = line_seconds
        self._told = ""

    def begin(self, title: str, total: int | None = None) -> None:
        """Begin the next part."""
        self._told = ""
        self._progress.remove_task(self._task)  # rich's reset keeps the old total if there is no new one
        self._task = self._progress.add_task(title, total=total, told="")
        self._tell()

    def advance(self, number: int = 1, told: str | None = None) -> None:
        """Add to the number of finished items; `told` is shown beside it."""
        self._told = self._told if told is None else told
        self._progress.update(self._task, advance=number, told=self._told)
        self._tell()

    def set(self, done: int, total: int) -> None:
        """Set the number of finished items, and the total."""
        self._progress.update(self._task, completed=done, total=total)
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if self._line_seconds is None or now - Bar.last_line < self._line_seconds:
            return
        Bar.last_line = now
        (task,) = (task for task in self._progress.tasks if task.id == self._task)
        parts = [f"{task.completed:,.0f}" + (f" of {task.total:,.0f}" if task.total is not None else "")]
        parts += [self._told] if self._told else []
        parts += [f"about {duration(task.time_remaining)} left"] if task.time_remaining else []
        self._progress.console.print(f"{task.description}: {', '.join(parts)}", markup=False, soft_wrap=True)


class Bars:
    """Bars on a console, one after the other."""

    def __init__(self, console: Console, line_seconds: float = LINE_SECONDS) -> None:
        self._console = console
        self._line_seconds = line_seconds

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, soft_wrap=True)

    @contextmanager
    def bar(
        self, title: str, unit: str = "", *, total: int | None = None, done: int = 0, shown: bool = True
    ) -> Iterator[Bar]:
        """Show a bar with the remaining time and, with a `unit`, the speed; `total` is None if not yet known."""
        is_terminal = self._console.is_terminal
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            *([_Speed(unit)] if unit else []),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=self._console,
            transient=True,
            # piped standard output must not change
            redirect_stdout=sys.stdout.isatty(),
            disable=not (shown and is_terminal),
        )
        line_seconds = self._line_seconds if shown and not is_terminal else None
        with progress:
            yield Bar(progress, progress.add_task(title, total=total, completed=done, told=""), line_seconds)


def standard_bars() -> Bars:
    """Bars on standard error."""
    return Bars(Console(stderr=True, highlight=False))


def watched(items: Iterable[T], title: str, total: int) -> Iterator[T]:
    """Yield the items, with a bar that counts them."""
    with standard_bars().bar(title, total=total) as bar:
        for item in items:
            yield item
            bar.advance()


def duration(seconds: float) -> str:
    """Write a duration in the unit that makes it a short number: 38 s, 12 min, 3.4 h."""
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: 1 pair, 2,000 pairs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class _Speed(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self._unit}/s" if speed else "")
