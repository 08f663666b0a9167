"""The trainings of the packaged embed checkpoints resume, continue, publish, and agree over several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from services.embed.model.focallens_engine import load_focallens
from services.nn.clip_model import OPEN_CLIP_WEIGHTS
from starters.embed import train_clip, train_focallens
from tests.killed_job import run_until_killed

FAST = ["--precision", "no", "--checkpoint-every", "2", "--images-per-class", "4"]
CLIP = ["--batch-size", "8", "--width", "64", "--layers", "2", *FAST]
FOCALLENS = ["--batch-size", "4", *FAST]


def job(app: typer.Typer, *arguments: str) -> None:
    """A job in this process."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP after a few steps."""
    output = tmp_path_factory.mktemp("clip")
    job(train_clip.app, *CLIP, "--output", str(output), "--warmup-steps", "2", "--steps", "4", "--no-publish")
    return output / "checkpoint"


def weights(directory: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(directory / "checkpoint" / name)


@pytest.mark.slow
def test_a_killed_job_that_is_started_again_ends_with_the_same_weights(base: Path, tmp_path: Path) -> None:
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    arguments = [*FOCALLENS, "--base", str(base), "--steps", "8", "--no-publish"]
    job(train_focallens.app, *arguments, "--output", str(steady))
    run_until_killed(killed / "resume-tuning.pt", "starters.embed.train_focallens", *arguments, "--output", str(killed))
    assert not (killed / "checkpoint").exists()
    job(train_focallens.app, *arguments, "--output", str(killed))
    expected, resumed = weights(steady, "model.safetensors"), weights(killed, "model.safetensors")
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.slow
def test_a_tuning_publishes_what_it_measured_and_states_what_it_knows(base: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    tuning = ["--base", str(base), "--steps", "2", "--seed", "5", "--store-url", url]
    job(train_focallens.app, *FOCALLENS, *tuning, "--output", str(tmp_path / "run"))
    store = Store.open(url)
    version = store.resolve("focallens-shapes")
    manifest = store.manifest("focallens-shapes", version)
    assert manifest.metrics.keys() >= {"average_map", "map_color_worded_anew"}
    assert "photographs it does not know" in str(manifest.statement)
    load_focallens(store.fetch("focallens-shapes", version, tmp_path / "cache"))


@pytest.mark.slow
def test_trainings_continue_from_earlier_checkpoints(base: Path, tmp_path: Path) -> None:
    still = ["--steps", "1", "--learning-rate", "1e-12", "--no-publish"]
    alone = ["--warmup-steps", "0", "--weight-decay", "0", "--start", str(base)]
    job(train_clip.app, *CLIP, *still, *alone, "--output", str(tmp_path / "clip"))
    earlier, later = load_file(base / OPEN_CLIP_WEIGHTS), weights(tmp_path / "clip", OPEN_CLIP_WEIGHTS)
    assert torch.equal(earlier["visual.proj"], later["visual.proj"])
    tuning = [*FOCALLENS, "--base", str(base), *still]
    job(train_focallens.app, *tuning, "--output", str(tmp_path / "one"), "--seed", "1")
    continued = ["--start", str(tmp_path / "one" / "checkpoint"), "--seed", "2"]
    job(train_focallens.app, *tuning, *continued, "--output", str(tmp_path / "two"))
    one, two = (weights(tmp_path / name, "model.safetensors") for name in ("one", "two"))
    assert torch.equal(one["condition_projection.weight"], two["condition_projection.weight"])


@pytest.mark.slow
def test_a_condition_that_is_never_asked_must_be_known(base: Path, tmp_path: Path) -> None:
    arguments = [*FOCALLENS, "--base", str(base), "--output", str(tmp_path), "--never-asked", "taste"]
    with pytest.raises(AssertionError, match="'taste' is not one of"):
        job(train_focallens.app, *arguments)


@pytest.mark.slow
def test_two_processes_tune_one_model(base: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [*FOCALLENS, "--base", str(base), "--steps", "2", "--output", str(tmp_path), "--no-publish"]
    # neither a bank nor the fixed scale: the negatives come from the other process
    options = ["--no-bank", "--scale", "0"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, "-m", "starters.embed.train_focallens", *arguments, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    load_focallens(tmp_path / "checkpoint")
