"""Adversarial refinement leaves nothing that its blind models can use, and keeps all that it may."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.curate.sugarcrepe import (
    better_ratio,
    cell_numbers,
    likelihood_gap,
    refine,
)

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = {case["name"]: case for case in json.loads((GOLDENS / "sugarcrepe_refine.json").read_text())["cases"]}


def blind_accuracy(gaps: Any) -> float:
    """Compute the share of pairs whose true caption has the strictly higher score; NaN without pairs."""
    return float(np.mean(gaps > 0)) if len(gaps) else float("nan")


def refined(gaps: Any, seed: int = 0) -> Any:
    return refine(np.asarray(gaps, np.float64), np.random.default_rng(seed))


@pytest.fixture(scope="module")
def goldens() -> Any:
    return np.load(GOLDENS / "sugarcrepe_refine.npz")


@pytest.fixture(params=CASES, name="case")
def a_case(request: pytest.FixtureRequest, goldens: Any) -> tuple[dict[str, Any], Any, Any]:
    name = request.param
    gaps = np.stack([goldens[f"{name}/g1"], goldens[f"{name}/g2"]], axis=1)
    return CASES[name], gaps, goldens[f"{name}/always_kept"]


def test_as_many_pairs_are_kept_as_by_the_released_code_and_none_twice(case: Any) -> None:
    expected, gaps, always_kept = case
    for seed in range(3):
        kept = refined(gaps, seed)
        assert len(kept) == len(set(kept.tolist())) == expected["n_keep"]
        assert set(kept.tolist()) >= set(always_kept.tolist())


def test_each_model_prefers_equally_many_positives_and_negatives_as_by_the_released_code(case: Any) -> None:
    expected, gaps, _ = case
    kept = gaps[refined(gaps)]
    for model, name in enumerate(("M1", "M2")):
        signs = [int((np.sign(kept[:, model]) == sign).sum()) for sign in (1, -1, 0)]
        assert signs == expected[f"kept_pos_neg_zero_{name}"]
        after = expected[f"blind_acc_{name}_after"]
        assert blind_accuracy(gaps[:, model]) == pytest.approx(expected[f"blind_acc_{name}_before"])
        assert blind_accuracy(kept[:, model]) == pytest.approx(np.nan if after is None else after, nan_ok=True)


def test_each_cell_keeps_as_many_as_the_smaller_of_it_and_its_reflection(case: Any) -> None:
    _, gaps, _ = case
    before, after = (Counter(cell_numbers(some).tolist()) for some in (gaps, gaps[refined(gaps)]))
    assert after == Counter({cell: kept for cell, n in before.items() if (kept := min(n, before[-cell]))})


def test_every_result_of_the_released_code_fills_the_same_cells(case: Any, goldens: Any) -> None:
    expected, gaps, _ = case
    theirs = goldens[f"{expected['name']}/keep_seeded"]
    assert Counter(cell_numbers(gaps[theirs]).tolist()) == Counter(cell_numbers(gaps[refined(gaps)]).tolist())


def test_the_seed_decides_which_of_a_larger_cell_are_kept_and_nothing_else_does() -> None:
    gaps = np.concatenate([np.full((50, 2), 0.5), np.full((5, 2), -0.5)])
    assert refined(gaps, 1).tolist() == refined(gaps, 1).tolist() != refined(gaps, 2).tolist()
    chosen = Counter(int(place) for seed in range(400) for place in refined(gaps, seed))
    assert all(chosen[place] == 400 for place in range(50, 55))
    # each of the fifty is drawn in one of ten
    assert all(15 < chosen[place] < 70 for place in range(50))


def test_gaps_of_one_lie_in_the_outermost_cell_where_the_released_code_fails() -> None:
    assert refined([[1, 0.995], [-1, -0.995], [1, 0.5], [1, 0]]).tolist() == [0, 1]
    assert refined([[1, 0], [-0.95, 0], [0, -1], [0, 1]]).tolist() == [0, 1, 2, 3]


def test_a_cell_includes_its_edge_nearer_to_zero() -> None:
    quarter = 0.25  # exact in binary, and no edge of a cell; 0.5 is one
    assert refined([[0.5], [-0.51]]).tolist() == [0, 1]
    assert refined([[0.5], [-0.49]]).tolist() == []
    assert refined([[quarter], [-0.2599]]).tolist() == [0, 1]


def test_pairs_with_a_gap_of_zero_are_balanced_among_themselves_in_coarser_cells() -> None:
    # 0.11 and 0.19 lie in one of ten cells, not in one of fifty; a zero of another model is another matter
    assert refined([[0, 0.11], [0, -0.19]]).tolist() == [0, 1]
    assert refined([[0.3, 0.11], [-0.3, -0.19]]).tolist() == []
    assert refined([[0, 0.11], [-0.11, 0]]).tolist() == []
    assert refined([[0, 0], [0, 0.5], [0, 0]]).tolist() == [0, 2]


def test_one_model_and_four_are_balanced_as_two_are() -> None:
    gaps = np.clip(np.random.default_rng(0).normal(0.1, 0.2, (4000, 4)).round(1), -1, 1)
    for num_models in (1, 2, 3, 4):
        own = gaps[:, :num_models]
        kept = own[refined(own)]
        assert 0 < len(kept) < len(gaps)
        assert ((kept > 0).sum(axis=0) == (kept < 0).sum(axis=0)).all()
        assert [blind_accuracy(column) > 0.5 for column in own.T] == [True] * num_models


@given(arrays(np.float64, st.tuples(st.integers(0, 60), st.integers(1, 4)), elements=st.sampled_from(
    [-1, -0.999, -0.5, -0.02, -1e-12, 0, 1e-12, 0.02, 0.5, 0.999, 1])), st.integers(0, 9))  # fmt: skip
@settings(max_examples=100)
def test_whatever_the_gaps_every_model_is_left_without_a_preference(gaps: Any, seed: int) -> None:
    kept = gaps[refined(gaps, seed)]
    assert ((kept > 0).sum(axis=0) == (kept < 0).sum(axis=0)).all()
    # what is kept is kept again
    assert len(refined(kept, seed)) == len(kept)


@pytest.mark.parametrize(
    ("gaps", "message"),
    [
        ([[0.1, np.nan]], "not a number in"),
        ([[1.001]], "not a number in"),
        ([0.1, 0.2], r"gaps of shape \(2,\)"),
        (np.zeros((3, 0)), r"gaps of shape \(3, 0\)"),
        (np.zeros((3, 10)), "1 to 9 models"),
    ],
)
def test_what_is_no_gap_is_refused(gaps: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refined(gaps)


def test_gaps_of_likelihoods_have_bounds_and_keep_their_signs() -> None:
    positive, negative = np.array([-2.0, -9.0, -3.0, -0.0]), np.array([-3.0, -3.0, -3.0, -1e4])
    gaps = likelihood_gap(positive, negative)
    probabilities = np.exp(positive), np.exp(negative)
    expected = (probabilities[0] - probabilities[1]) / (probabilities[0] + probabilities[1])
    assert gaps == pytest.approx(expected)
    assert np.sign(gaps).tolist() == [1, -1, 0, 1]
    assert np.abs(gaps).max() <= 1


def test_ties_are_not_better() -> None:
    ours, theirs = np.array([0.5, 0.5, 0.9, 0.1]), np.array([0.5, 0.4, 0.2, 0.3])
    assert better_ratio(ours, theirs) == 0.5
    assert blind_accuracy(ours - theirs) == 0.5
    assert np.isnan(better_ratio(ours[:0], theirs[:0]))
