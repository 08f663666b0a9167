"""Sweeps: many students over data sets, models, methods, labels, teachers, shares of the data and seeds.

Each runs in a process of its own, which ends when the sweep does, however that ends. What is killed goes on from its
last state when the sweep is run again, or another one over the same folder. Sweeps that run at the same time over one
folder share its students among them.
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
from typing import Protocol

from services.predict.data.rows import BadData, LabelSource
from services.predict.evaluation.results import RESULT_FILES, Result
from services.predict.evaluation.sweep_cell import BUSY, LOG, SCORES, Cell, SweepError, Terms, run_cell
from services.predict.training.recipe import Method, Recipe
from services.predict.training.sources import DataSource

PALM = "PaLM 540B"
TEMPLATES = "templates"  # write the rationales of generated data


@dataclass(frozen=True)
class Teacher:
    """Teacher whose outputs students learn from. `rationales` None are the released ones of PaLM."""

    name: str
    rationales: Path | None = None

    def rationales_of(self, task: str) -> Path | None:
        """The file or folder of a task: `<rationales>/<task>`, `<rationales>/<task>.jsonl`, or `rationales` itself.

        Raises BadData where there is none.
        """
        if self.rationales is None:
            return None
        candidates = (self.rationales / task, self.rationales / f"{task}.jsonl")
        own = next((path for path in candidates if path.exists()), self.rationales)
        if not own.exists():
            raise BadData(f"{own} is missing")
        return own


@dataclass(frozen=True)
class Grid:
    """Values to vary. Everything else in `sources` and `recipe` holds for every student."""

    sources: tuple[DataSource, ...]
    models: tuple[str, ...]
    methods: tuple[Method, ...]
    labels: tuple[LabelSource, ...]
    teachers: tuple[Teacher, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    recipe: Recipe
    vocab_size: int

    def cells(self) -> list[Cell]:
        """List every student once, all those of a seed before those of the next.

        Standard finetuning on people's labels learns from no teacher, whatever teachers there are. Raises BadData for
        rationales that are missing.
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
        if source.is_generated:
            return [Teacher(TEMPLATES)]
        return self.teachers[:1] if _is_untaught(labels, method) else self.teachers

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
        data = replace(source, labels=labels, fraction=fraction)
        if not source.is_generated:
            data = replace(data, rationales=teacher.rationales_of(source.task))
        recipe = replace(self.recipe, method=method, seed=seed)
        return Cell(data, model, recipe, self.vocab_size, None if _is_untaught(labels, method) else teacher.name)


def _is_untaught(labels: LabelSource, method: Method) -> bool:
    return labels == "human" and method == "standard"


@dataclass
class Running:
    """A cell that a process works on."""

    cell: Cell
    process: BaseProcess
    is_busy_elsewhere: bool = False


class Listener(Protocol):
    """Receiver of what happens in a sweep."""

    def on_start(self, cell: Cell) -> None:
        """Learn that a process works on the cell, or waits for another sweep's."""

    def on_line(self, cell: Cell, line: str) -> None:
        """Take a line that a cell reports."""

    def on_finish(self, cell: Cell, result: Result) -> None:
        """Take the result of a cell."""

    def on_failure(self, cell: Cell, reason: str) -> None:
        """Take the reason why a cell has no result."""


class Sweep:
    """Cells of a folder: `found` are finished, `waiting` are to be run."""

    def __init__(self, cells: Sequence[Cell], output: Path, *, is_lean: bool = False) -> None:
        """Prepare the cells. With `is_lean`, nothing but its scores is left of a finished cell.

        Raises SweepError for two cells of one name, and for a folder that holds a student of other settings.
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

        Cells that another sweep is running are left to it until nothing else is to be done, and then waited for.
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
        """Take what a process has to say; whether that is that its cell failed."""
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


def seconds_left(found: Sequence[tuple[Cell, Result]], left: Sequence[Cell], num_workers: int) -> float | None:
    """Estimate how long the cells that are left will take from those that are found; None where nothing is known.

    Each is expected to take the mean of those of its model and method, or else of its model, or else of all.
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
    """Read the results of all finished cells of a folder. Raises OSError, and ValueError for scores that are none."""
    return RESULT_FILES.load(sorted(output.glob(f"*/{SCORES}")))


def _context() -> BaseContext:
    """Make a context of processes that start with torch already imported, where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["services.predict.evaluation.sweep_preload"])
    return context


def _last_line(log: Path) -> str:
    """Read what a process that failed said last."""
    try:
        lines = log.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it exited without a message")
