"""Sweeps: many students over data sets, models, methods, labels, teachers, shares of the data and seeds.

Each student runs in its own process, which ends with the sweep, however the sweep ends, and continues from its last
state in the next one. Sweeps that run at the same time over one folder share its students, each in a folder of its own:

<folder>/scores.json   its result, written last: a student that has it is finished
<folder>/log.txt       output of its process
<folder>/lock          held by the process that runs it
…                      files of `run_student`
"""

import fcntl
import json
import multiprocessing
import os
import re
import shutil
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console

from services.core.refusals import Refused
from services.core.text_files import BadFile
from services.jobs.interruption import ignore_interrupts
from services.jobs.progress import Bars, duration
from services.jobs.resumption import differences
from services.predict.data.rows import LabelSource
from services.predict.evaluation.results import RESULT_FILES, Result
from services.predict.training.recipe import Method, Recipe
from services.predict.training.sources import DataSource, Source

SCORES, LOG, LOCK = "scores.json", "log.txt", "lock"
BUSY = 75  # status of a process whose student another sweep is training
PALM = "PaLM 540B"
OWN_ROWS = "rows"  # the source of the rationales of a user's own task, unless a teacher wrote them


@dataclass(frozen=True)
class Cell:
    """A student of a sweep; data, model and recipe are those of `StudentRun`.

    `teacher` is the name in tables of the teacher whose outputs it learns from, None if it learns from none.
    """

    data: Source
    model: str
    recipe: Recipe
    teacher: str | None

    @property
    def name(self) -> str:
        """Name of the cell's folder: `svamp_human_t5-base_step-by-step_PaLM-540B_12.5_seed-0`."""
        what = self.result({})
        teacher = [] if what.teacher is None else [what.teacher]
        parts = [what.data, what.labels, what.model, what.method, *teacher, f"{100 * what.fraction:g}"]
        return "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part) for part in [*parts, f"seed-{self.recipe.seed}"])

    def result(self, scores: dict[str, float]) -> Result:
        """Make the cell's result from the scores."""
        data = self.data
        settings = {**json.loads(json.dumps(asdict(self.recipe))), **data.settings()}
        del settings["method"], settings["seed"]
        return Result(
            data.name, data.labels, Path(self.model).name, self.recipe.method,
            float(data.fraction), self.teacher, {str(self.recipe.seed): scores}, settings,
        )  # fmt: skip

    def finished(self, folder: Path) -> Result | None:
        """Read the cell's result from its folder; None if there is none yet. Raises Refused."""
        if not (folder / SCORES).exists():
            return None
        (found,) = RESULT_FILES.load([folder / SCORES])
        expected = replace(self.result({}), scores=found.scores)
        if found != expected:
            before, now = ({**asdict(one), **one.settings, "settings": {}} for one in (found, expected))
            raise Refused(f"{folder} was run with other settings: {differences(before, now, {})}")
        return found


@dataclass(frozen=True)
class Teacher:
    """Teacher whose outputs students learn from. If `rationales` is None, they are in the data: PaLM's released ones,
    or those of a user's own rows."""

    name: str
    rationales: Path | None = None


