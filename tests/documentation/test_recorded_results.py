"""The recorded results are those of the starters, and the starters reach what they were made for."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.jobs.visitor.cases import read_cases
from services.jobs.visitor.results import RESULT_FILES as VISITOR_FILES
from services.jobs.visitor.rows import all_rows
from services.predict.evaluation.results import RESULT_FILES as STUDENT_FILES
from services.score.data.scene_captions import Facts, sentence
from services.score.data.scenes import render_scenes
from services.score.evaluation.scene_protocol import CHOICES, SceneProtocol
from services.score.evaluation.starter_tables import NAMES
from services.score.evaluation.starter_tables import RESULT_FILES as CAPTION_FILES
from services.score.fsc_clip import mean_local_similarity, token_cosines
from services.score.model.checkpoint import FscClipCheckpoint, load_fsc_clip
from services.score.model.dense_features import encode_images, encode_texts
from services.score.training.scene_clip import IMAGE_SIDE
from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import ROOT
from tests.documentation.results import (
    CALIBRATED,
    LITM_SEEDS,
    RESULTS,
    VANILLA,
    VISITOR_RUNS,
    described,
    litm_mean,
    litm_results,
    litm_scores,
    unseen_embedder,
)

SEEDS = ["0", "1", "2"]


def test_every_method_of_teaching_was_run_with_three_seeds() -> None:
    assert {len(result.scores) for result in STUDENT_FILES.load([RESULTS / "distill.json"])} == {3}


def test_the_starter_of_generate_is_the_evaluated_one() -> None:
    path = ROOT / "services" / "generate" / "starter" / "litm-facts" / "calibration.json"
    profile: dict[str, Any] = json.loads(path.read_text())
    for result in litm_results():
        assert result["num_documents"] == 10
        assert result["settings"]["questions"] == (300 if result["protocol"] == "estimates" else 200)
        if result["model"] == LITM_SEEDS[0]:
            assert result["settings"]["profile"] == {key: profile[key] for key in result["settings"]["profile"]}


def test_the_starter_of_generate_is_lost_in_the_middle_and_calibration_finds_it() -> None:
    for scores in litm_scores("accuracy"):
        vanilla, calibrated = scores[VANILLA], scores[CALIBRATED]
        middle = (vanilla["4"] + vanilla["5"]) / 2
        assert (vanilla["0"] + vanilla["9"]) / 2 >= middle + 15
        assert (calibrated["4"] + calibrated["5"]) / 2 >= middle + 10
        assert sum(calibrated.values()) >= sum(vanilla.values())


def test_subtracting_the_bias_is_what_finds_the_middle() -> None:
    """The means of three trainings, because each was asked few questions about the middle."""
    exact, tree, none, vanilla = (
        {where: litm_mean("estimates", row, where) for where in ("middle", "average")}
        for row in ("exact", "tree", "none", "vanilla")
    )
    for one in (exact, tree):
        assert one["middle"] >= none["middle"] + 8
        assert one["average"] >= vanilla["average"]


def test_textures_are_retrieved_if_asked_for_and_little_worse_than_by_clip_if_tuning_never_asked() -> None:
    clip, tuned = (described("embed", name)["metrics"] for name in ("clip-shapes", "focallens-shapes"))
    assert "texture" in unseen_embedder()["training"]["never_asked"].split(",")
    assert unseen_embedder()["base"] == described("embed", "focallens-shapes")["base"]
    assert unseen_embedder()["metrics"]["map_texture"] > clip["map_texture"] - 4
    assert tuned["map_texture"] > clip["map_texture"] + 10


def captions() -> dict[str, dict[str, dict[str, float]]]:
    """Metrics of the score starter's tunings by run and seed."""
    return {result.run: result.scores for result in CAPTION_FILES.load([RESULTS / "score.json"])}


def test_every_method_of_tuning_was_run_with_three_seeds_on_one_base() -> None:
    assert captions().keys() == NAMES.keys()
    for run, scores in captions().items():
        assert list(scores) == (["0"] if run in ("base", "wide-base", "wide", "starter") else SEEDS), run


def test_the_starter_of_score_is_the_recorded_one() -> None:
    description = described("score", "fsc-clip-scenes")
    (base,) = captions()["wide-base"].values()
    served = captions()["starter"][str(description["seed"])]
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


def test_exchanged_attributes_are_told_apart_also_in_captions_that_name_no_relation() -> None:
    starter = load_fsc_clip(ROOT / "services" / "score" / "starter" / "fsc-clip-scenes")
    protocol = SceneProtocol("test", 250)
    said, wrong = protocol.captions()
    exchanged = wrong["swap_att"]
    assert swaps_told_apart(starter, protocol, said, exchanged) >= 85
    nameless = [[replace(facts, relation=None) for facts in some] for some in (said, exchanged)]
    assert swaps_told_apart(starter, protocol, *nameless) >= 65


@torch.no_grad()
def swaps_told_apart(
    starter: FscClipCheckpoint, protocol: SceneProtocol, right: list[Facts], wrong: list[Facts]
) -> float:
    """Percent of the scenes whose right caption has the higher score, as it is served."""
    clip = starter.clip
    images = encode_images(clip.model, clip.transform.normalise(render_scenes(protocol.scenes(CHOICES), IMAGE_SIDE)))
    scores = []
    for captions in (right, wrong):
        texts = encode_texts(clip.model, clip.tokenizer([sentence(facts) for facts in captions]))
        local = mean_local_similarity(token_cosines(images.tokens, texts.tokens), texts.mask)
        scores.append(torch.lerp((images.pooled * texts.pooled).sum(dim=1), local, starter.local_weight))
    return 100 * float((scores[0] > scores[1]).double().mean())


def test_every_row_that_a_visitor_asks_was_measured_with_three_seeds() -> None:
    """`relevance` is a field that the starters before did not have."""
    results = VISITOR_FILES.load([RESULTS / "visitor.json"])
    assert {result.run for result in results} <= set(VISITOR_RUNS)
    for result in (one for one in results if one.suite == "rows"):
        rows = [row for row in all_rows() if row.service == result.service]
        known = {row.key for row in rows}
        assert result.scores.keys() <= known
        assert {key for key in known - result.scores.keys() if "relevance" not in key} == set()
        for row in rows:
            is_fixed = all(probe.is_fixed for probe in row.probes)
            if row.key in result.scores:
                assert list(result.scores[row.key]) == (SEEDS[:1] if is_fixed else SEEDS), row.key
                assert all(0 <= value <= 100 for value in result.scores[row.key].values())


def test_the_cases_made_by_hand_were_asked_before_and_after() -> None:
    cases = read_cases(ROOT / "tests" / "jobs" / "visitor" / "cases")
    results = [one for one in VISITOR_FILES.load([RESULTS / "visitor.json"]) if one.suite == "cases"]
    for run in VISITOR_RUNS:
        asked = {one.service: one.settings["cases"] for one in results if one.run == run}
        assert asked == Counter(case.service for case in cases)


def test_the_bulk_guide_states_how_many_images_were_measured() -> None:
    bulk = latest("bulk")
    stated = f"{bulk['scenes']['images']:,} scenes or {bulk['photographs']['images']} photographs"
    assert stated in (ROOT / "docs" / "guide" / "bulk.md").read_text()
