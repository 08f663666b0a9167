"""A job that is stopped says what there is to continue from, and stays silent after that."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.jobs.interruption import NOTHING_SAVED, RESUMABLE
from tests.documentation.blocks import ROOT

SCRIPT = """
import atexit, os, signal, sys
import typer
from services.jobs.interruption import interruptible, resumable

app = typer.Typer()
atexit.register(os.kill, os.getpid(), signal.SIGINT)

@app.command()
@interruptible(resumable)
def job(output: str) -> None:
    raise KeyboardInterrupt

app()
"""


@pytest.mark.process
@pytest.mark.parametrize(("state", "words"), [(None, NOTHING_SAVED), ("resume-warmup.pt", RESUMABLE)])
def test_a_stopped_training_names_a_saved_step_only_if_there_is_one_and_a_late_ctrl_c_prints_nothing(
    tmp_path: Path, state: str | None, words: str
) -> None:
    if state is not None:
        (tmp_path / state).touch()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    stopped = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert stopped.returncode == 128 + signal.SIGINT
    assert stopped.stderr == f"{words}\n"
