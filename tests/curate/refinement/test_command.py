"""`fovea curate refine` writes pairs that its models can't tell apart, and says what it dropped."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.core.refusals import Refused
from services.curate.refinement.command import app
from services.curate.refinement.loading import named_references
from services.curate.refinement.report import SCARCE
from services.curate.refinement.scores import refine_pairs
from services.jobs.sugarcrepe import published_pairs, read_pairs
from tests.curate.refinement.conftest import KINDS

RUNNER = CliRunner()


def refine(folder: Path, output: Path, *options: str) -> Any:
    models = (f"--model=plausible={folder / 'vera'}", f"--model={folder / 'cola'}", f"--model={folder / 'gpt2'}")
    places = (f"--output={output}", f"--cache={folder / 'cache'}", "--device=cpu")
    return RUNNER.invoke(app, ["refine", str(folder / "pairs.jsonl"), *places, *models, *options])


@pytest.fixture(scope="module")
def refined(folder: Path) -> Path:
    told = refine(folder, folder / "refined", "--name", "Words", "--licence", "CC0-1.0")
    assert told.exit_code == 0, told.output
    return folder / "refined"


def test_every_model_prefers_as_many_true_captions_as_false_ones_in_each_type(refined: Path) -> None:
    report = json.loads((refined / "report.json").read_text())
    assert {(row["model"], row["kind"]) for row in report["results"]} == {
        (model, kind) for model in ("plausible", "cola", "gpt2") for kind in KINDS
    }
    for row in report["results"]:
        assert row["after"]["right"] == row["after"]["wrong"] > 0
        assert row["after"]["pairs"] < row["before"]["pairs"] == 300
        low, high = row["after"]["interval"]
        assert low < 50 < high


def test_kept_pairs_are_those_given_unchanged_and_in_order(folder: Path, refined: Path) -> None:
    given, kept = read_pairs(folder / "pairs.jsonl"), read_pairs(refined / "pairs.jsonl")
    assert [pair for pair in given if pair in kept] == kept
    published = published_pairs(refined / "sugarcrepe")
    assert [p.caption for p in published] == [p.caption for k in KINDS[:2] for p in kept if p.kind == k]
    lines = [json.loads(line) for line in (refined / "scores.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines if line["kept"]] == [pair.id for pair in kept]
    assert all(set(line["scores"]) == {"plausible", "cola", "gpt2"} for line in lines) and len(lines) == 900


def test_the_seed_alone_chooses_among_equals(folder: Path, refined: Path, tmp_path: Path) -> None:
    for seed, is_same in ((0, True), (1, False)):
        told = refine(folder, tmp_path / str(seed), f"--seed={seed}")
        assert told.exit_code == 0, told.output
        same = (tmp_path / str(seed) / "pairs.jsonl").read_bytes() == (refined / "pairs.jsonl").read_bytes()
        assert same is is_same


def test_a_type_is_refined_without_a_look_at_the_others() -> None:
    gaps = np.random.default_rng(1).normal(0.1, 0.3, (600, 2)).clip(-1, 1)
    kinds = ["add_obj"] * 300 + ["add_att"] * 300
    both, alone = refine_pairs(kinds, gaps, 5), refine_pairs(kinds[:300], gaps[:300], 5)
    assert both[both < 300].tolist() == alone.tolist()
    assert refine_pairs([], np.zeros((0, 2)), 0).tolist() == []


def test_reports_are_for_people_too(refined: Path) -> None:
    card = (refined / "DATA_CARD.md").read_text()
    assert card.startswith("# Data card: Words\n") and "a draw of words" in card and "CC0-1.0" in card
    assert "| cola | swap_att | 300 |" in (refined / "report.md").read_text()
    assert (refined / "gaps.svg").read_text().count("before (900)") == 3


def test_types_of_which_few_pairs_are_left_are_told(folder: Path, tmp_path: Path) -> None:
    told = refine(folder, tmp_path / "all")
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    left = Counter(pair.kind for pair in read_pairs(tmp_path / "all" / "pairs.jsonl"))
    few = [f"{kind} ({left[kind]})" for kind in KINDS if left[kind] < SCARCE]
    assert (f"few pairs are left of {', '.join(few)}." in told.stderr) is bool(few)
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines[:30]))
    for name in ("vera", "cola", "gpt2"):
        (tmp_path / name).symlink_to(folder / name)
    assert "Warning: few pairs are left of replace_obj (" in refine(tmp_path, tmp_path / "some").stderr


def test_what_can_not_be_refined_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "1"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "not-a-model").mkdir()
    model = f"--model={folder / 'cola'}"
    for arguments, message in (
        ([str(tmp_path / "bad.jsonl"), model], "bad.jsonl:1: kind: Field required"),
        ([str(tmp_path / "empty.jsonl"), model], "holds no pairs"),
        ([str(tmp_path), model], "replace_obj.json is missing"),
        ([str(folder / "pairs.jsonl"), f"--model={tmp_path / 'not-a-model'}"], "names no architecture"),
        ([str(folder / "pairs.jsonl"), model, model], "two models are called 'cola'"),
    ):
        told = RUNNER.invoke(app, ["refine", *arguments, f"--output={tmp_path / 'out'}", f"--cache={tmp_path}"])
        assert told.exit_code == 2
        assert message in " ".join(told.output.replace("│", " ").split())


def test_models_have_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    assert named_references(["Vera=some/folder", "other", str(tmp_path / "a=b")]) == {
        "Vera": "some/folder",
        "other": "other",
        "a=b": str(tmp_path / "a=b"),
    }
    assert list(named_references(None)) == ["plausibility", "grammar"]
    with pytest.raises(Refused, match="is not NAME=REFERENCE"):
        named_references(["=x"])
