"""Approximate search: taken only where it keeps its promise, measured as promised, and true in what it says."""

from dataclasses import replace

import numpy as np
import pytest

from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Vectors
from tests.embed.collections.vectors import best_scores, clustered, rows_from, uniform

WIDTH = 32
SIZE = 6000
OPTIONS = IndexOptions(max_exact=1000, min_recall=0.95)
VECTORS = clustered(0, SIZE, WIDTH)
QUERIES = clustered(1, 200, WIDTH)


def built(vectors: Vectors = VECTORS, options: IndexOptions = OPTIONS) -> VectorIndex:
    index = VectorIndex(WIDTH, options)
    index.append(rows_from(1, len(vectors)), vectors, through=len(vectors))
    index.rebuild()
    return index


def recall_at_10(index: VectorIndex, queries: Vectors, stored: Vectors) -> float:
    """Share of the answers that score as high as the tenth of an exact search."""
    found = index.search(queries, 10)
    return float((found.scores >= best_scores(queries, stored, 10)[:, -1:] - 1e-5).mean())


def test_a_small_index_stays_exact_and_a_large_one_needs_a_rebuild_to_be_approximate() -> None:
    small = built(VECTORS[:1000])
    assert (small.kind, small.is_exact, small.recall_at_10, small.needs_rebuild) == ("flat", True, None, False)
    small.append(rows_from(1001, 1), VECTORS[1000:1001], through=1001)
    assert small.needs_rebuild
    assert small.is_exact
    small.rebuild()
    assert (small.kind, small.is_exact, small.needs_rebuild) == ("ivf", False, False)


def test_recall_is_measured_and_holds_for_queries_that_are_not_stored() -> None:
    index = built()
    assert index.recall_at_10 is not None
    assert 0.95 <= index.recall_at_10 <= 1
    assert recall_at_10(index, QUERIES, VECTORS) >= 0.93


@pytest.mark.slow
def test_measured_recall_is_that_of_stored_vectors_asked_for_their_neighbours() -> None:
    vectors = uniform(0, 3000, WIDTH)
    index = built(vectors, replace(OPTIONS, min_recall=0.5))
    found = index.search(vectors, 11)
    is_other = found.rows != rows_from(1, 3000)[:, None]
    assert (is_other.sum(axis=1) == 10).all()
    others = found.scores[is_other].reshape(3000, 10)
    tenth = best_scores(vectors, vectors, 11)[:, -1:]  # the first is the vector itself
    assert float((others >= tenth - 1e-5).mean()) == pytest.approx(index.recall_at_10, abs=0.03)


def test_a_higher_aim_is_met_by_looking_into_more_lists() -> None:
    low, high = built(options=replace(OPTIONS, min_recall=0.5)), built(options=replace(OPTIONS, min_recall=0.999))
    assert low.contents.lists and high.contents.lists
    assert low.contents.lists.nprobe < high.contents.lists.nprobe
    assert low.recall_at_10 and high.recall_at_10
    assert 0.5 <= low.recall_at_10 < 0.999 <= high.recall_at_10
    assert recall_at_10(low, QUERIES, VECTORS) < recall_at_10(high, QUERIES, VECTORS)


def test_vectors_that_no_lists_can_tell_apart_stay_exact_and_are_not_tried_again_at_once() -> None:
    index = built(uniform(0, 3000, WIDTH), replace(OPTIONS, min_recall=0.999))
    assert (index.kind, index.recall_at_10, index.needs_rebuild) == ("flat", None, False)
    index.append(rows_from(3001, 1000), uniform(1, 1000, WIDTH), through=4000)
    assert index.needs_rebuild


def test_equal_vectors_do_not_count_as_missed() -> None:
    copies = np.repeat(clustered(2, 60, WIDTH), 50, axis=0)
    assert built(copies).recall_at_10 == 1


def test_scores_are_the_cosines_of_the_vectors_not_of_their_codes() -> None:
    found = built().search(QUERIES, 10)
    cosines = np.einsum("qke,qe->qk", VECTORS[found.rows - 1], QUERIES)
    np.testing.assert_allclose(found.scores, cosines, atol=1e-6)


