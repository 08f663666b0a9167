"""Progress bars of the bulk jobs, on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


class Bar:
    """One bar that is shown."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, number: int) -> None:
        """Add to the number that is done."""
        self._progress.advance(self._task, number)

    def set(self, done: int, total: int) -> None:
        """Set the number that is done, and the number in all."""
        self._progress.update(self._task, completed=done, total=total)


class Bars:
    """Bars on a console, one after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, unit: str, *, total: int | None, done: int = 0) -> Iterator[Bar]:
        """A bar with the `unit`s a second and the time that remains; `total` None is not yet known."""
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(unit),
            TimeRemainingColumn(),
            console=self._console,
            # piped, standard output stays what it is
            redirect_stdout=sys.stdout.isatty(),
        )
        with progress:
            yield Bar(progress, progress.add_task(title, total=total, completed=done))


class _Speed(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self._unit}/s" if speed else "")
