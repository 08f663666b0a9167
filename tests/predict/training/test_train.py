"""`fovea train distill` teaches and publishes a student, goes on after a kill, and names what it refuses."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from services.nn.devices import DeviceOptions
from services.predict.engine import PredictEngine
from services.predict.tasks import Prefixes
from services.predict.training.loop import STATE_FILE
from services.predict.training.recipe import Recipe
from services.predict.training.train import app
from tests.killed_job import run_until_killed
from tests.predict.toy_data_sets import write_rationales, write_svamp

SMALL = {"vocab_size": 300, "evaluate_every": 2, "max_new_tokens": 4, "max_target_tokens": 16}
TINY = ["--model", "tiny", "--batch-size", "4", "--recipe", "recipe.toml"]


@pytest.fixture(autouse=True)
def small_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe()


def write_recipe(**values: object) -> None:
    """Write the recipe of small students with some other values."""
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in {**SMALL, **values}.items())
    Path("recipe.toml").write_text("".join(lines))


def job(*arguments: str | Path, fails: bool = False) -> str:
    """A job in this process; what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def weights(output: Path) -> bytes:
    return (output / "checkpoint" / "model.safetensors").read_bytes()


def test_a_student_is_taught_and_published_with_what_is_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEA_CODE_REVISION", "abc123")
    data, url = write_svamp(tmp_path / "data"), (tmp_path / "store").as_uri()
    write_recipe(rationale_weight=3)
    options = ["--steps", "4", "--licence", "MIT", "--seed", "7", "--name", "sums"]
    told = job("svamp", *TINY, "--data", data, "--output", tmp_path / "run", *options, "--store-url", url)
    assert "step 4/4 loss" in told
    store = Store.open(url)
    manifest = store.manifest("sums", store.resolve("sums", "latest"))
    assert f"published sums@{manifest.version}" in told
    assert (manifest.kind, manifest.base, manifest.seed, manifest.licence) == ("t5-student", None, 7, "MIT")
    assert manifest.code_revision == "abc123"
    assert manifest.training["rationale_weight"] == 3
    assert manifest.training["learning_rate"] == 5e-5
    assert manifest.training["task"] == "svamp"
    assert "output" not in manifest.training
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert manifest.metrics["test_accuracy"] == result["outcome"]["test_accuracy"]
    assert manifest.metrics["num_train"] == 18
    fetched = store.fetch("sums", manifest.version, tmp_path / "cache")
    assert PredictEngine.load(fetched, DeviceOptions("cpu", "float32", 1)).description.task == "svamp"
    described = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert (described["name"], described["kind"]) == ("sums", "t5-student")
    # the same command publishes the same, and teaches nothing
    again = job("svamp", *TINY, "--data", data, "--output", tmp_path / "run", *options, "--store-url", url)
    assert "step" not in again.replace("best_step", "")
    assert manifest.version in again


def test_the_defaults_are_the_published_hyper_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = " ".join(job("--help").split())
    for default in ("(5e-05)", "(64)", "(10000)", "(as published)", "step-by-step", "human"):
        assert f"[default: {default}]" in told
    recipe = Recipe()
    assert (recipe.learning_rate, recipe.batch_size, recipe.steps, recipe.evaluate_every) == (5e-5, 64, 10_000, 250)
    assert (recipe.max_input_tokens, recipe.max_target_tokens, recipe.max_new_tokens) == (1024, 256, 64)
    assert (recipe.alpha, recipe.used_prefixes, recipe.warmup_steps) == (0.5, Prefixes("predict: ", "explain: "), 0)


