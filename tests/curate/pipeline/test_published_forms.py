"""A published data set is read by trainings and evaluations as it is."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from services.curate.pipeline.recipe import read_recipe
from services.curate.pipeline.steps import run
from services.embed.data.triplets import LlavaData
from services.embed.training.train import app as focallens_app
from services.jobs.sugarcrepe import read_pairs
from services.score.data.captioned_images import open_table
from services.score.evaluation.evaluate import app as evaluation
from services.score.training.train import app as fsc_clip_app
from starters.curate.scenes import written_scenes
from tests.score.tiny import write_tiny_checkpoint

CLIP = Path(__file__).parents[3] / "services" / "embed" / "starter" / "clip-shapes"
RECIPE = """
name = "Scenes"
output = "out"
[captions]
file = "scenes/captions.jsonl"
[generate]
method = "rules"
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "recipe.toml").write_text(RECIPE)
    written_scenes(folder / "scenes", 12, seed=0, side=32)
    run(read_recipe(folder / "recipe.toml"), Console(quiet=True))
    return folder / "out"


@pytest.fixture(scope="module")
def images(output: Path) -> Path:
    return output.parent / "scenes"


def test_fsc_clip_reads_the_pairs_as_a_table_of_images_and_captions(output: Path, images: Path) -> None:
    pairs = read_pairs(output / "published" / "pairs.jsonl")
    table = open_table(output / "published" / "pairs.jsonl", images)
    assert len(table) == len(pairs)
    true = {pair.caption for pair in pairs}
    for position in range(8):
        image, caption, *_ = table.example(0, position)
        assert image.size == (32, 32) and caption in true


def test_focallens_reads_the_choices_as_llavas_conversations(output: Path, images: Path) -> None:
    data = LlavaData(output / "published" / "instructions.json", images)
    paths, batch = data.batch(0, 0, 6)
    assert len(data.records) == len(read_pairs(output / "published" / "pairs.jsonl"))
    assert all(path.exists() for path in paths)
    assert torch.equal(batch.image_index, torch.arange(6))
    assert all(answer in asked for asked, answer in zip(batch.instructions, batch.answers, strict=True) if asked)


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("sugarcrepe", "published"),
        ("sugarcrepe-pp", "published/sugarcrepe_pp"),
        ("pairs", "published/pairs.jsonl"),
        ("pairs", "published"),
    ],
)
def test_evaluations_of_compositionality_read_it(
    output: Path, images: Path, tmp_path: Path, command: str, folder: str
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    arguments = [command, "--data", str(output / folder), "--images", str(images), "--model", str(checkpoint)]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(evaluation, arguments)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout.splitlines()[-1])
    assert {"replace_obj", "swap_att"} <= found["sizes"].keys() and "add_obj" not in found["sizes"]
    assert ("negate" in found["aggregates"]) == folder.endswith("pairs.jsonl")


@pytest.mark.slow
@pytest.mark.training
def test_both_trainings_take_a_step_on_it(output: Path, images: Path, tmp_path: Path) -> None:
    fast = ["--precision", "no", "--no-publish", "--batch-size", "4"]
    base = ["--base", str(CLIP), "--steps", "1"]
    published = output / "published"
    llava = ["--llava", str(published / "instructions.json"), "--image-folder", str(images)]
    job(focallens_app, *fast, *base, *llava, "--output", str(tmp_path / "focallens"))
    table = ["--data", "folder", "--images", str(published / "pairs.jsonl"), "--image-folder", str(images)]
    stored = ["--stored", str(published / "pairs.jsonl")]
    job(fsc_clip_app, *fast, *base, *table, *stored, "--output", str(tmp_path / "fsc"))
    described = json.loads((tmp_path / "fsc" / "checkpoint" / "checkpoint.json").read_text())
    assert described["training"]["negatives"] == ["replace", "swap", "negate", "shuffle"]
    assert (tmp_path / "focallens" / "checkpoint").is_dir() and (tmp_path / "fsc" / "checkpoint").is_dir()


def job(app: Typer, *arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