def test_what_was_appended_since_is_found_and_sorted_in_once_it_is_much() -> None:
    index = built(VECTORS[:5000])
    appended = clustered(3, 500, WIDTH)
    index.append(rows_from(5001, 500), appended, through=5500)
    is_due = [index.needs_rebuild]
    assert (index.search(appended, 1).rows[:, 0] == rows_from(5001, 500)).all()
    index.append(rows_from(5501, 500), VECTORS[5500:], through=6000)
    is_due.append(index.needs_rebuild)
    index.rebuild()
    assert [*is_due, index.needs_rebuild] == [False, True, False]
    assert index.contents.lists and (index.contents.lists.size, index.contents.lists.num_trained) == (6000, 5000)
    stored = np.concatenate([VECTORS[:5000], appended, VECTORS[5500:]])
    assert recall_at_10(index, QUERIES, stored) >= 0.93


def test_centroids_are_fitted_again_once_there_are_more_than_twice_as_many_vectors() -> None:
    index = built(VECTORS[:2000])
    index.append(rows_from(2001, 4000), VECTORS[2000:], through=6000)
    index.rebuild()
    assert index.contents.lists and index.contents.lists.num_trained == 6000
    assert recall_at_10(index, QUERIES, VECTORS) >= 0.93


def test_dead_rows_are_not_found_before_a_rebuild_nor_after_it() -> None:
    index = built()
    dead = np.random.default_rng(0).choice(SIZE, 2000, replace=False)
    for row in (dead + 1).tolist():
        index.delete(row)
    stored = np.delete(VECTORS, dead, axis=0)
    for _ in range(2):
        found = index.search(QUERIES, 10)
        assert not np.isin(found.rows, dead + 1).any()
        assert recall_at_10(index, QUERIES, stored) >= 0.93
        index.rebuild()
    assert (index.kind, index.num_vectors, len(index.contents.table)) == ("ivf", 4000, 4000)


def test_an_index_that_shrinks_to_a_small_one_is_exact_again() -> None:
    index = built()
    for row in range(1, 5001):
        index.delete(row)
    index.rebuild()
    assert (index.kind, index.num_vectors) == ("flat", 1000)


@pytest.mark.parametrize("k", [100, 1000, 6000, 7000])
def test_many_answers_are_as_many_as_asked_for(k: int) -> None:
    found = built().search(QUERIES[:3], k)
    assert ((found.rows >= 0).sum(axis=1) == min(k, SIZE)).all()
    right = found.scores >= best_scores(QUERIES[:3], VECTORS, min(k, SIZE))[:, -1:] - 1e-5
    assert right[:, : min(k, SIZE)].mean() > 0.9


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_a_filter_keeps_recall_however_much_it_leaves(share: float) -> None:
    index = built(VECTORS[:5600])
    index.append(rows_from(5601, 400), VECTORS[5600:], through=SIZE)
    among = np.flatnonzero(np.random.default_rng(0).random(SIZE) < share) + 1
    found = index.search(QUERIES, 10, among=among)
    assert np.isin(found.rows, among).all()
    right = found.scores >= best_scores(QUERIES, VECTORS[among - 1], 10)[:, -1:] - 1e-5
    assert right.mean() >= (1 if len(among) <= OPTIONS.max_exact else 0.93)


def test_a_filter_that_leaves_no_more_than_may_be_compared_is_answered_exactly() -> None:
    among = np.sort(np.random.default_rng(0).choice(SIZE, 1000, replace=False)) + 1
    found = built(options=replace(OPTIONS, min_recall=0.3)).search(QUERIES, 10, among=among)
    np.testing.assert_allclose(found.scores, best_scores(QUERIES, VECTORS[among - 1], 10), atol=1e-5)


def test_a_filter_that_leaves_only_what_is_far_from_the_query_still_fills_the_answer() -> None:
    far = np.sort(np.argsort(VECTORS @ QUERIES[0])[:1500]) + 1
    found = built().search(QUERIES[:1], 10, among=far)
    assert np.isin(found.rows, far).all()
