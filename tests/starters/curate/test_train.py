"""`python -m starters train blind` trains a model that refinement and audits can use, the same one each time."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.core.store.checkpoint_files import read_description
from services.nn.sentence_scores import load_scorer
from starters.curate.train import app

RUNNER = CliRunner()
THINGS = {"dog": "barks", "bird": "flies", "fish": "swims", "baby": "cries", "horse": "runs", "clock": "ticks"}
PLACES = ("in the garden", "at home", "on the beach", "near the lake", "by the road")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world in which each thing does one thing."""
    path = tmp_path_factory.mktemp("texts") / "sentences.txt"
    lines = [
        f"the {size} {thing} {does} {place}"
        for thing, does in THINGS.items()
        for place in PLACES
        for size in ("old", "big", "small", "young", "loud", "red", "calm")
    ]
    path.write_text("\n".join(lines))
    return path


def train(texts: Path, output: Path, bias: str, *options: str) -> Any:
    small = ("--width=32", "--layers=2", "--vocabulary=400", "--batch-size=32", "--no-publish", "--learning-rate=3e-3")
    return RUNNER.invoke(app, ["blind", bias, f"--texts={texts}", f"--output={output}", *small, *options])


@pytest.mark.parametrize("bias", ["plausibility", "grammar"])
def test_a_model_learns_what_is_said_and_how_from_sentences_alone(texts: Path, tmp_path: Path, bias: str) -> None:
    told = train(texts, tmp_path, bias, "--steps=250", "--statement=A world of six things.")
    assert told.exit_code == 0, told.output
    description = read_description(tmp_path / "checkpoint")
    assert description.name == f"blind-{bias}" and description.statement == "A world of six things."
    accuracy = description.metrics["held_out_accuracy"]
    assert isinstance(accuracy, float) and accuracy > 0.7
    scorer = load_scorer(tmp_path / "checkpoint")
    verbs = [*THINGS.values()]
    wrong = {
        "plausibility": [f"the old {thing} {verbs[n - 1]} at home" for n, thing in enumerate(THINGS)],
        "grammar": [f"old the {thing} {verb} at home" for thing, verb in THINGS.items()],
    }
    true = scorer.scores([f"the old {thing} {does} at home" for thing, does in THINGS.items()])
    assert sum(true) > sum(scorer.scores(wrong[bias]))
    assert json.loads((tmp_path / "checkpoint" / "config.json").read_text())["architectures"] == [
        "DistilBertForSequenceClassification"
    ]


def test_the_same_sentences_and_seed_make_the_same_weights(texts: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert train(texts, tmp_path / name, "grammar", "--steps=8").exit_code == 0
    first, second = ((tmp_path / name / "checkpoint" / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second


def test_sentences_that_are_few_for_the_steps_are_told(texts: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("\n".join(texts.read_text().splitlines()[:20]))
    told = train(few, tmp_path / "few", "grammar", "--steps=63")
    assert told.exit_code == 0 and "each of the 20 sentences will be read 50 times" not in told.stderr
    told = train(few, tmp_path / "fewer", "grammar", "--steps=64")
    assert told.exit_code == 0 and "each of the 20 sentences will be read 51 times" in told.stderr


def test_too_few_sentences_are_refused(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("one short sentence\nanother short sentence\n")
    told = train(tmp_path / "few.txt", tmp_path / "out", "grammar", "--steps=1")
    assert isinstance(told.exception, ValueError) and "2 sentences are too few" in str(told.exception)
