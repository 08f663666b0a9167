"""Tests of the method's assumptions give the goldens' numbers, on matrices made to hold or break them, too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from services.generate.evaluation.protocols import (
    Array,
    Form,
    condition_1,
    condition_2,
    is_in_attended_half,
    rank_correlation,
    spearman,
)

GOLDENS = Path(__file__).parents[2] / "goldens"
MATRICES = np.load(GOLDENS / "fitm_hypothesis_tests.npz")
FACTS = json.loads((GOLDENS / "fitm.json").read_text())
FORMS: list[Form] = ["linear", "log-linear"]


def close(expected: float) -> Any:
    return pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", FACTS["hypothesis"], ids=lambda case: str(case["case"]))
def test_conditions_and_rank_correlations_are_the_goldens(case: dict[str, Any]) -> None:
    attention = MATRICES[case["case"]]
    assert attention.shape == (case["D"], case["K"])
    assert condition_1([attention]) == close(case["condition1"])
    assert condition_2([attention]) == close(case["condition2"])
    assert rank_correlation([attention], "linear") == close(case["spearman_linear_unordered"])
    assert rank_correlation([attention], "log-linear") == close(case["spearman_loglinear_unordered"])


def test_the_document_used_most_is_found_in_the_half_that_the_golden_names() -> None:
    example = FACTS["tfidf"]
    used = example["most_likely_used"]
    assert is_in_attended_half(example["attn"], used) == example["most_likely_used_in_top_attention_half"]
    assert [is_in_attended_half([0.4, 0.1, 0.2, 0.3, 0.2], k) for k in range(5)] == [True, False, True, True, False]


def additive(form: Form) -> Array:
    """Attention (6, 4), or its logarithm, that is the sum of a relevance (6,) and a bias (4,)."""
    generator = np.random.default_rng(0)
    relevance, bias = generator.normal(size=6), generator.normal(size=4) + 5
    total = relevance[:, None] + bias
    return total if form == "linear" else np.exp(total)


@pytest.mark.parametrize("form", FORMS)
def test_attention_that_is_a_sum_keeps_every_order(form: Form) -> None:
    attention = additive(form)
    assert condition_1([attention]) == condition_2([attention]) == 1
    assert rank_correlation([np.round(attention, 9)] if form == "linear" else [attention], form) > 0.99


def test_orders_that_turn_around_break_the_conditions_they_are_of() -> None:
    # both documents like position 1 better, and which document is liked better depends on the position
    attention = np.array([[0.1, 0.9], [0.2, 0.8]])
    assert condition_1([attention]) == 1
    assert condition_2([attention]) == 0
    assert condition_1([attention.T]) == 0
    assert condition_2([attention.T]) == 1


def test_ties_are_no_order() -> None:
    assert condition_1([np.array([[0.1, 0.1], [0.2, 0.3]])]) == 0
    assert condition_2([np.ones((2, 2))]) == 0


def test_examples_are_pooled_rather_than_averaged() -> None:
    small, large = MATRICES["m1"], MATRICES["m3"]
    sizes = [case["n_quadruplets"] for case in FACTS["hypothesis"] if case["case"] in ("m1", "m3")]
    expected = (condition_1([small]) * sizes[0] + condition_1([large]) * sizes[1]) / sum(sizes)
    assert condition_1([small, large]) == close(expected)
    pooled = rank_correlation([small, large], "linear")
    apart = [rank_correlation([m], "linear") for m in (small, large)]
    assert pooled != close(sum(apart) / 2)


def test_rank_correlation_is_scipys_with_and_without_ties() -> None:
    generator = np.random.default_rng(2)
    for one, other in (
        (generator.normal(size=50), generator.normal(size=50)),
        (generator.integers(0, 5, 80).astype(float), generator.integers(0, 3, 80).astype(float)),
    ):
        assert spearman(one, other) == close(stats.spearmanr(one, other).statistic)
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_what_cannot_be_tested_is_refused() -> None:
    for examples in ([], [np.ones((1, 5))], [np.ones((5, 1))]):
        with pytest.raises(ValueError, match="two documents at two positions"):
            condition_1(examples)
        with pytest.raises(ValueError, match="two documents at two positions"):
            rank_correlation(examples, "linear")
    with pytest.raises(ValueError, match="no log attention"):
        rank_correlation([np.array([[0.1, 0.0], [0.1, 0.2]])], "log-linear")
