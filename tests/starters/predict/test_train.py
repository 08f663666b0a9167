"""`python -m starters train distill` teaches students from generated rows by the recipes of the packaged ones."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.predict.training.recipe import recipe_of
from starters.predict.probes import ProbedRecipe
from starters.predict.sweep import app as sweep
from starters.predict.train import app
from tests.imports import ROOT

RECIPES = ROOT / "starters" / "predict" / "recipes"
SMALL = "vocab_size = 300\nbatch_size = 4\nsteps = 2\nevaluate_every = 2\nmax_evaluated = 4\nmax_new_tokens = 4\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(f"{SMALL}max_input_tokens = 12\n")
    return path


@pytest.mark.parametrize("model", ["tiny", "micro"])
def test_generated_rows_are_taught_with_their_rationales(recipe: Path, model: str, tmp_path: Path) -> None:
    options = ["--num-train", "8", "--no-publish", "--method", "explained", "--recipe", str(recipe)]
    done = CliRunner().invoke(app, ["inferences", "--model", model, "--output", str(tmp_path / "run"), *options])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["outcome"]["num_train"] == 8


def test_a_recipe_may_have_probes_and_other_data_is_refused(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(f"{SMALL}probe_weight = 0.7\n")
    options = ["--model", "tiny", "--output", str(tmp_path / "run"), "--recipe", str(recipe), "--no-publish"]
    done = CliRunner().invoke(app, ["inferences", *options, "--num-train", "8"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["run"]["recipe"]["probe_weight"] == 0.7
    for task, message in (
        ("deductions", "probe_weight is for the tasks inferences, word-problems, not deductions"),
        ("svamp", "the data is one of word-problems"),
    ):
        refused = CliRunner().invoke(app, [task, *options[:3], str(tmp_path / task), *options[4:], "--num-train", "8"])
        assert refused.exit_code == 1
        assert refused.stderr.splitlines()[-1].startswith(f"python -m starters train distill: {message}")


@pytest.mark.parametrize("name", ["word-problems", "inferences"])
def test_a_packaged_student_has_its_recipe(name: str) -> None:
    found = recipe_of(ProbedRecipe, {"recipe": str(RECIPES / f"{name}.toml")})
    packaged = json.loads((ROOT / "services/predict/starter" / name / "checkpoint.json").read_text())["training"]
    for key in ("learning_rate", "batch_size", "warmup_steps", "alpha", "max_target_tokens", "probe_weight"):
        assert getattr(found, key) == packaged[key]
    assert found.steps == packaged["steps"]


@pytest.mark.process
def test_methods_are_compared_on_generated_rows(recipe: Path, tmp_path: Path) -> None:
    numbers = ["--num-train", "8", "--num-valid", "4", "--num-test", "4", "--seeds", "0", "--fractions", "1"]
    options = ["--output", str(tmp_path / "sweep"), "--models", "tiny", "--recipe", str(recipe), "--scores-only"]
    done = CliRunner().invoke(sweep, [*options, *numbers])
    assert done.exit_code == 0, done.output
    found = sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/scores.json"))
    assert found == [
        "word-problems_human_tiny_standard_100_seed-0",
        "word-problems_human_tiny_step-by-step_templates_100_seed-0",
    ]
