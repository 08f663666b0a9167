"""`python -m tests.predict.held_sweep …`: as `services.predict.evaluation.evaluate`, but students that are distilled
step by step get no further than their first state, where they wait for their end, however fast they are."""

import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import services.predict.evaluation.sweep
from services.predict.evaluation.evaluate import app
from services.predict.evaluation.sweep import Cell, run_cell
from services.predict.training.loop import STATE_FILE
from tests.file_events import before, putting


def run_held_cell(cell: Cell, folder: Path, connection: Connection, *terms: Any) -> None:
    if cell.recipe.method == "step-by-step":
        before(putting(folder / STATE_FILE), 2, threading.Event().wait)
    run_cell(cell, folder, connection, *terms)


if __name__ == "__main__":
    vars(services.predict.evaluation.sweep)["run_cell"] = run_held_cell
    app()
