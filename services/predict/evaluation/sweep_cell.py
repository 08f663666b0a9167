"""A cell of a sweep: one student, in a folder and a process of its own.

<folder>/scores.json   its result, written last: a cell that has it is finished
<folder>/log.txt       output of its process
<folder>/lock          held by the process that runs it
…                      files of `run_student`
"""

import fcntl
import json
import math
import os
import re
import shutil
import sys
import threading
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from services.jobs.interruption import ignore_interrupts
from services.predict.evaluation.results import RESULT_FILES, Result
from services.predict.training.recipe import Recipe
from services.predict.training.sources import Source

SCORES, LOG, LOCK = "scores.json", "log.txt", "lock"
CHECKPOINT = "checkpoint"
# message of a cell's process to the sweep; any other message is a line about its training
BUSY = "\0busy"


class SweepError(ValueError):
    """Cells that can't be run in one folder; the message can be shown to users."""


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
        """Read the cell's result from its folder; None if there is none yet.

        Raises SweepError if the folder holds a student with other settings.
        """
        try:
            (found,) = RESULT_FILES.load([folder / SCORES])
        except FileNotFoundError:
            return None
        expected = replace(self.result({}), scores=found.scores)
        if found != expected:
            before, now = ({**asdict(one), **one.settings} for one in (found, expected))
            differences = [
                f"{name} was {before.get(name)!r}, and is {now.get(name)!r}"
                for name in sorted({*before, *now} - {"settings"})
                if before.get(name) != now.get(name)
            ]
            raise SweepError(f"{folder} was run with other settings: {'; '.join(differences)}")
        return found


@dataclass(frozen=True)
class Terms:
    """Options for running a cell.

    `num_threads` is the most threads. `is_patient` tells whether to wait for another process that runs the cell, or to
    give up; `is_lean` whether to keep only the scores in its folder.
    """

    num_threads: int
    is_patient: bool
    is_lean: bool


def run_cell(cell: Cell, folder: Path, connection: Connection, terms: Terms) -> None:
    """Run a cell in this process, which was started for it.

    Sends over `connection` the reports of `run_student`, or BUSY if another process runs the cell; exits when the other
    end is closed. A finished cell stays as it is.
    """
    ignore_interrupts()  # the sweep terminates this process, which then saves its state
    threading.Thread(target=_end_with_sweep, args=(connection,), daemon=True).start()
    from services.predict.training.runs import StudentRun, run_student

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if terms.is_patient else fcntl.LOCK_NB))
        except BlockingIOError:
            connection.send(BUSY)
            return
        _log_to(folder / LOG)
        if cell.finished(folder) is not None:
            return  # another sweep has finished it

        def report(line: str) -> None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            connection.send(line)

        _limit_threads(terms.num_threads)
        run = StudentRun(cell.data, cell.model, cell.recipe)
        outcome = run_student(run, folder, report)
        scores = {
            "test_accuracy": outcome.test_accuracy,
            "validation_accuracy": outcome.validation_accuracy,
            "best_step": outcome.best_step,
            "num_train": outcome.num_train,
            "num_parameters": count_parameters(folder / CHECKPOINT),
            "seconds": round(outcome.seconds, 1),
        }
        RESULT_FILES.save([cell.result(scores)], folder / SCORES)
        if terms.is_lean:
            _leave_scores(folder)


def count_parameters(checkpoint: Path) -> int:
    """Count the parameters in a folder's safetensors, shared ones once. Raises ValueError if there are none."""
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{checkpoint} contains no safetensors")
    number = 0
    for path in files:
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        number += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return number


def _end_with_sweep(connection: Connection) -> None:
    """Exit when the sweep ends or is killed: it never sends anything, so `recv` returns only when it is gone."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)


def _log_to(path: Path) -> None:
    """Append all further output of this process to a file, including tracebacks."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _limit_threads(num_threads: int) -> None:
    import torch

    torch.set_num_threads(min(num_threads, torch.get_num_threads()))


def _leave_scores(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (SCORES, LOG, LOCK):
            path.unlink()
