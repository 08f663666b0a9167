"""Sweeps: many students over data sets, models, methods, labels, teachers, shares of the data and seeds.

Each student runs in its own process, which ends with the sweep, however the sweep ends. A killed student continues from
its last state when this sweep, or another one over the same folder, is run again. Sweeps that run at the same time over
one folder share its students.
"""

import multiprocessing
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from services.jobs.progress import duration
from services.predict.data.rows import BadData, LabelSource
from services.predict.evaluation.results import RESULT_FILES, Result
from services.predict.evaluation.sweep_cell import BUSY, LOG, SCORES, Cell, SweepError, Terms, run_cell
from services.predict.training.recipe import Method, Recipe
from services.predict.training.sources import DataSource

PALM = "PaLM 540B"
OWN_ROWS = "rows"  # the source of the rationales of a user's own task, unless a teacher wrote them


@dataclass(frozen=True)
class Teacher:
    """Teacher whose outputs students learn from. If `rationales` is None, they are in the data: PaLM's released ones,
    or those of a user's own rows."""

    name: str
    rationales: Path | None = None

    def rationales_of(self, task: str) -> Path | None:
        """Find a task's file or folder in `rationales`, see `path_of_task`. Raises BadData if there is none."""
        return None if self.rationales is None else path_of_task(self.rationales, task)


def path_of_task(path: Path, task: str) -> Path:
    """Return `<path>/<task>`, `<path>/<task>.jsonl`, or `path` itself. Raises BadData if none of them exists."""
    found = next((own for own in (path / task, path / f"{task}.jsonl", path) if own.exists()), None)
    if found is None:
        raise BadData(f"{path} is missing")
    return found


