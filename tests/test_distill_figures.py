"""Figures in the documents about predict's starters equal those recorded when they were trained."""

import json
from pathlib import Path

import pytest

from services.predict.evaluation.results import RESULT_FILES
from services.predict.evaluation.tables import make_tables

ROOT = Path(__file__).parents[1]
# `fovea evaluate distill sweep` over three seeds, as docs/concepts/distillation.md has the command.
RECORDED = ROOT / "docs" / "results" / "distill.json"
CONCEPT = ROOT / "docs" / "concepts" / "distillation.md"


def test_the_comparisons_of_methods_are_the_recorded_ones() -> None:
    results = RESULT_FILES.load([RECORDED])
    assert {len(result.scores) for result in results} == {3}
    tables = make_tables(results)
    assert len(tables) == 2
    for table in tables:
        rows = table.to_markdown().partition("\n\n")[2]
        assert rows in CONCEPT.read_text(), rows


@pytest.mark.parametrize("starter", ["word-problems", "inferences"])
def test_the_starters_accuracies_are_those_in_their_manifests(starter: str) -> None:
    description = ROOT / "services" / "predict" / "starter" / starter / "checkpoint.json"
    accuracy = json.loads(description.read_text())["metrics"]["test_accuracy"]
    assert f"| `{starter}` | {100 * accuracy:.1f} |" in (ROOT / "README.md").read_text(), accuracy
