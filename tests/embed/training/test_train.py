"""Training jobs resume where they were killed, publish what they made, and agree over several processes."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from services.embed.model.checkpoint import load_focallens
from services.embed.training.train import app
from services.jobs.training import Run, learning_rate
from services.nn.clip_model import OPEN_CLIP_WEIGHTS
from tests.killed_job import run_until_killed

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = ["--precision", "no", "--checkpoint-every", "2", "--images-per-class", "4"]
CLIP = ["clip", "--batch-size", "8", "--width", "64", "--layers", "2", *FAST]
FOCALLENS = ["focallens", "--batch-size", "4", *FAST]


def job(*arguments: str) -> None:
    """A job in this process."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP after a few steps."""
    output = tmp_path_factory.mktemp("clip")
    job(*CLIP, "--output", str(output), "--warmup-steps", "2", "--steps", "4", "--no-publish")
    return output / "checkpoint"


def weights(directory: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(directory / "checkpoint" / name)


@pytest.mark.slow
def test_a_killed_job_that_is_started_again_ends_with_the_same_weights(base: Path, tmp_path: Path) -> None:
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    arguments = [*FOCALLENS, "--base", str(base), "--steps", "8", "--no-publish"]
    job(*arguments, "--output", str(steady))
    run_until_killed(killed / "resume-tuning.pt", "services.embed.training.train", *arguments, "--output", str(killed))
    assert not (killed / "checkpoint").exists()
    job(*arguments, "--output", str(killed))
    expected, resumed = weights(steady, "model.safetensors"), weights(killed, "model.safetensors")
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.slow
def test_a_resume_state_of_other_arguments_is_refused(base: Path, tmp_path: Path) -> None:
    job(*FOCALLENS, "--base", str(base), "--steps", "2", "--output", str(tmp_path), "--no-publish")
    with pytest.raises(ValueError, match=r"\(--steps was 2, and is 3\)"):
        job(*FOCALLENS, "--base", str(base), "--steps", "3", "--output", str(tmp_path), "--no-publish")


@pytest.mark.slow
def test_a_job_publishes_a_checkpoint_whose_manifest_says_how_it_was_made(base: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    tuning = ["--base", str(base), "--steps", "2", "--seed", "5", "--store-url", url]
    job(*FOCALLENS, *tuning, "--output", str(tmp_path / "run"))
    store = Store.open(url)
    version = store.resolve("focallens-shapes")
    manifest = store.manifest("focallens-shapes", version)
    assert (manifest.kind, manifest.base, manifest.seed) == ("focallens-clip", str(base), 5)
    assert manifest.training["steps"] == 2
    assert "average_map" in manifest.metrics
    assert "photographs it does not know" in str(manifest.statement)
    load_focallens(store.fetch("focallens-shapes", version, tmp_path / "cache"))


@pytest.mark.slow
def test_trainings_continue_from_earlier_checkpoints(base: Path, tmp_path: Path) -> None:
    still = ["--steps", "1", "--learning-rate", "1e-12", "--no-publish"]
    job(
        *CLIP,
        *still,
        "--warmup-steps",
        "0",
        "--weight-decay",
        "0",
        "--start",
        str(base),
        "--output",
        str(tmp_path / "clip"),
    )
    earlier, later = load_file(base / OPEN_CLIP_WEIGHTS), weights(tmp_path / "clip", OPEN_CLIP_WEIGHTS)
    assert torch.equal(earlier["visual.proj"], later["visual.proj"])
    tuning = [*FOCALLENS, "--base", str(base), *still]
    job(*tuning, "--output", str(tmp_path / "one"), "--seed", "1")
    job(*tuning, "--output", str(tmp_path / "two"), "--start", str(tmp_path / "one" / "checkpoint"), "--seed", "2")
    one, two = (weights(tmp_path / name, "model.safetensors") for name in ("one", "two"))
    assert torch.equal(one["condition_projection.weight"], two["condition_projection.weight"])


@pytest.mark.slow
def test_a_condition_that_is_never_asked_must_be_known(base: Path, tmp_path: Path) -> None:
    arguments = [*FOCALLENS, "--base", str(base), "--output", str(tmp_path), "--never-asked", "taste"]
    with pytest.raises(AssertionError, match="'taste' is not one of"):
        job(*arguments)


@pytest.mark.slow
def test_llava_conversations_tune_a_model(base: Path, tmp_path: Path) -> None:
    records = []
    for i in range(4):
        Image.fromarray(np.full((40, 60, 3), 60 * i, dtype=np.uint8)).save(tmp_path / f"{i}.png")
        turns = [{"from": "human", "value": f"<image>\nHow bright is {i}?"}, {"from": "gpt", "value": f"level {i}"}]
        records.append({"id": str(i), "image": f"{i}.png", "conversations": turns * (1 + i % 2)})
    (tmp_path / "llava.json").write_text(json.dumps(records))
    data = ["--llava", str(tmp_path / "llava.json"), "--image-folder", str(tmp_path)]
    paper = ["--visibility", "full", "--scale", "0", "--plain-weight", "0", "--accumulate", "2"]
    output = tmp_path / "run"
    job(*FOCALLENS, *data, *paper, "--base", str(base), "--steps", "2", "--output", str(output), "--no-publish")
    assert json.loads((output / "checkpoint" / "focallens.json").read_text())["visibility"] == "full"


@pytest.mark.slow
def test_two_processes_tune_one_model(base: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [*FOCALLENS, "--base", str(base), "--steps", "2", "--output", str(tmp_path), "--no-publish"]
    # neither a bank nor the fixed scale: the negatives come from the other process
    options = ["--no-bank", "--scale", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, "-m", "services.embed.training.train", *arguments, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    load_focallens(tmp_path / "checkpoint")


def test_the_learning_rate_warms_up_and_ends_at_zero(tmp_path: Path) -> None:
    run = Run(tmp_path, 100, 8, 1.0, 0.0, 0.1, 0)
    rates = [learning_rate(run, step) for step in range(100)]
    assert rates[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[-1] < 0.001
