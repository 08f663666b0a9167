"""A tuning resumes where it was killed, publishes what it made, and agrees over several processes."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from services.embed.data.triplets import LlavaData, LlavaTriplets
from services.embed.model.focallens_engine import load_focallens
from services.embed.training.objectives import Contrast, TripletData
from services.embed.training.recipe import ClipRecipe, MllmRecipe, Recipe
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
    tuning = [*arguments, "--steps", "1", "--set", "learning_rate=1e-12", "--no-publish"]
    job(*tuning, "--output", str(tmp_path / "one"), "--seed", "1")
    job(*tuning, "--output", str(tmp_path / "two"), "--start", str(tmp_path / "one" / "checkpoint"), "--seed", "2")
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    assert torch.equal(one["condition_projection.weight"], two["condition_projection.weight"])


@pytest.mark.slow
def test_the_papers_settings_tune_a_model(arguments: list[str], tmp_path: Path) -> None:
    paper = ["--recipe", "paper", "--symmetric", "--accumulate", "2"]
    job(*arguments, *paper, "--steps", "2", "--output", str(tmp_path), "--no-publish")
    assert json.loads((tmp_path / "checkpoint" / "focallens.json").read_text())["visibility"] == "full"


@pytest.mark.slow
def test_two_processes_tune_as_one_does(arguments: list[str], tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--recipe", "paper", "--symmetric", "--set", "learning_rate=1e-3", "--steps", "1", "--no-publish"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, "-m", "services.embed.training.train", *arguments, *options]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "two")],
        env=environment, capture_output=True, text=True, timeout=570, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    job(*arguments, *options, "--output", str(tmp_path / "one"))
    job(*arguments, *options, "--output", str(tmp_path / "before"), "--set", "learning_rate=1e-12")
    one, two, before = (weights(tmp_path / name) for name in ("one", "two", "before"))
    moved = sum(float((one[name] - before[name]).square().sum()) for name in one) ** 0.5
    apart = sum(float((one[name] - two[name]).square().sum()) for name in one) ** 0.5
    assert apart < 0.02 * moved


PAPER = {  # by the page of the dissertation
    "base": ("ViT-L-14-336", "section 5.4, page 87"),
    "pretrained": ("openai", "section 5.4, page 87"),
    "batch_size": (2048, "Table D.2, page 146"),
    "epochs": (20, "Table D.2, page 146"),
    "learning_rate": (2e-5, "Table D.2, page 146"),
    "weight_decay": (0.0, "Table D.2, page 146"),
    "warmup_ratio": (0.03, "Table D.2, page 146"),
    "steps": (None, "Table D.2, page 146: epochs"),
    "scale": (0.0, "scaled softmax following CLIP, page 85: its own temperature"),
    "symmetric": (False, "softmax over the rows, page 85"),
    "merges_answers": (False, "Eq. 5.1, page 85: every answer of the batch"),
    "condition_layer": (0, "section 5.3.2, page 86: fed into the encoder with the other tokens"),
    "visibility": ("full", "section 5.3.2, page 86: one more token"),
}
OF_CLIP = ("base", "pretrained", "condition_layer", "visibility")
PAPER_MLLM = {
    **{key: value for key, value in PAPER.items() if key not in OF_CLIP},
    "batch_size": (384, "Table D.2, page 146"),
    "epochs": (2, "Table D.2, page 146"),
    "lora_rank": (0, "section 5.3.1, page 86: no part of the language model stays"),
}


@pytest.mark.parametrize(("kind", "paper"), [(ClipRecipe, PAPER), (MllmRecipe, PAPER_MLLM)])
def test_the_papers_recipe_has_every_number_of_the_paper(
    kind: type[Recipe], paper: dict[str, tuple[Any, str]], tmp_path: Path
) -> None:
    recipe = kind.read("paper")
    assert asdict(recipe) == {key: value for key, (value, _) in paper.items()}
    of_its_base: dict[str, Any] = {"pretrained": None} if kind is ClipRecipe else {}
    assert replace(recipe, **of_its_base) == kind(), "the defaults of a user's own file"
    run = recipe.run(150_000, output=tmp_path, seed=0)
    assert run.num_steps == math.ceil(150_000 * paper["epochs"][0] / paper["batch_size"][0])
    assert (run.batch_size, run.learning_rate, run.weight_decay, run.warmup_ratio) == (
        *(paper[key][0] for key in ("batch_size", "learning_rate", "weight_decay", "warmup_ratio")),
    )


def test_our_own_recipes_say_what_they_add() -> None:
    both: dict[str, Any] = {"batch_size": 64, "merges_answers": True}
    clip: dict[str, Any] = {**both, "base": "clip-shapes", "steps": 1500, "scale": 10.0}
    clip |= {"learning_rate": 5e-4, "visibility": "readout"}
    mllm: dict[str, Any] = {**both, "steps": 1000, "learning_rate": 2e-4, "lora_rank": 128}
    assert ClipRecipe.read("fovea") == replace(ClipRecipe(), **clip)
    assert MllmRecipe.read("fovea") == replace(MllmRecipe(), **mllm)
    assert ClipRecipe.names() == MllmRecipe.names() == ["fovea", "paper"]


@pytest.mark.slow
def test_a_tuning_may_be_as_long_as_some_passes_over_the_images(arguments: list[str], tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    job(*arguments, "--epochs", "3", "--batch-size", "2", "--store-url", url, "--output", str(tmp_path / "run"))
    store = Store.open(url)
    training = store.manifest("focallens-shapes", store.resolve("focallens-shapes")).training
    assert (training["epochs"], training["steps"], training["recipe"]) == (3, 6, "fovea")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--epochs", "3", "--steps", "2"], "both say how long to train: give one"),
        (["--recipe", "papers"], "there is no recipe 'papers'; available: fovea, paper, a .toml file"),
        (["--set", "folder=recipes"], "'folder=recipes' is not KEY=VALUE of"),
        (["--set", "visibility=half"], "visibility: Input should be 'full' or 'readout'"),
        (["--set", "spelling=0.3"], "'spelling=0.3' is not KEY=VALUE of base, batch_size, condition_layer"),
    ],
)
def test_what_makes_no_tuning_is_refused_by_name(
    arguments: list[str], options: list[str], said: str, tmp_path: Path
) -> None:
    refused = CliRunner().invoke(app, [*arguments, *options, "--output", str(tmp_path)])
    assert refused.exit_code == 2
    assert said in re.sub(r"\s+", " ", refused.output)


def test_instructions_are_read_as_they_are_written_at_every_step(tmp_path: Path) -> None:
    write_conversations(tmp_path)
    clip = create_clip(CONFIG)
    data = TripletData(
        clip.tokenizer, LlavaTriplets(LlavaData(tmp_path / "llava.json", tmp_path), clip.transform, 0, 4)
    )
    written = {tuple(row) for row in clip.tokenizer([f"How bright is {i}?" for i in range(4)]).tolist()}
    for step in range(20):
        assert {tuple(row) for row in data(step).condition_ids.tolist()} == written


@pytest.mark.parametrize("merges", [True, False])
def test_the_symmetric_loss_adds_each_answers_choice_among_the_rows(merges: bool) -> None:
    texts, scale = torch.eye(2), 2.0
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    # S = ((1, 0), (0.6, 0.8)), times 2
    by_row = (math.log1p(math.exp(-2.0)) + math.log1p(math.exp(-0.4))) / 2
    by_answer = (math.log1p(math.exp(-0.8)) + math.log1p(math.exp(-1.6))) / 2
    ids = torch.tensor([[0], [1]])
    for symmetric, expected in ((False, by_row), (True, (by_row + by_answer) / 2)):
        loss = Contrast(symmetric, merges)(rows, ids, lambda ids: texts[ids[:, 0]], scale)
        assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_an_answer_that_two_rows_give_counts_twice_in_the_papers_loss() -> None:
    rows, ids = torch.eye(2)[[0, 1, 0]], torch.tensor([[0], [1], [0]])
    texts = torch.eye(2)
    # logits of a row: 1 for each equal answer of the batch, 0 for each other one
    paper = (2 * (math.log(2 * math.e + 1) - 1) + math.log(math.e + 2) - 1) / 3
    ours = math.log(math.e + 1) - 1
    for merges, expected in ((False, paper), (True, ours)):
        loss = Contrast(merges_answers=merges)(rows, ids, lambda ids: texts[ids[:, 0]], 1.0)
        assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_the_learning_rate_warms_up_and_ends_at_zero(tmp_path: Path) -> None:
    run = Run(tmp_path, 100, 8, 1.0, 0.0, 0.1, 0)
    rates = [learning_rate(run, step) for step in range(100)]
    assert rates[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[-1] < 0.001
