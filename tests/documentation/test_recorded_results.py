"""The recorded results are those of the starters, and the starters reach what they were made for."""

import json
from typing import Any

import pytest

from services.predict.evaluation.results import RESULT_FILES as STUDENT_FILES
from services.score.evaluation.starter_tables import NAMES
from services.score.evaluation.starter_tables import RESULT_FILES as CAPTION_FILES
from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import ROOT
from tests.documentation.results import (
    CALIBRATED,
    LITM_SEEDS,
    RESULTS,
    VANILLA,
    described,
    litm_results,
    litm_scores,
)

SEEDS = ["0", "1", "2"]


def test_every_method_of_teaching_was_run_with_three_seeds() -> None:
    assert {len(result.scores) for result in STUDENT_FILES.load([RESULTS / "distill.json"])} == {3}


def test_the_starter_of_generate_is_the_evaluated_one() -> None:
    path = ROOT / "services" / "generate" / "starter" / "litm-facts" / "calibration.json"
    profile: dict[str, Any] = json.loads(path.read_text())
    for result in litm_results():
        assert result["num_documents"] == 10
        assert result["settings"]["questions"] == 500
        if result["model"] == LITM_SEEDS[0]:
            assert result["settings"]["profile"] == {key: profile[key] for key in result["settings"]["profile"]}


def test_the_starter_of_generate_is_lost_in_the_middle_and_calibration_finds_it() -> None:
    for scores in litm_scores("accuracy"):
        vanilla, calibrated = scores[VANILLA], scores[CALIBRATED]
        middle = (vanilla["4"] + vanilla["5"]) / 2
        assert (vanilla["0"] + vanilla["9"]) / 2 >= middle + 15
        assert (calibrated["4"] + calibrated["5"]) / 2 >= middle + 10
        assert sum(calibrated.values()) >= sum(vanilla.values())


def captions() -> dict[str, dict[str, dict[str, float]]]:
    """Metrics of the score starter's tunings by run and seed."""
    return {result.run: result.scores for result in CAPTION_FILES.load([RESULTS / "score.json"])}


def test_every_method_of_tuning_was_run_with_three_seeds_on_one_base() -> None:
    assert captions().keys() == NAMES.keys()
    for run, scores in captions().items():
        assert list(scores) == (["0"] if run == "base" else SEEDS), run


def test_the_starter_of_score_is_the_recorded_one() -> None:
    description = described("score", "fsc-clip-scenes")
    (base,) = captions()["base"].values()
    served = captions()["wise-ft-local"][str(description["seed"])]
    kept = {key: value for key, value in description["metrics"].items() if not key.startswith("global_")}
    assert kept | {key: description["training"][key] for key in ("alpha", "local_weight")} == served
    stated = f"α of {served['alpha']:g} and a local weight of {served['local_weight']:g}"
    assert stated in (ROOT / "docs" / "concepts" / "composition.md").read_text(), stated
    assert served["swap_att"] > base["swap_att"]


@pytest.mark.parametrize("seed", SEEDS)
def test_tuning_binds_words_to_things_and_forgets_nothing_else(seed: str) -> None:
    (base,) = captions()["base"].values()
    blended = captions()["wise-ft"][seed]
    assert base["swap_att"] <= 65
    assert blended["swap_att"] >= 90
    assert min(blended["swap_obj"], blended["replace_rel"]) >= 75
    assert blended["zs"] >= base["zs"] - 1
    assert blended["i2t"] >= base["i2t"]
    assert blended["t2i"] >= base["t2i"]


def test_the_bulk_guide_states_how_many_images_were_measured() -> None:
    bulk = latest("bulk")
    stated = f"{bulk['scenes']['images']:,} scenes or {bulk['photographs']['images']} photographs"
    assert stated in (ROOT / "docs" / "guide" / "bulk.md").read_text()
