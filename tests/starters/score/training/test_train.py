"""The starter's trainings resume where they were killed, and publish what they made."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.core.store.store import Store
from services.score.model.checkpoint import load_fsc_clip
from starters.score.training.train import app

pytestmark = pytest.mark.slow

FAST = ["--precision", "no", "--checkpoint-every", "2"]
QUIET = ["--no-publish"]
BASE = [
    "clip-scenes",
    "--batch-size",
    "6",
    "--warmup-batch-size",
    "6",
    "--width",
    "32",
    "--layers",
    "1",
    "--stem-steps",
    "1",
    "--fact-steps",
    "2",
    "--naming-steps",
    "1",
    "--matching-steps",
    "1",
    "--pictures",
    "6",
    "--num-evaluated",
    "6",
    *FAST,
]
TUNING = ["fsc-clip-scenes", "--batch-size", "4", "--steps", "2", *FAST]


def job(*arguments: str) -> None:
    """Run a job in this process."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def test_the_small_clip_is_published_and_tuned_by_its_name(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    options = ["--seeing-steps", "2", "--reading-steps", "2", "--steps", "2", "--store-url", url]
    job(*BASE, *options, "--output", str(tmp_path / "base"))
    tuning = [*TUNING, "--seed", "5", "--set", "local_weight=0.3", "--num-evaluated", "6", "--store-url", url]
    job(*tuning, "--output", str(tmp_path / "run"), "--name", "mine")
    store = Store.open(url)
    manifest = store.manifest("mine", store.resolve("mine"))
    assert (manifest.kind, manifest.seed, manifest.training["steps"]) == ("fsc-clip", 5, 2)
    assert manifest.base is not None and manifest.base.startswith("clip-scenes@")
    assert manifest.training["negatives"] == ["negclip", "replace", "bigram_shuffle", "relation"]
    assert {"comp", "swap_att", "zs", "zs_count", "i2t", "t2i", "claims", "close"} <= manifest.metrics.keys()
    assert load_fsc_clip(tmp_path / "run" / "checkpoint").local_weight == 0.3


@pytest.mark.parametrize("recipe", ["scenes", "scenes-seeing"])
def test_a_tuning_learns_from_scenes_and_pictures_by_a_recipe(recipe: str, tmp_path: Path) -> None:
    job(
        *BASE, "--seeing-steps", "1", "--reading-steps", "0", "--steps", "1", "--output", str(tmp_path / "base"), *QUIET
    )
    base = ["--base", str(tmp_path / "base" / "checkpoint")]
    job(*TUNING, *base, "--recipe", recipe, "--no-publish", "--num-evaluated", "0", "--output", str(tmp_path / "run"))
    described = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert (described["training"]["recipe"], described["training"]["method"]) == (recipe, "fsc-clip")
