"""Progress of a sweep: a line for each student that finished or failed and, on terminals, a bar."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from services.jobs.progress import duration
from services.predict.evaluation.results import Result
from services.predict.evaluation.sweep import Sweep, seconds_left
from services.predict.evaluation.sweep_cell import Cell


class SweepProgress:
    """Listener to a sweep, and a context manager around its run."""

    def __init__(self, sweep: Sweep, num_workers: int, console: Console) -> None:
        self._sweep = sweep
        self._num_workers = num_workers
        self._console = console
        self._num_cells = len(sweep.found) + len(sweep.waiting)
        self._num_failed = 0
        self._left = list(sweep.waiting)
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._all = self._bar.add_task("students", total=self._num_cells, completed=len(sweep.found), told="")
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        found = f", {len(self._sweep.found)} of them finished before" if self._sweep.found else ""
        self._print(f"{self._num_cells} students{found}")
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def on_start(self, cell: Cell) -> None:
        """Add a row for the cell."""
        if cell.name not in self._rows:
            self._rows[cell.name] = self._bar.add_task(f"  {cell.name}", total=None, told="")

    def on_line(self, cell: Cell, line: str) -> None:
        """Show a cell's report on its training."""
        self._bar.update(self._rows[cell.name], told=line)

    def on_finish(self, cell: Cell, result: Result) -> None:
        """Show the cell's accuracy, and how long the others will take."""
        scores = result.scores[str(cell.recipe.seed)]
        self._end(cell, f"{100 * scores['test_accuracy']:.2f} % in {duration(scores['seconds'])}")

    def on_failure(self, cell: Cell, reason: str) -> None:
        """Show why the cell failed."""
        self._num_failed += 1
        self._end(cell, f"failed: {reason}")

    def _end(self, cell: Cell, what: str) -> None:
        self._left.remove(cell)
        self._bar.remove_task(self._rows.pop(cell.name))
        self._bar.advance(self._all)
        seconds = seconds_left(self._sweep.found, self._left, self._num_workers)
        about = f"; about {duration(seconds)} left" if self._left and seconds is not None else ""
        self._print(f"{self._num_cells - len(self._left)}/{self._num_cells} {cell.name}: {what}{about}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)
