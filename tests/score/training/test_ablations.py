"""`fovea train fsc-clip-ablations` tunes and evaluates rows of the paper's tables or of a sweep, and continues."""

import json
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app as fovea
from services.score.evaluation.judges import RESULT_FILES
from services.score.training.ablations import app
from tests.file_events import before, die, putting
from tests.score.evaluation.tiny_suite import write_suite
from tests.score.training.test_train import base, differs, job, processes, tuning, weights

__all__ = ["base", "processes"]

# Retrieval alone is small, and gives the averages I2T and T2I.
SETS = "coco_karpathy,flickr30k,coco_counterfactuals"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "data")


def ablating(suite: Path, output: Path, *options: str) -> list[str]:
    return ["--output", str(output), "--benchmarks", str(suite), "--only", SETS, "--device", "cpu", *options]


def run_killed(arguments: list[str], state: Path, number: int) -> None:
    """Run the command in a process of its own, until it saves this state for the `number`th time."""
    before(putting(state), number, die)
    app(arguments, standalone_mode=False)


def told(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_that_was_killed_continues_in_its_row_and_prints_the_published_one_beside(
    base: Path, suite: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    output = tmp_path / "sweep"
    shared = tuning(base, "--steps", "4", "--set", "learning_rate=1e-3")
    arguments = ablating(suite, output, "--sweep", "gamma=2,5", *shared)
    process = processes.Process(target=run_killed, args=(arguments, output / "gamma=5.0" / "resume-tuning.pt", 2))
    process.start()
    process.join()
    finished = output / "recipe" / "checkpoint" / "checkpoint.json"
    made = finished.stat().st_mtime_ns
    assert not (output / "gamma=5.0" / "checkpoint").exists()
    again = CliRunner(env={"COLUMNS": "240"}).invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert "continuing at step 2 of 4" in again.output
    assert finished.stat().st_mtime_ns == made
    found = told(again.stdout)
    assert found["columns"] == ["Comp", "ZS", "I2T Ret", "T2I Ret"]
    default, focal = found["tables"]["Sweep of gamma"]
    assert [(one["row"], one["published"]) for one in (default, focal)] == [
        ("recipe", [53.5, 55.3, 58.2, 55.5]),
        ("gamma=5.0", [52.3, 55.6, 60.2, 55.5]),
    ]
    # without the other parts there is no other average
    assert [value is None for value in focal["ours"]] == [True, True, False, False]
    assert f"{focal['ours'][2] - 60.2:+.1f}" in again.stdout
    # the row is what the plain command makes of it
    job(*shared, "--set", "gamma=5", "--no-publish", "--output", str(tmp_path / "plain"))
    assert not differs(weights(output / "gamma=5.0"), weights(tmp_path / "plain"))
    assert differs(weights(output / "gamma=5.0"), weights(output / "recipe"))
    # nothing is left to do
    third = CliRunner(env={"COLUMNS": "240"}).invoke(app, arguments)
    assert told(third.stdout) == found
    assert "gamma=5.0, flickr30k" not in third.stdout
    assert len({one.judge for one in RESULT_FILES.load([output / "results.json"])}) == 2


@pytest.mark.slow
def test_the_papers_tables_are_fourteen_trainings_of_twenty_rows(base: Path, suite: Path, tmp_path: Path) -> None:
    run = CliRunner(env={"COLUMNS": "240"}).invoke(
        app, ablating(suite, tmp_path, *tuning(base, "--steps", "1", "--batch-size", "2"))
    )
    assert run.exit_code == 0, run.output
    rows = {title: [one["row"] for one in some] for title, some in told(run.stdout)["tables"].items()}
    assert list(rows.values()) == [
        [
            *("lambda_local=0.0,gamma=0.0,beta=0.0", "lambda_global=0.0,gamma=0.0,beta=0.0", "gamma=0.0,beta=0.0"),
            *("beta=0.0", "gamma=0.0", "recipe", "lambda_local=0.0", "lambda_global=0.0"),
        ],
        ["lambda_local=0.0", "lambda_local=0.1", "recipe", "lambda_local=0.5"],
        ["gamma=0.0", "gamma=1.0", "recipe", "gamma=5.0"],
        ["beta=0.0", "recipe", "beta=0.05", "beta=0.1"],
    ]
    assert len(list(tmp_path.glob("*/checkpoint"))) == 14
    assert not list(tmp_path.glob("*/resume*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "gama=1"], "'gama=1' is not KEY=VALUE of alpha"),
        (["--sweep", "gamma"], "gamma: Input should be a valid number"),
        (["--only", "coco"], "'coco' is not one of"),
        (["--sweeps", "gamma=1"], "No such option: --sweeps"),
        (["--steps", "many"], "Invalid value for '--steps': Input should be a valid integer"),
        (["--set", "beta=2"], "beta: Input should be less than 1"),
        (["--table", "4"], "'4' is not one of 2, 3a, 3b, 3c"),
    ],
)
def test_what_can_not_be_ablated_is_refused_before_anything_is_tuned(
    base: Path, suite: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    arguments = ablating(suite, tmp_path / "out", *options, *tuning(base))
    refused = CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)
    assert refused.exit_code == 2
    assert message in refused.output
    assert not list((tmp_path / "out").glob("*"))


def test_the_command_line_hands_on_the_options_of_the_tuning(tmp_path: Path) -> None:
    arguments = ["train", "fsc-clip-ablations", *ablating(tmp_path, tmp_path), "--steps", "3", "--set", "gamma=1"]
    refused = CliRunner().invoke(fovea, arguments)
    assert refused.exit_code == 2
    assert "Missing option '--images'" in refused.output


def test_rows_of_other_shared_arguments_are_not_mixed(base: Path, suite: Path, tmp_path: Path) -> None:
    (tmp_path / "arguments.json").write_text('{"seed": 1}')
    with pytest.raises(ValueError, match="--seed was 1, and is 0"):
        CliRunner().invoke(app, ablating(suite, tmp_path, *tuning(base)), catch_exceptions=False)
