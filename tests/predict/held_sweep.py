"""`python -m tests.predict.held_sweep …`: as `services.predict.evaluate`, but students that are distilled step by step
get no further than their first state, where they wait for their end, however fast they are."""

import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import services.predict.sweep
from services.predict.evaluate import app
from services.predict.sweep_cell import Cell, Terms, run_cell
from services.predict.training_state import STATE_FILE


def wait_at_the_second_state(path: Path) -> None:
    """An audit event comes before what it announces."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "os.rename" and str(arguments[1]) == str(path):
            seen += 1
            if seen == 2:
                threading.Event().wait()

    sys.addaudithook(watch)


def run_held_cell(cell: Cell, folder: Path, connection: Connection, terms: Terms) -> None:
    if cell.recipe.method == "step-by-step":
        wait_at_the_second_state(folder / STATE_FILE)
    run_cell(cell, folder, connection, terms)


if __name__ == "__main__":
    vars(services.predict.sweep)["run_cell"] = run_held_cell
    app()