@dataclass(frozen=True)
class Grid:
    """Values to vary. All other values in `sources` and `recipe` apply to every student."""

    sources: tuple[DataSource, ...]
    models: tuple[str, ...]
    methods: tuple[Method, ...]
    labels: tuple[LabelSource, ...]
    teachers: tuple[Teacher, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    recipe: Recipe

    def cells(self) -> list[Cell]:
        """List every student once, all students of a seed before those of the next.

        Standard finetuning on human labels uses no teacher, so it is listed once for all teachers. Raises BadData for
        missing rationales.
        """
        return list(dict.fromkeys(
            self._cell(source, labels, model, fraction, method, teacher, seed)
            for seed in self.seeds
            for source in self.sources
            for labels in self.labels
            for model in self.models
            for fraction in self.fractions
            for method in self.methods
            for teacher in self._teachers(source, labels, method)
        ))  # fmt: skip

    def _teachers(self, source: DataSource, labels: LabelSource, method: Method) -> Sequence[Teacher]:
        teachers = self.teachers[:1] if _is_untaught(labels, method) else self.teachers
        if source.own is None:
            return teachers
        return [Teacher(OWN_ROWS) if teacher.rationales is None else teacher for teacher in teachers]

    def _cell(
        self,
        source: DataSource,
        labels: LabelSource,
        model: str,
        fraction: float,
        method: Method,
        teacher: Teacher,
        seed: int,
    ) -> Cell:
        data = replace(source, labels=labels, fraction=fraction, rationales=teacher.rationales_of(source.task))
        recipe = replace(self.recipe, method=method, seed=seed)
        return Cell(data, model, recipe, None if _is_untaught(labels, method) else teacher.name)


def _is_untaught(labels: LabelSource, method: Method) -> bool:
    return labels == "human" and method == "standard"


@dataclass
class Running:
    """A cell that a process works on."""

    cell: Cell
    process: BaseProcess
    is_busy_elsewhere: bool = False


class Listener(Protocol):
    """Receiver of a sweep's events."""

    def on_start(self, cell: Cell) -> None:
        """Handle the start of a cell's process, which may first wait for another sweep's."""

    def on_line(self, cell: Cell, line: str) -> None:
        """Handle a line reported by a cell."""

    def on_finish(self, cell: Cell, result: Result) -> None:
        """Handle the result of a cell."""

    def on_failure(self, cell: Cell, reason: str) -> None:
        """Handle the failure of a cell."""


class Sweep:
    """The cells of a folder: `found` are finished, `waiting` are still to be run."""

    def __init__(self, cells: Sequence[Cell], output: Path, *, is_lean: bool = False) -> None:
        """Prepare the cells. With `is_lean`, only the scores of a finished cell are kept.

        Raises SweepError for two cells with one name, and for a folder that holds a student with other settings.
        """
        self.output = output
        self.is_lean = is_lean
        self.found: list[tuple[Cell, Result]] = []
        self.waiting: deque[Cell] = deque()
        self._elsewhere: deque[Cell] = deque()
        self._running: dict[Connection, Running] = {}
        for name, number in Counter(cell.name for cell in cells).items():
            if number > 1:
                raise SweepError(f"two students would have the name {name}")
        for cell in cells:
            result = cell.finished(output / cell.name)
            if result is None:
                self.waiting.append(cell)
            else:
                self.found.append((cell, result))

    def run(self, listener: Listener, num_workers: int = 1) -> int:
        """Run all waiting cells, `num_workers` at a time; return how many failed.

        Cells that another sweep is running are skipped until no others remain, and then waited for.
        """
        context = _context()
        num_failed = 0
        try:
            while self.waiting or self._elsewhere or self._running:
                while len(self._running) < num_workers and (self.waiting or self._elsewhere):
                    is_patient = not self.waiting
                    cell = (self.waiting or self._elsewhere).popleft()
                    self._start(context, cell, num_workers, is_patient=is_patient)
                    listener.on_start(cell)
                for ready in wait(list(self._running)):
                    num_failed += self._hear(ready, listener)  # type: ignore[arg-type]
        finally:
            for connection, running in self._running.items():
                running.process.terminate()
                running.process.join()
                connection.close()
        return num_failed

    def _start(self, context: BaseContext, cell: Cell, num_workers: int, *, is_patient: bool) -> None:
        ours, theirs = context.Pipe()
        num_threads = max(1, (os.cpu_count() or 1) // num_workers)
        terms = Terms(num_threads, is_patient=is_patient, is_lean=self.is_lean)
        arguments = (cell, self.output / cell.name, theirs, terms)
        process: BaseProcess = context.Process(target=run_cell, args=arguments, name=cell.name)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        self._running[ours] = Running(cell, process)

    def _hear(self, connection: Connection, listener: Listener) -> bool:
        """Handle a message from a process, or its end; return whether its cell failed."""
        running = self._running[connection]
        try:
            line: str = connection.recv()
        except (EOFError, ConnectionResetError):
            del self._running[connection]
            connection.close()
            running.process.join()
            return self._ended(running, listener)
        if line == BUSY:
            running.is_busy_elsewhere = True
        else:
            listener.on_line(running.cell, line)
        return False

    def _ended(self, running: Running, listener: Listener) -> bool:
        cell, status = running.cell, running.process.exitcode
        if running.is_busy_elsewhere:
            self._elsewhere.append(cell)
            return False
        folder = self.output / cell.name
        try:
            result = cell.finished(folder) if status == 0 else None
        except SweepError as error:
            listener.on_failure(cell, str(error))
            return True
        if result is None:
            how = f"killed by signal {-status}" if status and status < 0 else _last_line(folder / LOG)
            listener.on_failure(cell, f"{how} (see {folder / LOG})")
            return True
        self.found.append((cell, result))
        listener.on_finish(cell, result)
        return False


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


def seconds_left(found: Sequence[tuple[Cell, Result]], left: Sequence[Cell], num_workers: int) -> float | None:
    """Estimate how long the remaining cells will take from the finished ones; None if there are none.

    Each is expected to take the mean time of its task, model and method, else of its model and method, else of its
    model, else of all.
    """

    def likes(cell: Cell) -> Iterator[tuple[object, ...]]:
        yield cell.data.task, cell.model, cell.recipe.method
        yield cell.model, cell.recipe.method
        yield (cell.model,)
        yield ()

    seconds: dict[tuple[object, ...], list[float]] = {}
    for cell, result in found:
        for like in likes(cell):
            seconds.setdefault(like, []).append(result.scores[str(cell.recipe.seed)]["seconds"])
    if not seconds:
        return None
    expected = [next(seconds[like] for like in likes(cell) if like in seconds) for cell in left]
    return sum(sum(some) / len(some) for some in expected) / num_workers


def collect(output: Path) -> list[Result]:
    """Read the results of all finished cells of a folder. Raises OSError, and ValueError for invalid scores."""
    return RESULT_FILES.load(sorted(output.glob(f"*/{SCORES}")))


def _context() -> BaseContext:
    """Make a multiprocessing context whose processes start with torch already imported, where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["services.predict.evaluation.sweep_preload"])
    return context


def _last_line(log: Path) -> str:
    """Read the last line of a failed process's log."""
    try:
        lines = log.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it exited without a message")
