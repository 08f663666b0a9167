"""Metrics of classification and retrieval: small cases by hand, and rankings computed elsewhere."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.score.evaluation.recognition import (
    accuracy,
    best_ranks,
    mean_average_precision_11,
    mean_per_class,
    recalls,
    roc_auc,
)

GOLDENS = Path(__file__).parents[2] / "goldens"
CASES = json.loads((GOLDENS / "retrieval_metrics.json").read_text())["mAP"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_recall_of_the_nearest_neighbours_is_the_recorded_one(case: dict[str, float]) -> None:
    with np.load(GOLDENS / "retrieval_metrics.npz") as arrays:
        similarities, labels = arrays[f"{case['case']}/sim"].copy(), arrays[f"{case['case']}/labels"]
    np.fill_diagonal(similarities, -np.inf)
    is_own = (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool)
    asked = is_own.any(axis=1)
    found = recalls(best_ranks(similarities[asked], is_own[asked]), (1, 3))
    assert found == pytest.approx({"R@1": 100 * case["recall_at_1"], "R@3": 100 * case["recall_at_3"]})


def test_a_caption_as_near_as_the_right_one_is_ranked_before_it() -> None:
    similarities = np.array([[0.9, 0.5, 0.9, 0.1], [0.2, 0.3, 0.4, 0.4]])
    is_own = np.array([[True, True, False, False], [False, False, True, True]])
    assert best_ranks(similarities, is_own).tolist() == [1, 0]


def test_accuracy_needs_the_right_class_strictly_first_and_its_mean_weighs_classes_alike() -> None:
    labels = np.array([0, 0, 0, 1])
    probabilities = np.array([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4], [0.9, 0.1]])
    assert accuracy(labels, probabilities) == 0.5
    assert mean_per_class(labels, probabilities) == pytest.approx((2 / 3 + 0) / 2)


def test_eleven_point_precision_is_interpolated_at_each_recall() -> None:
    # found in the order yes, no, yes: precision 1 up to recall 0.5, then 2/3
    labels = np.array([[True], [False], [True], [False]])
    probabilities = np.array([[0.9], [0.8], [0.7], [0.1]])
    assert mean_average_precision_11(labels, probabilities) == pytest.approx((6 + 5 * 2 / 3) / 11)
    # equal probabilities are found at once: precision 2/4 everywhere
    assert mean_average_precision_11(labels, np.full((4, 1), 0.5)) == pytest.approx(0.5)


def test_the_area_under_the_curve_is_the_share_of_right_pairs_with_ties_as_halves() -> None:
    labels = np.array([1, 1, 0, 0])
    scores = np.array([0.9, 0.4, 0.4, 0.1])
    assert roc_auc(labels, np.stack([1 - scores, scores], axis=1)) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    with pytest.raises(ValueError, match="needs images of both classes"):
        roc_auc(np.ones(3, int), np.ones((3, 2)))