def path_of_task(path: Path, task: str) -> Path:
    """Return `<path>/<task>`, `<path>/<task>.jsonl`, or `path` itself. Raises BadFile if none of them exists."""
    found = next((own for own in (path / task, path / f"{task}.jsonl", path) if own.exists()), None)
    if found is None:
        raise BadFile(f"{path} is missing")
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

        Standard finetuning on human labels uses no teacher, so it is listed once for all teachers. Raises BadFile.
        """
        cells = []
        varied = (self.seeds, self.sources, self.labels, self.models, self.fractions, self.methods)
        for seed, source, labels, model, fraction, method in product(*varied):
            is_untaught = labels == "human" and method == "standard"
            for teacher in self.teachers[:1] if is_untaught else self.teachers:
                given = teacher.rationales
                rationales = None if given is None else path_of_task(given, source.task)
                data = replace(source, labels=labels, fraction=fraction, rationales=rationales)
                name = OWN_ROWS if source.own is not None and given is None else teacher.name
                recipe = replace(self.recipe, method=method, seed=seed)
                cells.append(Cell(data, model, recipe, None if is_untaught else name))
        return list(dict.fromkeys(cells))


class Sweep:
    """The cells of a folder: `found` are finished, `waiting` are still to be run."""

    def __init__(self, cells: Sequence[Cell], output: Path, *, is_lean: bool = False) -> None:
        """Prepare the cells. With `is_lean`, only the scores of a finished cell are kept. Raises Refused."""
        self.output = output
        self.is_lean = is_lean
        self.found: list[tuple[Cell, Result]] = []
        self.waiting: deque[Cell] = deque()
        self._busy: set[Cell] = set()  # those that another sweep was running
        self._running: dict[Connection, tuple[Cell, BaseProcess]] = {}
        for name, number in Counter(cell.name for cell in cells).items():
            if number > 1:
                raise Refused(f"two students would have the name {name}")
        for cell in cells:
            result = cell.finished(output / cell.name)
            if result is None:
                self.waiting.append(cell)
            else:
                self.found.append((cell, result))

    def run(
        self,
        num_workers: int,
        on_line: Callable[[Cell, str], None],
        on_end: Callable[[Cell, Result | str], None],
    ) -> int:
        """Run all waiting cells, `num_workers` at a time; return how many failed.

        `on_line` gets what a cell reports of its training, `on_end` its result, or why it failed. Cells that another
        sweep is running are skipped until no others remain, and then waited for.
        """
        context = _context()
        num_failed = 0
        try:
            while self.waiting or self._running:
                while len(self._running) < num_workers and self.waiting:
                    self._start(context, self.waiting.popleft(), num_workers)
                for ready in wait(list(self._running)):
                    assert isinstance(ready, Connection)
                    try:
                        line: str = ready.recv()
                    except (EOFError, ConnectionResetError):
                        num_failed += self._end(ready, on_end)
                    else:
                        on_line(self._running[ready][0], line)
        finally:
            for connection, (_, process) in self._running.items():
                process.terminate()
                process.join()
                connection.close()
        return num_failed

    def _start(self, context: BaseContext, cell: Cell, num_workers: int) -> None:
        ours, theirs = context.Pipe()
        num_threads = max(1, (os.cpu_count() or 1) // num_workers)
        arguments = (cell, self.output / cell.name, theirs, num_threads, cell in self._busy, self.is_lean)
        process: BaseProcess = context.Process(target=run_cell, args=arguments, name=cell.name)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        self._running[ours] = cell, process

    def _end(self, connection: Connection, on_end: Callable[[Cell, Result | str], None]) -> bool:
        """Handle the end of a process; return whether its cell failed."""
        cell, process = self._running.pop(connection)
        connection.close()
        process.join()
        if process.exitcode == BUSY:
            self._busy.add(cell)
            self.waiting.append(cell)
            return False
        log = self.output / cell.name / LOG
        try:
            result = cell.finished(log.parent) if process.exitcode == 0 else None
        except Refused as error:
            on_end(cell, str(error))
            return True
        if result is None:
            status = process.exitcode or 0
            on_end(cell, f"{f'killed by signal {-status}' if status < 0 else _last_line(log)} (see {log})")
            return True
        self.found.append((cell, result))
        on_end(cell, result)
        return False


def run_shown(sweep: Sweep, num_workers: int, console: Console) -> int:
    """Run a sweep with its progress on a console; return how many of its students failed."""
    bars, num_found, num_cells = Bars(console), len(sweep.found), len(sweep.found) + len(sweep.waiting)
    bars.say(f"{num_cells} students" + (f", {num_found} of them finished before" if num_found else ""))
    num_ended = num_found
    with bars.bar("Students", total=num_cells, done=num_found) as bar:

        def on_end(cell: Cell, outcome: Result | str) -> None:
            nonlocal num_ended
            num_ended += 1
            if isinstance(outcome, str):
                what = f"failed: {outcome}"
            else:
                scores = outcome.scores[str(cell.recipe.seed)]
                what = f"{100 * scores['test_accuracy']:.2f} % in {duration(scores['seconds'])}"
            bars.say(f"{num_ended}/{num_cells} {cell.name}: {what}")
            bar.advance(told="")

        return sweep.run(num_workers, lambda cell, line: bar.advance(0, f"{cell.name}: {line}"), on_end)


def collect(output: Path) -> list[Result]:
    """Read the results of all finished cells of a folder. Raises OSError, and ValueError for invalid scores."""
    return RESULT_FILES.load(sorted(output.glob(f"*/{SCORES}")))


def run_cell(
    cell: Cell, folder: Path, connection: Connection, num_threads: int, is_patient: bool, is_lean: bool
) -> None:
    """Run a cell in this process, which was started for it, on at most `num_threads`.

    Sends over `connection` the reports of `run_student`; exits when the other end is closed. Where another process runs
    the cell, waits for it if `is_patient`, else exits with the status BUSY. A finished cell stays as it is; with
    `is_lean`, its folder keeps only the scores.
    """
    ignore_interrupts()  # the sweep terminates this process, which then saves its state
    threading.Thread(target=_end_with_sweep, args=(connection,), daemon=True).start()
    import torch

    from services.predict.training.train import StudentRun, run_student

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
        except BlockingIOError:
            sys.exit(BUSY)
        with (folder / LOG).open("a") as log:  # all further output of this process, tracebacks included
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        if cell.finished(folder) is not None:
            return  # another sweep has finished it

        def report(line: str) -> None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            connection.send(line)

        torch.set_num_threads(min(num_threads, torch.get_num_threads()))
        outcome = run_student(StudentRun(cell.data, cell.model, cell.recipe), folder, report)
        names = ("test_accuracy", "validation_accuracy", "best_step", "num_train", "num_parameters")
        scores = {name: getattr(outcome, name) for name in names} | {"seconds": round(outcome.seconds, 1)}
        RESULT_FILES.save([cell.result(scores)], folder / SCORES)
        for path in folder.iterdir() if is_lean else ():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in (SCORES, LOG, LOCK):
                path.unlink()


def _end_with_sweep(connection: Connection) -> None:
    """Exit when the sweep ends or is killed: it never sends anything, so `recv` returns only when it is gone."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)


def _context() -> BaseContext:
    """Make a multiprocessing context whose processes start with torch already imported, where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["services.predict.evaluation.sweep_preload"])
    return context


def _last_line(log: Path) -> str:
    """Read the last line of a failed process's log."""
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it exited without a message")
