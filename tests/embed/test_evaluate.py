"""The metrics equal the reference's, and ColorShape's protocol ranks what it says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from services.embed.colorshape import is_held_out
from services.embed.data import CONDITIONS, TEST_INSTRUCTIONS, UNSEEN_CONDITIONS, wordings
from services.embed.evaluate import (
    ColorShapeProtocol,
    average_precisions,
    continuous_color_correlation,
    expected_average_precision,
    labels_of,
    leave_one_out_recall,
    mean_average_precision,
    random_mean_average_precision,
    scaled_average_precision,
    target_recall,
)

GOLDENS = Path(__file__).parents[1] / "goldens"
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
    for k in (1, 3):
        recall = leave_one_out_recall(similarity, labels, k)
        assert recall == pytest.approx(golden[f"recall_at_{k}"], abs=TOLERANCE)


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
    assert mean_average_precision(constant, labels) == pytest.approx(1 / 3)
    assert leave_one_out_recall(constant, labels, 1) == 0
    assert target_recall(np.ones((5, 10)), 1) == 0


def test_held_out_combinations_are_never_among_the_sixteen_classes() -> None:
    protocol = ColorShapeProtocol(num_per_class=1)
    scenes, held_out = protocol.scenes(), protocol.held_out_scenes()
    assert not is_held_out(scenes.color[:, 0], scenes.shape[:, 0]).any()
    assert is_held_out(held_out.color[:, 0], held_out.shape[:, 0]).all()
    assert len(np.unique(labels_of(scenes, "both"))) == 16


def test_the_instructions_asked_are_in_no_list_of_training_wordings() -> None:
    trained = [text for condition in CONDITIONS if condition not in UNSEEN_CONDITIONS for text in wordings(condition)]
    assert len(trained) == len(set(trained)) > 500
    assert not any(text.startswith("What is the") or "the image" in text for text in trained)
    assert all(text.startswith("What is the") for text in TEST_INSTRUCTIONS.values())


def test_the_protocol_draws_the_same_scenes_every_time() -> None:
    one, other = ColorShapeProtocol().scenes(), ColorShapeProtocol().scenes()
    assert torch.equal(one.rgb, other.rgb)
