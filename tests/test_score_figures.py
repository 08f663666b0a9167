"""Figures in README and concept page about score's starter equal those recorded when it was trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.score.evaluation.starter_tables import NAMES, RESULT_FILES, tables

ROOT = Path(__file__).parents[1]
# The runs of three seeds, as docs/concepts/composition.md has the commands.
RECORDED = ROOT / "docs" / "results" / "score.json"
README, CONCEPT = ROOT / "README.md", ROOT / "docs" / "concepts" / "composition.md"
STARTER = ROOT / "services" / "score" / "starter" / "fsc-clip-scenes"
SEEDS = ["0", "1", "2"]


def recorded() -> dict[str, dict[str, dict[str, float]]]:
    """Metrics by run and seed."""
    return {result.run: result.scores for result in RESULT_FILES.load([RECORDED])}


def test_the_tables_of_the_starter_are_the_recorded_ones() -> None:
    composition, by_attribute = tables(RESULT_FILES.load([RECORDED])).split("\n\n")
    assert composition in README.read_text(), composition
    assert by_attribute in CONCEPT.read_text(), by_attribute


def test_every_method_was_run_with_three_seeds_on_one_base() -> None:
    assert recorded().keys() == NAMES.keys()
    for run, scores in recorded().items():
        assert list(scores) == (["0"] if run == "base" else SEEDS), run


def test_the_starter_is_the_recorded_one() -> None:
    described: dict[str, Any] = json.loads((STARTER / "checkpoint.json").read_text())
    (base,) = recorded()["base"].values()
    served = recorded()["wise-ft-local"][str(described["seed"])]
    kept = {key: value for key, value in described["metrics"].items() if not key.startswith("global_")}
    assert kept | {key: described["training"][key] for key in ("alpha", "local_weight")} == served
    stated = f"α of {served['alpha']:g} and a local weight of {served['local_weight']:g}"
    assert stated in CONCEPT.read_text(), stated
    assert served["swap_att"] > base["swap_att"]


@pytest.mark.parametrize("seed", SEEDS)
def test_tuning_binds_words_to_things_and_forgets_nothing_else(seed: str) -> None:
    (base,) = recorded()["base"].values()
    blended = recorded()["wise-ft"][seed]
    assert base["swap_att"] <= 65
    assert blended["swap_att"] >= 90
    assert min(blended["swap_obj"], blended["replace_rel"]) >= 75
    assert blended["zs"] >= base["zs"] - 1
    assert blended["i2t"] >= base["i2t"]
    assert blended["t2i"] >= base["t2i"]
