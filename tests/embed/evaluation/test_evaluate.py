"""`fovea evaluate focallens …` runs each protocol on a checkpoint's folder and prints tables, then JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from services.embed.evaluation.evaluate import app, report
from services.embed.evaluation.results import Result as Score
from tests.embed.evaluation.data_sets import (
    write_celeba,
    write_fine_grained,
    write_genecis,
    write_imagenet,
    write_mmvp,
    write_probe,
    write_sugarcrepe,
)
from tests.embed.tiny import write_tiny_checkpoint
from tests.published_instructblip import write_instructblip
from tests.published_llava import write_llava


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "focallens"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_celeba(directory / "celeba")
    write_genecis(directory / "genecis")
    write_imagenet(directory / "imagenet")
    write_mmvp(directory / "mmvp")
    write_probe(directory / "probe")
    write_sugarcrepe(directory / "sugarcrepe")
    write_fine_grained(directory)
    return directory


def run(*arguments: str | Path) -> Result:
    # a wide terminal breaks no message into lines
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: str | Path) -> list[dict[str, Any]]:
    """The last line of a run that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_every_protocol_scores_baseline_and_checkpoint_and_their_rows_come_together(
    checkpoint: str, data: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "results.json"
    options: list[str | Path] = ["--checkpoint", checkpoint, "--baseline", checkpoint, "--save", saved]
    attributes, identity, *baseline = answer("celeba", "--data", data / "celeba", "--limit", "6", *options)
    assert (attributes["benchmark"], identity["benchmark"]) == ("celeba", "celeba-identity")
    assert len(attributes["scores"]) == 28
    assert attributes["settings"] == {"split": "test", "images": 6}
    assert len(baseline) == 2
    folder = data / "genecis"
    images: list[str | Path] = ["--visual-genome", folder / "VG", "--coco", folder / "val2017"]
    (focus, _) = answer("genecis", "--data", folder, *images, *options)
    assert focus["scores"].keys() == {"Attribute", "Object"}
    nodes = ["--node", "Bag", "--node", "Piano"]
    (subset, _) = answer("imagenet", "--data", data / "imagenet", *nodes, *options)
    assert subset["scores"].keys() == {"Bag", "Piano"}
    (fine, _) = answer("fine-grained", "--data", data, *options)
    assert fine["scores"].keys() == {"Flower", "Car", "Aircraft", "Food"}
    coco = data / "sugarcrepe" / "val2017"
    (captions, _) = answer("sugarcrepe", "--data", data / "sugarcrepe", "--coco", coco, "--limit", "3", *options)
    assert len(captions["scores"]) == 7
    assert captions["settings"]["choices"]["swap_obj"] == 3
    (pairs, _) = answer("mmvp", "--data", data / "mmvp", *options)
    assert len(pairs["scores"]) == 9
    together = run("table", saved)
    for number in ("5.2", "5.3", "5.4", "5.5", "5.6", "D.4", "D.5"):
        assert f"Table {number}" in together.stdout
    assert len(json.loads(together.stdout.splitlines()[-1])) == 7


@pytest.mark.slow
def test_a_linear_probe_reports_mean_and_deviation_and_the_learning_rates_that_did_best(
    checkpoint: str, tmp_path: Path
) -> None:
    data = write_probe(tmp_path, num_train=15)
    (row,) = answer("linear-probe", "--data", data, "--category", "colour", "--checkpoint", checkpoint, "--seeds", "2")
    assert row["scores"].keys() == {"5", "5 ±", "10", "10 ±", "15", "15 ±"}
    assert row["settings"]["classes"] == 3
    assert row["settings"]["best_learning_rates"].keys() == {"5", "10", "15"}


@pytest.mark.slow
def test_a_grid_is_written_of_scenes_or_of_a_folder(checkpoint: str, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "grid.png"
    models: list[str | Path] = ["--checkpoint", checkpoint, "--baseline", checkpoint, "--output", output]
    assert run("grid", "--scenes", "20", "--queries", "1", *models).exit_code == 0
    with Image.open(output) as picture:
        of_scenes = picture.size
    own: list[str | Path] = ["--images", data / "sugarcrepe", "--condition", "Which color?", "--k", "4"]
    assert run("grid", *own, *models).exit_code == 0
    with Image.open(output) as picture:
        assert picture.format == "PNG"
        # two images, so a neighbour each under none and one condition
        assert picture.width < of_scenes[0]
    assert "give at least one condition" in run("grid", *own[:2], *models).stderr


def test_what_a_model_cannot_do_is_told_without_a_traceback(data: Path, tmp_path: Path) -> None:
    write_instructblip(tmp_path / "blip")
    probe = write_probe(tmp_path / "probe", num_train=15)
    runs: list[tuple[str, Path, list[str | Path], str]] = [
        ("mmvp", data / "mmvp", [], "not texts by themselves"),
        ("sugarcrepe", data / "sugarcrepe", ["--coco", data / "sugarcrepe" / "val2017"], "not texts by themselves"),
        ("linear-probe", probe, ["--category", "colour"], "projection"),
    ]
    for command, folder, options, message in runs:
        told = run(command, "--data", folder, *options, "--checkpoint", tmp_path / "blip")
        assert told.exit_code == 2
        assert message in told.stderr
        assert "Traceback" not in told.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["celeba", "--data", "nowhere"], "list_eval_partition.txt is missing"),
        (["celeba", "--data", "nowhere", "--split", "all"], "'all' is not one of train, val, test"),
        (["genecis", "--data", "nowhere"], "focus_attribute.json is missing"),
        (["genecis", "--data", "nowhere", "--focus", "colour"], "'colour' is not one of"),
        (["imagenet", "--data", "nowhere", "--node", "Whale"], "'Whale' is not one of Dog, Bird"),
        (["fine-grained", "--data", "nowhere"], "imagelabels.mat is missing"),
        (["sugarcrepe", "--data", "nowhere"], "replace_obj.json is missing"),
        (["mmvp", "--data", "nowhere"], "Questions.csv is missing"),
        (["linear-probe", "--data", "nowhere"], "n02085620 is missing"),
        (["linear-probe", "--data", "nowhere", "--category", "pet"], "train is missing"),
        (["grid", "--images", "nowhere", "--condition", "color"], "nowhere is missing"),
        (["table", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_is_missing_or_unknown_is_told_without_a_traceback(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpoint", "nothing"], "--checkpoint: there is no model 'nothing' in "),
        (["--baseline", "ViT-Z", "--pretrained", "openai"], "--baseline: open_clip has no model 'ViT-Z'"),
        (["--checkpoint", "."], "--checkpoint: '.' is neither a directory with"),
    ],
)
def test_a_model_that_there_is_not_is_told_without_a_traceback(
    data: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    store = f"file://{tmp_path / 'store'}"
    result = run("mmvp", "--data", data / "mmvp", "--store-url", store, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_scores_are_not_lost_to_a_file_that_they_can_not_be_kept_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    places = (
        (tmp_path / "file", "file:1: not JSON"),
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "x", "is a file"),
    )
    for path, message in places:
        refused = run("mmvp", "--data", "nowhere", "--save", path)
        assert refused.exit_code == 2
        assert f"'--save': {path}" in refused.stderr or message == "is a file"
        assert message in refused.stderr
    refused = run("grid", "--output", tmp_path)
    assert f"'--output': {tmp_path} is a folder" in refused.stderr
    with pytest.raises(ValueError, match="file:1: not JSON"):
        report([Score("tiny", "mmvp", {"Color": 50.0})], tmp_path / "file")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["scores"] == {"Color": 50.0}
    assert (tmp_path / "file").read_text() == "mine"


def test_missing_images_are_told_without_a_traceback(checkpoint: str, tmp_path: Path) -> None:
    result = run("imagenet", "--data", tmp_path, "--checkpoint", checkpoint)
    assert result.exit_code == 2
    assert "n02085620 is missing" in result.stderr


def test_a_published_llava_is_evaluated_as_checkpoint_and_as_baseline(checkpoint: str, tmp_path: Path) -> None:
    llava = write_llava(tmp_path / "llava-1.5-7b-hf")
    few = ("--images-per-class", "2")
    *_, tuned = answer("colorshape", "--checkpoint", llava, "--baseline", checkpoint, *few)
    assert tuned["embedder"] == str(llava)
    assert 0 < tuned["average"] <= 100
    first, *_ = answer("colorshape", "--checkpoint", checkpoint, "--baseline", llava, *few, "--paper")
    assert first["embedder"] == str(llava)
    assert (first["by_condition"].keys(), first["held_out"]) == ({"color", "shape", "both"}, {})
    assert tuned["by_condition"].keys() > first["by_condition"].keys() and tuned["held_out"]
    pairs = tmp_path / "mmvp"
    write_mmvp(pairs)
    refused = run("mmvp", "--data", pairs, "--checkpoint", llava)
    assert refused.exit_code != 0
    assert "which embeds images, not texts by themselves" in refused.output
