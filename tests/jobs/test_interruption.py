"""Jobs on a terminal: a bar says how far they are, and Ctrl-C leaves a state and words that say how to go on."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.commands import trainer
from tests.documentation.blocks import ROOT
from tests.embed.conversations import write_conversations

pytestmark = [pytest.mark.process, pytest.mark.training]

NEVER = "100000"  # steps between two states, where Ctrl-C alone is to save one
CLIP = ["--steps", NEVER, "--checkpoint-every", NEVER, "--precision", "no", "--no-publish"]
SMALL = ["--batch-size", "6", "--width", "32", "--layers", "1"]
TUNING = ["--steps", NEVER, "--checkpoint-every", NEVER, "--precision", "no", "--batch-size", "4", "--no-publish"]
LITM = ["--lookup-steps", NEVER, "--documents", "3", "--tokens", "250", "--checkpoint-every", NEVER, "--no-publish"]
STARTERS = ROOT / "services" / "embed" / "starter"
TRAININGS = {
    "clip": [*CLIP, *SMALL, "--warmup-steps", "1"],
    "focallens": [*TUNING, "--base", str(STARTERS / "clip-shapes")],
    "clip-scenes": [
        *CLIP,
        *SMALL,
        "--stem-steps",
        "0",
        "--seeing-steps",
        "0",
        "--fact-steps",
        "0",
        "--naming-steps",
        "0",
        "--reading-steps",
        "0",
        "--matching-steps",
        "0",
        "--warmup-batch-size",
        "6",
        "--pictures",
        "4",
    ],
    "litm": LITM,
}
LLAMA = str(ROOT / "services" / "generate" / "starter" / "litm-facts")
SHAPES = ["--checkpoint", str(STARTERS / "focallens-shapes"), "--baseline", str(STARTERS / "clip-shapes")]
NOTHING_KEPT = "Stopped. Nothing is kept; run the same command to begin again."
MEASUREMENTS = {
    "colorshape": (["evaluate", "focallens", "colorshape", *SHAPES], NOTHING_KEPT),
    "litm": (
        ["evaluate", "litm", LLAMA, "--data", "generated", "--limit", "400"],
        "Stopped. The protocols that had ended are reported above, and kept with --save.",
    ),
    "calibrate": (["calibrate", LLAMA, "--data", "generated", "--save", os.devnull], NOTHING_KEPT),
}


@dataclass(frozen=True)
class Ended:
    status: int
    told: str


def run_until_ctrl_c(program: str, arguments: list[str], awaited: str) -> Ended:
    """Run a job on a terminal of its own, and press Ctrl-C there as soon as it shows a pattern."""
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        # what runs in a shell's background would bequeath that it ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-m", program, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True, preexec_fn=own_terminal,
    )  # fmt: skip
    os.close(theirs)
    told, is_pressed = "", False
    try:
        while piece := _read(ours):
            told += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece.decode(errors="replace"))
            if not is_pressed and re.search(awaited, told):
                os.write(ours, b"\x03")
                is_pressed = True
        return Ended(process.wait(), told)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # a terminal that nobody writes to any more
        return b""


def stop_training(name: str, folder: Path) -> int:
    """Stop a training by Ctrl-C; returns the step that it saved."""
    command = ["train", name, *TRAININGS[name], "--output", str(folder / "run")]
    if name == "focallens":
        command += write_conversations(folder)
    ended = run_until_ctrl_c(trainer(name)[1], command, r"/100\d{3}\b.*loss \d")
    assert ended.status == 130, ended.told
    assert "Stopping at the end of this step; press again to stop at once." in ended.told
    (step,) = re.findall(r"Stopped: step ([\d,]+) of [\d,]+ \([\w-]+\) is saved\. Run the same command", ended.told)
    assert "Traceback" not in ended.told
    state = max((folder / "run").glob("resume*.pt"), key=lambda path: path.stat().st_mtime)  # of its last stage
    assert torch.load(state, weights_only=True)["step"] == int(step) > 0
    return int(step)


@pytest.mark.parametrize("name", sorted(TRAININGS.keys() - {"litm"}))
def test_ctrl_c_saves_a_trainings_step_and_says_that_the_same_command_goes_on(name: str, tmp_path: Path) -> None:
    stop_training(name, tmp_path)


def test_the_same_command_goes_on_from_the_step_that_ctrl_c_saved(tmp_path: Path) -> None:
    """That the others go on from a state is held by their tests of killed jobs."""
    step = stop_training("litm", tmp_path)
    assert stop_training("litm", tmp_path) > step


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_ctrl_c_ends_a_measurement_that_shows_its_progress_and_says_what_is_kept(name: str) -> None:
    arguments, words = MEASUREMENTS[name]
    program = "starters" if "generated" in arguments else "services.cli.main"
    ended = run_until_ctrl_c(program, arguments, r" [1-9]\d*/")
    assert ended.status == 130, ended.told
    assert words in ended.told
    assert "Traceback" not in ended.told
