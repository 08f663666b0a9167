"""The recorded results are those of the starters, and the starters reach what they were made for."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.hard_negative_trainings import BASE, CONTROL, PACKAGED, TESTS, TUNINGS
from services.curate.evaluation.measure import form_accuracies
from services.generate.citations import CITED_SHARE
from services.predict.evaluation.results import RESULT_FILES as STUDENT_FILES
from services.score.fsc_clip import mean_local_similarity, token_cosines
from services.score.model.checkpoint import FscClipCheckpoint, load_fsc_clip
from services.score.model.dense_features import encode_images, encode_texts
from starters.curate import recorded_trainings
from starters.score.data.scene_captions import Facts, sentence
from starters.score.data.scenes import render_scenes
from starters.score.evaluation.scene_protocol import CHOICES, SceneProtocol
from starters.score.evaluation.starter_tables import NAMES, SERVED
from starters.score.evaluation.starter_tables import RESULT_FILES as CAPTION_FILES
from starters.score.training.scene_clip import IMAGE_SIDE
from starters.visitor.cases import read_cases
from starters.visitor.results import RESULT_FILES as VISITOR_FILES
from starters.visitor.rows import all_rows
from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import ROOT
from tests.documentation.position_figures import MODELS, run_on
from tests.documentation.ranking_figures import COLUMNS, SOURCES, ndcg, ranking_runs
from tests.documentation.results import (
    CALIBRATED,
    LITM_SEEDS,
    RESULTS,
    VANILLA,
    VISITOR_RUNS,
    described,
    general_table,
    litm_mean,
    litm_results,
    litm_scores,
    trainings,
    unseen_embedder,
)

SEEDS = ["0", "1", "2"]
RULES, REFINED = TESTS


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


def test_citations_were_measured_at_the_threshold_that_other_questions_chose_and_calibration_gains() -> None:
    run = latest("citations", model="open-facts")
    calibrated, plain = run["calibrated"], run["uncalibrated"]
    assert calibrated["chosen"]["threshold"] == CITED_SHARE
    assert run["questions"] == run["chosen_on"] == 200
    assert min(calibrated["served"]["precision"], calibrated["served"]["recall"]) > 90
    assert calibrated["chosen"]["f1"] > plain["chosen"]["f1"] + 5


def test_subtracting_the_bias_is_what_finds_the_middle() -> None:
    """The means of three trainings, because each was asked few questions about the middle."""
    exact, tree, none, vanilla = (
        {where: litm_mean("estimates", row, where) for where in ("middle", "average")}
        for row in ("exact", "tree", "none", "vanilla")
    )
    for one in (exact, tree):
        assert one["middle"] >= none["middle"] + 8
        assert one["average"] >= vanilla["average"]


def test_a_content_free_question_is_the_best_estimate_under_a_strong_bias_and_not_elsewhere() -> None:
    dummies = ("exact", "tree", "single")
    for bias in ("bias of 2", "bias of 4"):
        assert ndcg(bias, "query", "layers") > max(ndcg(bias, kind, "layers") for kind in dummies) + 0.02
    assert ndcg("bias of 4", "query", "heads, CoRe") > ndcg("bias of 4", "query", "layers") + 0.02
    for column in ("`open-facts`", "`litm-facts`"):
        assert ndcg(column, "query", "layers") < min(ndcg(column, kind, "layers") for kind in dummies)
    for run in ranking_runs(COLUMNS["`litm-facts`"]):
        assert run["ndcg"]["query"]["all layers"] < run["ndcg"]["tree"]["all layers"] - 0.05
    for column in ("`open-facts`", "`litm-facts`"):
        runs = ranking_runs(COLUMNS[column])
        lexical = sum(run["alone"]["TF-IDF"] for run in runs) / len(runs)
        assert lexical > max(ndcg(column, kind, source) for kind in runs[0]["ndcg"] for source in SOURCES)


def test_attention_ranks_real_text_about_as_chance_does() -> None:
    chance = sum(1 / math.log2(1 + rank) for rank in range(1, 11)) / 10
    for column in ("SynthWiki", "NaturalQuestions"):
        (run,) = ranking_runs(COLUMNS[column])
        for sources in run["ndcg"].values():
            assert max(abs(found - chance) for found in sources.values()) < 0.12
        assert run["alone"]["query_likelihood"] > max(max(sources.values()) for sources in run["ndcg"].values())


def test_chosen_heads_rank_as_chosen_layers_do_and_neither_worse_than_all_layers() -> None:
    for column in ("`open-facts`", "`litm-facts`"):
        for kind in ("exact", "tree", "single"):
            layers, heads, every = (ndcg(column, kind, source) for source in ("layers", "heads, CoRe", "all layers"))
            assert abs(heads - layers) < 0.01
            assert min(heads, layers) >= every - 0.005


def test_a_ranking_by_the_content_free_question_costs_little_more_than_one_without_an_estimate() -> None:
    for column in ("`open-facts`", "`litm-facts`"):
        took = ranking_runs(COLUMNS[column])[0]["cpu_ms"]
        cost = {name: took[name]["median"] for name in took}
        assert cost["query, heads, CoRe"] < 1.5 * cost["attention"] < cost["single, all layers"]
        assert cost["single, all layers"] < cost["tree, all layers"] < cost["exact, all layers"]


def test_re_scaled_positions_gain_nothing_on_average_and_in_every_layer_lose_nearly_all() -> None:
    for data in MODELS.values():
        answers = run_on(data)["answers"]
        assert answers["Ms-PoE, every layer"]["mean"] < 5
        for way in ("Ms-PoE, from the third layer", "Ms-PoE, chosen"):
            low, high = answers[way]["over_plain_interval"]
            assert low < 0 < high


def test_re_scaled_positions_give_the_middle_of_litm_facts_what_they_take_from_its_start_and_calibration_nothing() -> (
    None
):
    run = run_on("generated")
    assert run["positions"] == [0, 4, 9]
    (_, start), (middle, _), _ = run["answers"]["Ms-PoE, from the third layer"]["over_plain_by_position"]
    assert start < 0 < middle
    for way in ("calibrated, Ms-PoE, from the third layer", "calibrated, Ms-PoE, chosen"):
        low, high = run["answers"][way]["over_calibrated_interval"]
        assert low < 0 < high


def test_calibration_gains_more_than_noise_on_litm_facts_and_of_open_facts_too_few_were_asked_to_tell() -> None:
    assert run_on("open")["questions"] == 40
    for data, is_gain in (("generated", True), ("open", False)):
        low, high = run_on(data)["answers"]["calibrated, its profile"]["over_plain_interval"]
        assert (low > 10) if is_gain else (low < 0 < high)


def test_re_scaled_positions_cost_no_tokens_and_less_time_than_any_estimate() -> None:
    for data in MODELS.values():
        cost = run_on(data)["cost"]
        assert cost["Ms-PoE, every layer"]["prefills"] == 1
        times = {way: cost[way]["over_plain"]["median"] for way in cost}
        assert times["Ms-PoE, every layer"] < 1.35 < times["calibrated, its profile"]


def test_textures_are_retrieved_if_asked_for_and_as_by_clip_if_tuning_never_asked() -> None:
    clip, tuned = (described("embed", name)["metrics"] for name in ("clip-shapes", "focallens-shapes"))
    assert "texture" in unseen_embedder()["training"]["never_asked"].split(",")
    assert unseen_embedder()["base"] == described("embed", "focallens-shapes")["base"]
    assert unseen_embedder()["metrics"]["map_texture"] > clip["map_texture"] - 0.5
    assert tuned["map_texture"] > clip["map_texture"] + 10


def captions() -> dict[str, dict[str, dict[str, float]]]:
    """Metrics of the score starter's tunings by run and seed."""
    return {result.run: result.scores for result in CAPTION_FILES.load([RESULTS / "score.json"])}


