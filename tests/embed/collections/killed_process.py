"""A process that works and reports until it is killed at a random moment."""

import multiprocessing
import random
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

MAX_LIFE_S = 0.25


@dataclass
class Reports:
    """What a killed process sent: the operations that it had done, and the one that the kill may have caught."""

    done: list[Any]
    begun: Any | None = None


def until_killed(work: Callable[[Path, int, Connection], None], folder: Path, seed: int) -> Reports:
    """Run `work(folder, seed, connection)` in a process of its own, which sends (operation, whether it is done)
    before and after each, and kill it at a moment after its first report that follows from `seed`.

    Pipes carry what was sent before the kill, and a message of this size as a whole or not at all.
    """
    spawn = multiprocessing.get_context("spawn")
    receiving, sending = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(folder, seed, sending), daemon=True)
    process.start()
    sending.close()
    killing = Timer(random.Random(seed).uniform(0, MAX_LIFE_S), process.kill)
    reports = Reports([])
    try:
        reports.begun, _ = receiving.recv()
        killing.start()
        while True:
            operation, is_done = receiving.recv()
            reports.begun = None if is_done else operation
            if is_done:
                reports.done.append(operation)
    except EOFError:
        return reports
    finally:
        process.kill()
        process.join()
        process.close()
        receiving.close()
