"""The job that aligns sizes changes the text tower alone, and continues where it was stopped."""

import json
import multiprocessing
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.nn.clip_model import OPEN_CLIP_WEIGHTS
from services.score.model.checkpoint import load_fsc_clip
from starters.score.training.train import app
from tests.file_events import before, die, putting
from tests.score.tiny import write_tiny_checkpoint

pytestmark = pytest.mark.slow

FAST = ["--pictures", "50", "--batch-size", "4", "--scenes", "2", "--checkpoint-every", "1"]


def align(base: Path, output: Path, *options: str) -> None:
    arguments = ["align-sizes", "--base", str(base), "--output", str(output), *FAST, "--no-publish", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def run_killed_job(arguments: list[str], state: Path, number: int) -> None:
    """Run a job as a process of its own does, until it saves this state for the `number`th time."""
    before(putting(state), number, die)
    app(arguments, standalone_mode=False)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / OPEN_CLIP_WEIGHTS)


def test_only_the_text_tower_learns(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base", local_weight=0.3)
    align(base, tmp_path / "out", "--steps", "2", "--num-evaluated", "4")
    before, after = weights(base), weights(tmp_path / "out" / "checkpoint")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "text_projection" in changed
    assert not {name for name in changed if name.startswith("visual.") or name == "logit_scale"}
    assert load_fsc_clip(tmp_path / "out" / "checkpoint").local_weight == 0.3
    described = json.loads((tmp_path / "out" / "checkpoint" / "checkpoint.json").read_text())
    assert (described["kind"], described["base"], described["training"]["steps"]) == ("fsc-clip", "base", 2)
    assert {"comp", "close", "claims"} <= described["metrics"].keys()


def test_a_killed_job_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    base, options = write_tiny_checkpoint(tmp_path / "base"), ["--steps", "3", "--num-evaluated", "0"]
    align(base, tmp_path / "steady", *options)
    killed = tmp_path / "killed"
    arguments = ["align-sizes", "--base", str(base), "--output", str(killed), *FAST, "--no-publish", *options]
    job = multiprocessing.get_context("spawn").Process(
        target=run_killed_job, args=(arguments, killed / "resume-training.pt", 2)
    )
    job.start()
    job.join()
    assert job.exitcode == -signal.SIGKILL
    assert not (killed / "checkpoint").exists()
    align(base, killed, *options)
    steady, continued = (weights(folder / "checkpoint") for folder in (tmp_path / "steady", killed))
    assert all(torch.equal(steady[name], continued[name]) for name in steady)
