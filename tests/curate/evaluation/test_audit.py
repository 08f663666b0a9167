"""`fovea curate audit` tells how far models of texts alone come, with which words and which items."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.curate.evaluation.audit import app
from services.jobs.sugarcrepe import Pair, write_pairs
from tests.tiny_text_models import write_tiny_grammar

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cola")
    write_tiny_grammar(folder)
    return folder


def test_a_benchmark_made_by_a_rule_is_told_to_be_hackable_with_its_word(tmp_path: Path, model: Path) -> None:
    pairs = [
        Pair(
            id=str(n), kind="negate", filename="1.jpg", caption=f"a dog on the mat {n}", negative_caption=f"no dog {n}"
        )
        for n in range(60)
    ]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    told = RUNNER.invoke(
        app,
        ["audit", str(tmp_path / "pairs.jsonl"), f"--model={model}", f"--cache={tmp_path / 'cache'}",
         f"--output={tmp_path / 'out'}", "--device=cpu", "--items=1"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    by_attacker = {one["attacker"]: one for one in found["attacks"]}
    words = by_attacker["words of the other items"]
    assert words["verdict"] == "hackable" and words["accuracy"] == 1.0
    assert words["interval"][0] > 0.9
    assert {"the shorter caption", model.name} < set(by_attacker)
    assert {one["word"]: (one["num_true"], one["num_false"]) for one in found["words"]}["no"] == (0, 60)
    assert "| negate | words of the other items | 60 | 50.0 | 100.0 |" in (tmp_path / "out" / "audit.md").read_text()
    spotted = found["items"]
    assert len(spotted) <= 1 and all(one["gap"] > 0 for one in spotted)


def test_what_is_no_benchmark_is_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.jsonl").write_text('{"a": "x", "b": "y"}\n')
    for arguments, message in (
        ([str(tmp_path / "x.json")], "holds no choices between captions"),
        ([str(tmp_path / "x.jsonl")], "x.jsonl:1: id"),
        ([str(tmp_path / "x.jsonl"), "--caption-field=a"], "--caption-field and --negative-field belong together"),
        ([str(tmp_path / "x.jsonl"), "--caption-field=a", "--negative-field=c"], "there is no field 'c'"),
    ):
        told = RUNNER.invoke(app, ["audit", *arguments, f"--model={model}", f"--cache={tmp_path}"])
        assert told.exit_code == 2
        assert message in " ".join(told.output.replace("│", " ").split())
