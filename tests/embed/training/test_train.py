"""A tuning resumes where it was killed, publishes what it made, and agrees over several processes."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from services.embed.model.focallens_engine import load_focallens
from services.embed.training.train import app
from services.jobs.training import Run, learning_rate
from services.nn.clip_model import create_clip, save_clip
from tests.embed.conversations import write_conversations
from tests.embed.tiny import CONFIG
from tests.killed_job import run_until_killed


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a fast tuning of a tiny CLIP on conversations."""
    folder = tmp_path_factory.mktemp("data")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_clip(create_clip(CONFIG), folder / "clip")
    fast = ["--batch-size", "4", "--precision", "no", "--checkpoint-every", "2"]
    return ["--base", str(folder / "clip"), *write_conversations(folder), *fast]


def job(*arguments: str) -> None:
    """A job in this process."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "checkpoint" / "model.safetensors")


@pytest.mark.slow
def test_a_killed_job_that_is_started_again_ends_with_the_same_weights(arguments: list[str], tmp_path: Path) -> None:
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    tuning = [*arguments, "--steps", "8", "--no-publish"]
    job(*tuning, "--output", str(steady))
    run_until_killed(killed / "resume-tuning.pt", "services.embed.training.train", *tuning, "--output", str(killed))
    assert not (killed / "checkpoint").exists()
    job(*tuning, "--output", str(killed))
    expected, resumed = weights(steady), weights(killed)
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.slow
def test_a_resume_state_of_other_arguments_is_refused(arguments: list[str], tmp_path: Path) -> None:
    job(*arguments, "--steps", "2", "--output", str(tmp_path), "--no-publish")
    with pytest.raises(ValueError, match=r"\(--steps was 2, and is 3\)"):
        job(*arguments, "--steps", "3", "--output", str(tmp_path), "--no-publish")


@pytest.mark.slow
def test_a_job_publishes_a_checkpoint_whose_manifest_says_how_it_was_made(arguments: list[str], tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    job(*arguments, "--steps", "2", "--seed", "5", "--store-url", url, "--output", str(tmp_path / "run"))
    store = Store.open(url)
    version = store.resolve("focallens-shapes")
    manifest = store.manifest("focallens-shapes", version)
    assert (manifest.kind, manifest.base, manifest.seed) == ("focallens-clip", arguments[1], 5)
    assert manifest.training["steps"] == 2
    load_focallens(store.fetch("focallens-shapes", version, tmp_path / "cache"))


@pytest.mark.slow
def test_a_tuning_continues_from_an_earlier_checkpoint(arguments: list[str], tmp_path: Path) -> None:
    tuning = [*arguments, "--steps", "1", "--learning-rate", "1e-12", "--no-publish"]
    job(*tuning, "--output", str(tmp_path / "one"), "--seed", "1")
    job(*tuning, "--output", str(tmp_path / "two"), "--start", str(tmp_path / "one" / "checkpoint"), "--seed", "2")
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    assert torch.equal(one["condition_projection.weight"], two["condition_projection.weight"])


@pytest.mark.slow
def test_the_papers_settings_tune_a_model(arguments: list[str], tmp_path: Path) -> None:
    paper = ["--visibility", "full", "--scale", "0", "--accumulate", "2"]
    job(*arguments, *paper, "--steps", "2", "--output", str(tmp_path), "--no-publish")
    assert json.loads((tmp_path / "checkpoint" / "focallens.json").read_text())["visibility"] == "full"


@pytest.mark.slow
def test_two_processes_tune_one_model(arguments: list[str], tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--steps", "2", "--scale", "0", "--output", str(tmp_path), "--no-publish"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
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
