"""The metrics equal the reference's, and ties never help."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.embed.evaluation.metrics import (
    average_precisions,
    continuous_color_correlation,
    cosine_rows,
    expected_average_precision,
    mean_average_precision,
    random_mean_average_precision,
    scaled_average_precision,
    target_recall,
)

GOLDENS = Path(__file__).parents[2] / "goldens"
REFERENCE = json.loads((GOLDENS / "retrieval_metrics.json").read_text())
ARRAYS = np.load(GOLDENS / "retrieval_metrics.npz")
TOLERANCE = 1e-6


@pytest.mark.parametrize("golden", REFERENCE["mAP"], ids=lambda golden: golden["case"])
def test_mean_average_precision_equals_the_reference(golden: dict[str, float]) -> None:
    similarity, labels = ARRAYS[f"{golden['case']}/sim"], ARRAYS[f"{golden['case']}/labels"]
    np.testing.assert_allclose(
        average_precisions(similarity, labels), ARRAYS[f"{golden['case']}/ap"], atol=TOLERANCE, equal_nan=True
    )
    mean_ap, random_ap = mean_average_precision(similarity, labels), random_mean_average_precision(labels)
    assert mean_ap == pytest.approx(golden["mAP"], abs=TOLERANCE)
    assert random_ap == pytest.approx(golden["random_mAP_exact"], abs=TOLERANCE)
    assert scaled_average_precision(mean_ap, random_ap) == pytest.approx(golden["scaled"], abs=TOLERANCE)


@pytest.mark.parametrize("golden", REFERENCE["random_AP"], ids=lambda golden: f"n{golden['n']}-m{golden['m']}")
def test_the_expected_precision_of_a_random_ranking_equals_the_reference(golden: dict[str, int]) -> None:
    expected = expected_average_precision(golden["n"], golden["m"])
    assert expected == pytest.approx(golden["expected_AP_exact"], abs=TOLERANCE)


@pytest.mark.parametrize("golden", REFERENCE["celeba_scaled"]["cases"])
def test_scaled_precision_of_celeba_equals_the_reference(golden: dict[str, float]) -> None:
    labels = (np.arange(int(golden["N"])) < golden["n_pos"]).astype(np.int64)
    random_ap = random_mean_average_precision(labels)
    assert random_ap == pytest.approx(golden["random_mAP"], abs=TOLERANCE)
    assert scaled_average_precision(golden["mAP"], random_ap) == pytest.approx(golden["scaled"], abs=TOLERANCE)


@pytest.mark.parametrize("golden", REFERENCE["genecis"], ids=lambda golden: golden["case"])
def test_target_recall_equals_genecis_own(golden: dict[str, float]) -> None:
    for k in (1, 2, 3):
        recall = target_recall(ARRAYS[f"{golden['case']}/sim"], k)
        assert recall == pytest.approx(golden[f"recall_at_{k}"], abs=TOLERANCE)


@pytest.mark.parametrize("golden", REFERENCE["continuous_color"], ids=lambda golden: golden["case"])
def test_continuous_color_correlation_equals_the_reference(golden: dict[str, float]) -> None:
    embeddings, rgb = ARRAYS[f"{golden['case']}/emb"], ARRAYS[f"{golden['case']}/rgb"]
    embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    correlation = continuous_color_correlation(embeddings @ embeddings.T, rgb)
    assert correlation == pytest.approx(golden["mean_per_query_spearman"], abs=TOLERANCE)


def test_ties_never_help() -> None:
    labels = np.array([0, 0, 1, 1])
    constant = np.ones((4, 4))
    assert average_precisions(constant, labels).tolist() == pytest.approx([1 / 3] * 4)
    assert mean_average_precision(constant, labels) == pytest.approx(1 / 3)
    assert target_recall(np.ones((5, 10)), 1) == 0


def test_cosines_row_by_row_are_the_whole_matrix() -> None:
    embeddings = np.random.default_rng(0).normal(size=(1_100, 4)).astype(np.float32)
    rows = np.stack(list(cosine_rows(embeddings)))
    np.testing.assert_allclose(rows, embeddings @ embeddings.T, rtol=1e-5, atol=1e-6)


def test_classes_of_one_image_each_leave_nothing_to_retrieve() -> None:
    with pytest.raises(ValueError, match="nothing to retrieve"):
        mean_average_precision(np.eye(3), np.arange(3))