def test_every_method_of_tuning_was_run_with_three_seeds_on_one_base() -> None:
    assert captions().keys() == NAMES.keys()
    for run, scores in captions().items():
        assert list(scores) == (["0"] if run in ("base", "wide-base", *SERVED) else SEEDS), run


def test_the_starter_of_score_is_the_recorded_one() -> None:
    description = described("score", "fsc-clip-scenes")
    (base,) = captions()["wide-base"].values()
    served = captions()["aligned"][str(description["seed"])]
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
    cases = read_cases(ROOT / "tests" / "starters" / "visitor" / "cases")
    results = [one for one in VISITOR_FILES.load([RESULTS / "visitor.json"]) if one.suite == "cases"]
    for run in VISITOR_RUNS:
        asked = {one.service: one.settings["cases"] for one in results if one.run == run}
        assert asked == Counter(case.service for case in cases)


def test_the_bulk_guide_states_how_many_images_were_measured() -> None:
    bulk = latest("bulk")
    scenes, photographs, large = (bulk[kind]["images"] for kind in ("scenes", "photographs", "large"))
    stated = f"{scenes:,} scenes, {photographs} photographs or {large} large ones"
    assert stated in (ROOT / "docs" / "guide" / "bulk.md").read_text()


def test_killed_bulk_jobs_on_ray_had_begun_and_wrote_the_plain_jobs_bytes() -> None:
    run = latest("bulk_ray")
    assert f"{run['images']:,} scenes of 64 × 64 pixels" in (ROOT / "docs" / "concepts" / "scaling.md").read_text()
    assert run["distinct_digests"] == 1
    assert all(0 < one["files_before"] < 10 and one["status"] == 0 for one in run["killed"].values())