def test_options_reach_the_training(tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    rationales = write_rationales(tmp_path / "own.jsonl", dict.fromkeys(range(20), "One. The answer is (1)."))
    options = (
        f"--rationales {rationales} --labels llm --fraction 0.5 --learning-rate 0.01 --batch-size 2 --no-publish"
    ).split()
    write_recipe(
        drop_empty=True, alpha=0.8, warmup_steps=1, max_evaluated=1, precision="bfloat16", max_input_tokens=50,
        micro_batch_size=2, label_prefix="L ", rationale_prefix="R ", batch_size=8,
    )  # fmt: skip
    job("svamp", *TINY, "--data", data, "--output", tmp_path / "run", "--steps", "2", *options)
    run = json.loads((tmp_path / "run" / "result.json").read_text())["run"]
    assert run["data"]["rationales"] == str(rationales)
    assert (run["data"]["labels"], run["data"]["fraction"]) == ("llm", 0.5)
    recipe = run["recipe"]
    assert (recipe["drop_empty"], recipe["learning_rate"], recipe["batch_size"]) == (True, 0.01, 2)
    assert (recipe["label_prefix"], recipe["rationale_prefix"]) == ("L ", "R ")
    assert (recipe["alpha"], recipe["micro_batch_size"], recipe["warmup_steps"]) == (0.8, 2, 1)
    assert (recipe["max_evaluated"], recipe["precision"], recipe["max_input_tokens"]) == (1, "bfloat16", 50)
    assert recipe["steps"] == 2


def test_results_are_standard_output_and_progress_and_remarks_are_not(tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    command = ["svamp", *TINY, "--data", str(data), "--steps", "2", "--no-publish", "--output", str(tmp_path / "run")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert 0 < result["num_test"] < 100
    assert "step 2/2" in done.stderr
    assert f"The test accuracy is that of {result['num_test']} test rows: on fewer than 100" in done.stderr


def test_a_killed_job_goes_on_where_it_stopped_and_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    arguments = ["svamp", *TINY, "--data", str(data), "--steps", "20", "--no-publish"]
    job(*arguments, "--output", tmp_path / "unbroken")
    broken = tmp_path / "broken"
    run_until_killed(broken / STATE_FILE, "services.predict.training.train", *arguments, "--output", str(broken))
    assert not (broken / "result.json").exists()
    told = job(*arguments, "--output", broken)
    assert "step 2/20" not in told
    assert re.search(r"continuing at step \d+ of 20", told)
    assert "step 20/20" in told
    assert weights(broken) == weights(tmp_path / "unbroken")
    assert load_file(broken / "checkpoint" / "model.safetensors")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fraction", "1.5"], "fraction must be above 0 and at most 1, not 1.5"),
        (["--name", "No Name"], "name consists of a-z, 0-9"),
        (["--model", "huge"], "model 'huge' is neither a directory with a config.json nor one of tiny"),
        (["--method", "explained"], "give --no-publish"),
        (["--data", "nowhere"], "svamp_train.json is missing"),
        (["--rationales", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
    ],
)
def test_what_is_refused_is_told_in_one_line_with_its_option(options: list[str], message: str, tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    told = job("svamp", *TINY, "--data", data, "--output", tmp_path / "run", *options, fails=True)
    assert message in told
    assert told.startswith("fovea train distill: ")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": 2.0}, "alpha: Input should be less than or equal to 1"),
        ({"alpha": 0.4, "rationale_weight": 1}, "give alpha or rationale_weight, and not both"),
        ({"rationale_weight": -1}, "rationale_weight: Input should be greater than or equal to 0"),
        ({"warmup_steps": 10, "steps": 5}, "warmup_steps must be below steps (5), not 10"),
        ({"max_new_tokens": 0}, "max_new_tokens: Input should be greater than or equal to 1"),
        ({"lora_rank": 0}, "lora_rank: Input should be greater than or equal to 1"),
        ({"vocab_size": 10}, "vocab_size is at least 259, not 10"),
        ({"vocab_size": "many"}, "recipe recipe.toml: vocab_size: Input should be a valid integer"),
        ({"precision": "half"}, "recipe recipe.toml: precision: Input should be 'float32' or 'bfloat16'"),
        ({"probe_weight": 1}, "recipe recipe.toml has unknown keys: probe_weight"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused_by_its_key(
    values: dict[str, object], message: str, tmp_path: Path
) -> None:
    write_recipe(**values)
    told = job("svamp", *TINY, "--data", write_svamp(tmp_path / "data"), "--output", tmp_path / "run", fails=True)
    assert message in " ".join(told.replace("│", "").split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learning-rate", "-1"], "learning_rate: Input should be greater than 0"),
        (["--batch-size", "0"], "batch_size: Input should be greater than or equal to 1"),
        (["--steps", "0"], "steps: Input should be greater than or equal to 1"),
        (["--recipe", "none.toml"], "none.toml: No such file or directory"),
        (["--recipe", "none"], "there is no recipe 'none'; available: a .toml file"),
    ],
)
def test_an_option_of_the_recipe_is_refused_by_its_key(options: list[str], message: str, tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    told = job("svamp", *TINY, "--data", data, "--output", tmp_path / "run", *options, fails=True)
    assert message in " ".join(told.replace("│", "").split())


def test_damaged_weights_and_a_store_that_there_is_not_are_told_before_the_training(tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    job("svamp", *TINY, "--data", data, "--output", tmp_path / "run", "--steps", "1", "--no-publish")
    weights_file = tmp_path / "run" / "checkpoint" / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:1000])
    for options, message in (
        (["--model", weights_file.parent, "--no-publish"], f"{weights_file.parent}: the weights are damaged"),
        (["--store-url", "bogus://x"], "store URL 'bogus://x' must begin with file://"),
    ):
        told = job("svamp", *TINY, "--data", data, "--output", tmp_path / "other", *options, fails=True)
        assert told.startswith(f"fovea train distill: {message}")
        assert len(told.splitlines()) == 1
    assert "is a file, not a folder" in job("svamp", *TINY, "--output", weights_file, fails=True)
    assert not (tmp_path / "other").exists()


def test_another_training_is_not_overwritten(tmp_path: Path) -> None:
    data = write_svamp(tmp_path / "data")
    arguments = ["svamp", *TINY, "--data", str(data), "--steps", "2", "--no-publish", "--output", str(tmp_path / "run")]
    job(*arguments)
    before = weights(tmp_path / "run")
    assert "(--seed was 0, and is 1)" in job(*arguments, "--seed", "1", fails=True)
    assert "(--steps was 2, and is 3)" in job(*arguments, "--steps", "3", fails=True)
    assert weights(tmp_path / "run") == before
