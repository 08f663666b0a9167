"""`python -m tests.monitoring.faulty_predict`: the predict service, whose engine fails when a file says so.

While `hang` lies in the folder that `FAULTS` names, a batch does not end; while `scarce` does, none finds memory.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from services.core.serving.server import run
from services.core.settings import read_settings
from services.predict.app import create_predict
from services.predict.engine import PredictEngine
from services.predict.settings import PredictSettings

FAULTS = "FAULTS_OF_A_TEST"
POLL_S = 0.1

run_batch = PredictEngine.run_batch


def run_batch_or_fail(engine: PredictEngine, items: Sequence[Any]) -> Any:
    faults = Path(os.environ[FAULTS])
    while (faults / "hang").exists():
        time.sleep(POLL_S)  # a file tells nobody when it is gone
    if (faults / "scarce").exists():
        raise torch.OutOfMemoryError("CUDA out of memory")
    return run_batch(engine, items)


if __name__ == "__main__":
    setattr(PredictEngine, "run_batch", run_batch_or_fail)  # noqa: B010 - what a device does is not ours to arrange
    sys.exit(run(create_predict, read_settings(PredictSettings)))
