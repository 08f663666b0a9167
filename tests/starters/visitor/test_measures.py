"""Measures agree with their definitions and with a well-known library."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from starters.visitor.measures import (
    Bin,
    calibration_error,
    leave_one_out_map,
    random_map,
    refusals,
    reliability,
    right_documents,
    without_a_match,
)
from starters.visitor.questions import Asked, Question, Reply


def test_retrieval_is_scored_as_scikit_learn_scores_it() -> None:
    generator = np.random.default_rng(0)
    similarities = generator.normal(size=(20, 20))
    classes = np.array(["red", "blue", "green", "blue"] * 5)
    expected = []
    for query in range(20):
        others = np.delete(np.arange(20), query)
        expected.append(average_precision_score(classes[others] == classes[query], similarities[query, others]))
    assert leave_one_out_map(similarities, classes) == pytest.approx(np.mean(expected))


def test_equal_similarities_count_against_the_model() -> None:
    classes = np.array(["red", "red", "blue", "blue"])
    assert leave_one_out_map(np.zeros((4, 4)), classes) == pytest.approx(1 / 3)


def test_random_retrieval_is_expected_to_score_what_it_scores_on_average() -> None:
    classes = tuple(["red", "blue", "green", "yellow"] * 6)
    generator = np.random.default_rng(0)
    runs = [leave_one_out_map(generator.normal(size=(24, 24)), np.array(classes)) for _ in range(400)]
    chance = random_map(0)([Question("gallery", {}, (classes,))])
    assert chance == pytest.approx(100 * np.mean(runs), abs=0.4)


def judged(probability: float, *, is_right: bool) -> Asked:
    return Asked(Question("label", {}, "yes"), Reply("yes" if is_right else "no", probability))


def test_calibration_error_is_the_mean_distance_of_probability_and_accuracy() -> None:
    sure = [judged(0.95, is_right=number < 6) for number in range(10)]
    unsure = [judged(0.55, is_right=number < 5) for number in range(10)]
    assert calibration_error(sure) == pytest.approx(35)
    assert calibration_error(unsure) == pytest.approx(5)
    assert calibration_error([*sure, *unsure]) == pytest.approx(20)
    assert calibration_error([judged(1.0, is_right=True)]) == 0


def test_reliability_says_how_many_of_each_bin_were_right() -> None:
    bins = reliability([judged(1.0, is_right=True), judged(0.9375, is_right=False), judged(0.25, is_right=True)])
    assert bins[2] == Bin(1, 25.0, 100.0)
    assert bins[9] == Bin(2, 96.875, 50.0)
    assert [number for number, one in enumerate(bins) if one is not None] == [2, 9]


def test_without_probabilities_there_is_no_calibration_error() -> None:
    assert calibration_error([Asked(Question("answer", {}, ("cat",)), Reply("cat"))]) is None


def test_each_document_of_a_ranking_has_a_probability() -> None:
    ranked = Asked(Question("rank", {}, 0, (0, 1), 0), Reply(0, 0.9, scores=(0.9, 0.3)))
    assert calibration_error([ranked]) == pytest.approx(20)
    nothing = Asked(Question("rank", {}, None, (0, 1)), Reply(0, 0.9, scores=(0.9, 0.3)))
    assert calibration_error([nothing]) == pytest.approx(60)
    low = Asked(Question("rank", {}, None, (0, 1)), Reply(0, 0.4, scores=(0.4, 0.3)))
    assert without_a_match([nothing, low]) == 50


def test_refusals_and_right_documents_are_shares_of_all_questions() -> None:
    question = Question("answer", {}, ("cat",), ("cat", "dog"), 1)
    asked = [
        Asked(question, Reply("cat", document=1)),
        Asked(question, Reply("I don't know.", document=0)),
        Asked(question),
    ]
    assert refusals(asked) == pytest.approx(100 / 3)
    assert right_documents(asked) == pytest.approx(100 / 3)
