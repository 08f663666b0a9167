"""Published scores of sub-tasks give the published averages, each by its own rule."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from services.score.evaluation.aggregates import (
    COMP,
    ELEVATER,
    RULES,
    SUGARCREPE_FORMS,
    SUGARCREPE_SIZES,
    aggregates,
    comp,
    sugarcrepe,
    sugarcrepe_form,
)

GOLDENS = Path(__file__).parents[2] / "goldens"
PUBLISHED = json.loads((GOLDENS / "compositionality_tables.json").read_text())
VERIFIED = json.loads((GOLDENS / "fsc_aggregation.json").read_text())
TABLE_4_6 = PUBLISHED["table_4_6"]
SUB_TASKS = PUBLISHED["sub_tasks"]

# A published number may be off by half a unit of its last decimal.
HALF_A_HUNDREDTH, HALF_A_TENTH = 0.005 + 1e-9, 0.05 + 1e-9

# The first published file, whose results are in the dissertation's chapter 4.
SUGARCREPE_SIZES_FIRST = {**SUGARCREPE_SIZES, "swap_obj": 246}


def macro(scores: dict[str, float]) -> float:
    return aggregates("sugarcrepe", scores, SUGARCREPE_SIZES)["macro"]


def of_types(row: list[float]) -> dict[str, float]:
    return dict(zip(TABLE_4_6["types"], row, strict=False))


@pytest.mark.parametrize("model", TABLE_4_6["rows"])
def test_the_dissertations_average_is_the_mean_of_seven_types(model: str) -> None:
    row = TABLE_4_6["rows"][model]
    # rounded scores make a rounded mean, which may differ in the last digit
    assert macro(of_types(row)) == pytest.approx(row[7], abs=0.01 + 1e-9)


@pytest.mark.parametrize("model", PUBLISHED["forms"])
def test_a_form_is_the_share_of_all_its_records_in_the_set_that_was_published_first(model: str) -> None:
    scores = of_types(TABLE_4_6["rows"][model])
    found = [sugarcrepe_form(scores, form, SUGARCREPE_SIZES_FIRST) for form in SUGARCREPE_FORMS]
    assert found == pytest.approx(PUBLISHED["forms"][model], abs=0.01)


def test_three_averages_of_sugarcrepe_are_three_numbers() -> None:
    scores = SUB_TASKS["DAC-SAM"]["tasks"]["sugarcrepe"]
    assert sugarcrepe(scores) == pytest.approx(83.79912725, abs=5e-9)
    assert macro(scores) == pytest.approx(84.47, abs=HALF_A_HUNDREDTH)
    assert sugarcrepe_form(scores, "ADD") == pytest.approx((2062 * 87.48787585 + 692 * 95.52023121) / 2754)


def test_the_two_sets_of_sugarcrepe_differ_by_one_choice() -> None:
    assert (sum(SUGARCREPE_SIZES.values()), sum(SUGARCREPE_SIZES_FIRST.values())) == (7511, 7512)


@pytest.mark.parametrize("model", SUB_TASKS)
@pytest.mark.parametrize("benchmark", SUB_TASKS["DAC-SAM"]["benchmarks"])
def test_sub_tasks_of_fsc_clips_evaluation_give_its_benchmarks_numbers(model: str, benchmark: str) -> None:
    scores = SUB_TASKS[model]["tasks"][benchmark]
    sizes = SUGARCREPE_SIZES if benchmark == "sugarcrepe" else {"videos": 1872, "static": 430}
    (expected, tolerance) = SUB_TASKS[model]["benchmarks"][benchmark], 5.1e-9
    assert aggregates(benchmark, scores, sizes)["average"] == pytest.approx(expected, abs=tolerance)


def test_the_names_in_the_authors_own_tables_are_known() -> None:
    scores = SUB_TASKS["NegCLIP"]["tasks"]["aro"]
    theirs = {task.replace("VG_Attribution", "VG_Attribute"): score for task, score in scores.items()}
    assert theirs != scores
    assert aggregates("aro", theirs, {}) == aggregates("aro", scores, {})
    zero_shot_scores = dict.fromkeys(ELEVATER, 55.0)
    assert aggregates("elevator", zero_shot_scores, {}) == {"average": pytest.approx(55.0)}


def test_every_rule_that_was_verified_is_here() -> None:
    columns = {"21_tasks_avg": "elevater", "Comp": None, "I2T/T2I Ret": "retrieval"}
    verified = {columns.get(rule, rule) for rule in VERIFIED["rules"]} - {None}
    # SPEC is in the paper, and half-truths and Cola are of others
    assert verified | {"spec", "half_truths", "cola"} == set(RULES)
    assert max(VERIFIED["max_abs_deviation"].values()) < 5.1e-9


@pytest.mark.parametrize("model", PUBLISHED["table_1"]["rows"])
def test_comp_is_the_mean_of_eleven_benchmarks(model: str) -> None:
    row = dict(zip(PUBLISHED["table_1"]["columns"], PUBLISHED["table_1"]["rows"][model], strict=True))
    assert len(COMP) == 11
    # of numbers that are rounded themselves
    assert comp(row) == pytest.approx(row["comp"], abs=2 * HALF_A_TENTH)


@pytest.mark.parametrize("model", PUBLISHED["table_8"]["rows"])
def test_zero_shot_is_the_mean_of_21_tasks(model: str) -> None:
    row = dict(zip(PUBLISHED["table_8"]["columns"], PUBLISHED["table_8"]["rows"][model], strict=True))
    assert len(ELEVATER) == 21
    assert aggregates("elevater", row, {})["average"] == pytest.approx(row["Average"], abs=HALF_A_TENTH)


@pytest.mark.parametrize("model", PUBLISHED["table_9"])
def test_retrieval_is_the_mean_recall_of_three_data_sets(model: str) -> None:
    row = PUBLISHED["table_9"][model]
    scores = {
        f"{name}::{direction}/R@1": row[direction][place]
        for place, name in enumerate(("coco_karpathy", "flickr30k", "coco_counterfactuals"))
        for direction in ("i2t", "t2i")
    }
    found = aggregates("retrieval", scores, {})
    assert found["i2t"] == pytest.approx(row["averages"][0], abs=2 * HALF_A_TENTH)
    assert found["t2i"] == pytest.approx(row["averages"][1], abs=2 * HALF_A_TENTH)


def test_kubrics_tasks_count_as_one_source_of_eqben() -> None:
    scores = dict.fromkeys(("eqbenyoucook2", "eqbengebc", "eqbenag", "eqbensd"), 10.0)
    kubric = {"eqbenkubric_loc": 60.0, "eqbenkubric_cnt": 60.0, "eqbenkubric_attr": 60.0}
    assert aggregates("eqben", {**scores, **kubric}, {})["average"] == pytest.approx(20)


def test_mmvps_own_rule_asks_for_images_alone_and_is_milder() -> None:
    scores = SUB_TASKS["DAC-SAM"]["tasks"]["mmvp_vlm"]
    own = aggregates("mmvp_vlm", scores, {})
    assert own["official"] == fmean(score for task, score in scores.items() if task.endswith("::image"))
    assert own["official"] > own["average"]


def test_what_lacks_a_task_has_no_average_and_an_unknown_benchmark_has_none() -> None:
    scores = {**SUB_TASKS["DAC-SAM"]["tasks"]["sugarcrepe"]}
    del scores["add_att"]
    found = aggregates("sugarcrepe", scores, SUGARCREPE_SIZES)
    assert found.keys() == {"REPLACE", "SWAP"}
    assert aggregates("pets", scores, {}) == {}
    with pytest.raises(KeyError, match="add_att"):
        sugarcrepe(scores)


def test_sizes_of_what_was_asked_weigh_the_types_of_a_form() -> None:
    scores = {"swap_obj": 100.0, "swap_att": 50.0}
    assert aggregates("sugarcrepe", scores, {"swap_obj": 4, "swap_att": 4})["SWAP"] == fmean([100, 50])


def test_pairs_of_any_benchmark_have_a_number_for_each_form() -> None:
    scores = {"replace_obj": 90.0, "replace_rel": 60.0, "negate": 80.0}
    sizes = {"replace_obj": 30, "replace_rel": 10, "negate": 7}
    assert aggregates("mine", scores, sizes) == pytest.approx({"replace": 82.5, "negate": 80.0})
    assert aggregates("mine", {**scores, "pets": 1.0}, {**sizes, "pets": 1}) == {}
