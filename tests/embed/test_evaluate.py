"""`fovea evaluate focallens …` runs each protocol on a checkpoint's folder and prints tables, then JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.embed.evaluate import app
from tests.embed.protocols.data_sets import write_celeba, write_fine_grained, write_genecis, write_imagenet
from tests.embed.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "focallens"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_celeba(directory / "celeba")
    write_genecis(directory / "genecis")
    write_imagenet(directory / "imagenet")
    write_fine_grained(directory)
    return directory


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: str | Path) -> list[dict[str, Any]]:
    """The last line of a run that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return found


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
    together = run("table", saved)
    for number in ("5.2", "5.3", "5.4", "D.4", "D.5"):
        assert f"Table {number}" in together.stdout
    assert len(json.loads(together.stdout.splitlines()[-1])) == 5


def test_colorshape_prints_plain_and_conditioned_rows(checkpoint: str) -> None:
    rows = answer("colorshape", "--checkpoint", checkpoint, "--baseline", checkpoint, "--images-per-class", "3")
    assert [row["embedder"] for row in rows] == [checkpoint, f"{checkpoint}, no condition", checkpoint]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["celeba", "--data", "nowhere"], "list_eval_partition.txt is missing"),
        (["celeba", "--data", "nowhere", "--split", "all"], "'all' is none of train, val, test"),
        (["genecis", "--data", "nowhere"], "focus_attribute.json is missing"),
        (["genecis", "--data", "nowhere", "--focus", "colour"], "'colour' is neither"),
        (["imagenet", "--data", "nowhere", "--node", "Whale"], "'Whale' is none of Dog, Bird"),
        (["fine-grained", "--data", "nowhere"], "imagelabels.mat is missing"),
        (["table", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_is_missing_or_unknown_is_told_without_a_traceback(arguments: list[str], message: str) -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_missing_images_are_told_without_a_traceback(checkpoint: str, tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, ["imagenet", "--data", str(tmp_path), "--checkpoint", checkpoint]
    )
    assert result.exit_code == 2
    assert "n02085620 is missing" in result.stderr