def gain(model: str, benchmark: str, form: str) -> float:
    """Points that a tuning of `trainings` gains on the control without hard negatives."""
    accuracy = {one.judge: one.accuracy for one in form_accuracies(trainings()["results"])}
    return accuracy[model][benchmark, form] - accuracy[trainings()["control"]][benchmark, form]


def test_every_training_on_hard_negatives_was_tested_before_and_after_refinement() -> None:
    found = Counter((one["judge"], one["benchmark"]) for one in trainings()["results"])
    assert found == Counter((name, test) for name in (PACKAGED, BASE, CONTROL, *TUNINGS) for test in TESTS)


def test_denials_gain_on_denials_alone_and_swaps_on_all_swaps() -> None:
    assert gain("negate", RULES, "negate") > 20
    assert all(abs(gain("negate", REFINED, form)) < 3 for form in ("replace", "swap"))
    assert gain("swap", RULES, "swap") > gain("swap", REFINED, "swap") > 10
    assert abs(gain("replace", RULES, "replace")) < 3


def test_refined_hard_negatives_gain_as_much_on_refined_ones_and_less_on_swaps_by_rules() -> None:
    assert abs(gain("swap-refined", REFINED, "swap") - gain("swap", REFINED, "swap")) < 2
    assert gain("swap-refined", RULES, "swap") < gain("swap", RULES, "swap") - 5
    for form in ("replace", "swap"):
        assert gain("replace-refined", REFINED, form) > gain("replace", REFINED, form) + 2


def test_the_trainings_show_no_correlation_with_general_ability() -> None:
    correlated = recorded_trainings.general_correlations(trainings())
    assert correlated and all(one.interval[0] < 0 < one.interval[1] for one in correlated)


def test_blind_models_are_better_than_the_control_on_five_types_before_refinement_and_on_none_after() -> None:
    found = trainings()
    better = {}
    for benchmark, attacks in found["audits"].items():
        (scores,) = (
            one["scores"] for one in found["results"] if (one["judge"], one["benchmark"]) == (CONTROL, benchmark)
        )
        blind = [one for one in attacks if one["attacker"] in ("plausibility", "grammar") and one["task"] in scores]
        right = [(one["task"], 100 * one["num_right"] / (one["num_right"] + one["num_wrong"])) for one in blind]
        better[benchmark] = {task for task, accuracy in right if accuracy > scores[task]}
    assert better == {RULES: {"replace_rel", "swap_obj", "swap_att", "negate", "shuffle"}, REFINED: set()}


def test_the_figures_of_the_trainings_are_drawn_from_the_record() -> None:
    drawn = (ROOT / "docs" / "images" / "curate-general.svg").read_text()
    rows = [line.split(" | ") for line in general_table().splitlines()[2:]]
    assert rows and all(f"{name.removeprefix('| ')}: r = {r}" in drawn for name, r, *_ in rows)
