"""A process that works and reports until it is killed at a random moment."""

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

# How often the tests kill one; a few times by default.
NUM_KILLS = int(os.environ.get("FOVEA_TEST_KILLS", "6"))
MAX_REPORTS = 80
# From the last report that it may still send to the kill: longer than most operations take.
MAX_DELAY_S = 0.01


@dataclass
class Reports:
    """Reports of a killed process: the operations that it had done, and the one that the kill may have interrupted."""

    done: list[Any]
    begun: Any | None = None


def until_killed(work: Callable[[Path, int, Connection], None], folder: Path, seed: int) -> Reports:
    """Run `work(folder, seed, connection)` in a process of its own, which sends (operation, whether it is done)
    before and after each, and kill it after a number of reports and a delay that follow from `seed`.

    Pipes carry what was sent before the kill, and a message of this size as a whole or not at all.
    """
    spawn = multiprocessing.get_context("spawn")
    receiving, sending = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(folder, seed, sending), daemon=True)
    process.start()
    sending.close()
    dice = random.Random(seed)
    wait_for = dice.randint(1, MAX_REPORTS)
    killing = Timer(dice.uniform(0, MAX_DELAY_S), process.kill)
    reports = Reports([])
    try:
        while True:
            operation, is_done = receiving.recv()
            reports.begun = None if is_done else operation
            if is_done:
                reports.done.append(operation)
            wait_for -= 1
            if wait_for == 0:
                killing.start()
    except EOFError:
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended by itself"
        return reports
    finally:
        killing.cancel()
        process.kill()
        process.join()
        receiving.close()
