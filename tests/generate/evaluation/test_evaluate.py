"""`fovea evaluate litm` prints, keeps and draws what a model scores, and loses none of it to a bad option."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.generate.calibrate.command import app as calibrate
from services.generate.evaluation.evaluate import app, report
from services.generate.evaluation.results import RESULT_FILES
from services.generate.evaluation.results import Result as Score
from starters.generate.questions import GENERATED
from tests.generate.tiny_models import save_tiny

DATA = ("--data", GENERATED.name)
SMALL = ("--documents", "3", "--limit", "4", "--protocols", "accuracy", "--methods", "Vanilla attention")
SCORE = Score("tiny", "accuracy", "generated", 3, {"Vanilla attention": {"0": 50.0, "1": 25.0, "2": 50.0}})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "tiny-llama", num_hidden_layers=2)


def run(*arguments: str | Path) -> Result:
    # a wide terminal breaks no message into lines
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [*DATA, *map(str, arguments)])


@pytest.mark.slow
def test_scores_are_printed_kept_beside_others_and_drawn(checkpoint: Path, tmp_path: Path) -> None:
    saved, plots = tmp_path / "records" / "litm.json", tmp_path / "plots"
    RESULT_FILES.save([SCORE], saved)
    result = run(checkpoint, *SMALL, "--save", saved, "--plots", plots)
    assert result.exit_code == 0, result.output
    (told,) = json.loads(result.stdout.splitlines()[-1])
    assert (told["model"], told["scores"].keys()) == ("tiny-llama", {"Vanilla attention"})
    assert [one.model for one in RESULT_FILES.load([saved])] == ["tiny", "tiny-llama"]
    assert sorted(path.name for path in plots.iterdir()) == ["figure-3.5.svg", "figure-3.6.svg"]


def test_what_can_not_be_kept_is_printed_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way since it was checked")
    with pytest.raises(OSError, match="file"):
        report([SCORE], None, tmp_path / "file" / "plots")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["scores"] == SCORE.scores


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--save", "FILE"], "'--save': FILE:1: not JSON"),
        (["--save", "FOLDER"], "'--save': FOLDER is a folder"),
        (["--plots", "FILE"], "'--plots': FILE is a file"),
        (["--documents", "500"], "--documents: a generated question has at most 27 documents, not 500"),
        (["--documents", "3,0"], "--documents: a question has at least one document, not 0"),
        (["--documents", "3,10", "--positions", "2,5"], "--positions: the positions of 3 documents are 0 to 2"),
        (["--temperature", "0"], "'--temperature': 0.0 is not a finite number above 0"),
        (["--temperature", "nan"], "'--temperature': nan is not a finite number above 0"),
        (["--layers", "99"], "--layers: the model's layers are 0 to 1"),
        (["--layers", "-1"], "--layers: the model's layers are 0 to 1"),
        (["--bias", "cached"], "--bias: there are no tables for a cached bias"),
        (["--calibration", "FILE"], "--calibration: FILE: Invalid JSON"),
        (["--calibration", "nowhere.json"], "--calibration: [Errno 2] No such file"),
    ],
)
def test_a_bad_option_is_refused_by_its_name_before_the_model_is_asked(
    options: list[str], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    places = {"FILE": str(file), "FOLDER": str(tmp_path)}
    result = run(checkpoint, *SMALL, *(places.get(option, option) for option in options))
    assert result.exit_code == 2
    for name, path in places.items():
        message = message.replace(name, path)
    assert message in result.stderr
    assert "pydantic" not in result.stderr
    assert not result.stdout
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "FILE"], "'--output': FILE is a file"),
        (["--save", "FOLDER"], "'--save': FOLDER is a folder"),
        (["--publish", "../x"], "--publish: model name '../x'"),
        (["--publish", "x", "--alias", "A b"], "--alias: alias 'A b'"),
        (["--publish", "x", "--store-url", "bogus://x"], "--store-url: store URL 'bogus://x'"),
        (
            ["--publish", "x", "--documents", "500"],
            "--documents: a generated question has at most 27 documents, not 500",
        ),
    ],
)
def test_a_calibration_is_not_lost_to_a_bad_option_either(
    options: list[str], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    places = {"FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path)}
    arguments = [*DATA, str(checkpoint), *(places.get(option, option) for option in options)]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(calibrate, arguments)
    assert result.exit_code == 2
    for name, path in places.items():
        message = message.replace(name, path)
    assert message in result.stderr
    assert not result.stdout


@pytest.mark.slow
def test_a_folder_for_the_profile_is_made_where_it_is_missing(checkpoint: Path, tmp_path: Path) -> None:
    small = (
        "--data",
        "generated",
        "--documents",
        "3",
        "--prompts",
        "4",
        "--measured",
        "2",
        "--span-rule",
        "newline",
        "--row-scope",
        "last",
    )
    output = tmp_path / "new" / "folder"
    arguments: list[Any] = [checkpoint, *small, "--bias", "tree", "--output", output]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(calibrate, [*DATA, *map(str, arguments)])
    assert result.exit_code == 0, result.output
    assert (output / "calibration.json").is_file()
