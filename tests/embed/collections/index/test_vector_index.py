"""Guarantees of a VectorIndex of any size: answers equal to numpy's, immediate deletions, nothing lost."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from services.embed.collections.index.vector_index import Found, IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Rows, Vectors
from tests.embed.collections.index.processor import device
from tests.embed.collections.vectors import best_scores, clustered, rows_from, uniform

WIDTH = 24
SMALL = IndexOptions(max_exact=300)


def exact_index(width: int) -> VectorIndex:
    return VectorIndex(width, IndexOptions())


def approximate_index(width: int) -> VectorIndex:
    """Build inverted lists early, and probe as many as possible."""
    return VectorIndex(width, SMALL)


def device_index(width: int) -> VectorIndex:
    """On a GPU, or where there is none with an index of the same interface in its place."""
    return VectorIndex(width, IndexOptions(), gpu=device())


def filled(vectors: Vectors, options: IndexOptions | None = None) -> VectorIndex:
    index = VectorIndex(vectors.shape[1], options or IndexOptions())
    index.append(rows_from(1, len(vectors)), vectors, through=len(vectors))
    return index


def check_answer(found: Found, model: dict[int, Vectors], queries: Vectors, k: int, among: Rows | None = None) -> None:
    """The scores are the best there are, and each is the cosine of its row; rows of equal scores may differ."""
    rows = [row for row in model if among is None or row in set(among.tolist())]
    stored = np.stack([model[row] for row in rows]) if rows else np.zeros((0, queries.shape[1]), np.float32)
    assert found.rows.shape == found.scores.shape == (len(queries), k)
    assert found.rows.dtype == np.int64 and found.scores.dtype == np.float32
    np.testing.assert_allclose(found.scores, best_scores(queries, stored, k), atol=1e-5)
    check_truth(found, model, queries)
    assert ((found.rows >= 0).sum(axis=1) == min(k, len(rows))).all()
    assert among is None or np.isin(found.rows, [-1, *among]).all()


def check_truth(found: Found, model: dict[int, Vectors], queries: Vectors) -> None:
    """Each row is stored, answers once, and its score is its cosine; what is missing stands last."""
    for query, rows, scores in zip(queries, found.rows, found.scores, strict=True):
        held = rows[rows >= 0].tolist()
        assert len(set(held)) == len(held)
        assert (np.diff(scores[: len(held)]) <= 0).all()
        assert (rows[len(held) :] == -1).all() and np.isneginf(scores[len(held) :]).all()
        for row, score in zip(held, scores.tolist(), strict=False):
            assert score == pytest.approx(float(query @ model[row]), abs=1e-5)


@pytest.mark.slow
def test_search_finds_what_numpy_finds() -> None:
    vectors, queries = uniform(0, 700, WIDTH), uniform(1, 40, WIDTH)
    model = {row + 1: vector for row, vector in enumerate(vectors)}
    for num_queries in (1, 2, 40):
        for k in (1, 10, 150, 700):
            check_answer(filled(vectors).search(queries[:num_queries], k), model, queries[:num_queries], k)


def test_a_k_larger_than_the_index_is_padded() -> None:
    found = filled(uniform(0, 3, WIDTH)).search(uniform(1, 2, WIDTH), 5)
    assert (found.rows[:, 3:] == -1).all()
    assert np.isneginf(found.scores[:, 3:]).all()
    assert (np.sort(found.rows[:, :3]) == [1, 2, 3]).all()


def test_an_empty_index_finds_nothing() -> None:
    index = VectorIndex(WIDTH, IndexOptions())
    found = index.search(uniform(1, 2, WIDTH), 4, among=rows_from(1, 3))
    assert (found.rows == -1).all()
    assert (index.search(uniform(1, 2, WIDTH), 4).rows == -1).all()
    assert (index.through, index.num_vectors, index.kind, index.is_exact) == (0, 0, "flat", True)
    assert index.recall_at_10 is None
    assert not index.needs_rebuild


def test_among_equal_vectors_the_lower_row_stands_first() -> None:
    same = np.repeat(uniform(0, 2, WIDTH), 6, axis=0)
    found = filled(same).search(same[:1], 12)
    assert found.rows.tolist() == [[*range(1, 13)]]


@pytest.mark.parametrize("size", [200, 900])
def test_a_filter_leaves_only_its_rows_and_finds_the_best_of_them(size: int) -> None:
    vectors, queries = uniform(0, size, WIDTH), uniform(1, 5, WIDTH)
    index = filled(vectors, SMALL)
    index.delete(4)
    model = {row + 1: vector for row, vector in enumerate(vectors) if row + 1 != 4}
    for among in ([], [4], [2, 4, 6, size, size + 1, 10**9], range(1, size, 3)):
        rows = np.array(among, np.int64)
        check_answer(index.search(queries, 10, among=rows), model, queries, 10, rows)


def test_vectors_come_back_bit_for_bit_until_they_are_deleted() -> None:
    vectors = uniform(0, 5, WIDTH)
    index = VectorIndex(WIDTH, IndexOptions())
    index.append(rows_from(10, 5, step=10), vectors, through=60)
    index.delete(30)
    held, is_held = index.vectors(np.array([20, 30, 35, 50, 99]))
    assert is_held.tolist() == [True, False, False, True, False]
    assert (held[[0, 3]] == vectors[[1, 4]]).all()
    assert (held[[1, 2, 4]] == 0).all()
    assert index.rows.tolist() == [10, 20, 40, 50]
    assert (index.through, index.num_vectors) == (60, 4)


def test_rows_may_be_passed_without_vectors() -> None:
    index = VectorIndex(WIDTH, IndexOptions())
    index.append(rows_from(1, 0), np.zeros((0, WIDTH), np.float32), through=7)
    assert (index.through, index.num_vectors) == (7, 0)


@pytest.mark.parametrize(
    ("rows", "through"), [([3, 2], 9), ([2, 2], 9), ([5], 9), ([1], 9), ([10], 9), ([7, 8], 7), ([], 4)]
)
def test_rows_that_do_not_ascend_behind_those_taken_in_are_refused(rows: list[int], through: int) -> None:
    index = filled(uniform(0, 5, WIDTH))
    with pytest.raises(ValueError, match="rows must ascend within 6 to"):
        index.append(np.array(rows, np.int64), uniform(1, len(rows), WIDTH), through=through)
    assert (index.through, index.num_vectors) == (5, 5)


def test_vectors_of_another_width_are_refused() -> None:
    index = filled(uniform(0, 5, WIDTH))
    with pytest.raises(ValueError, match="24 numbers"):
        index.append(rows_from(6, 2), uniform(1, 2, WIDTH + 1), through=7)
    with pytest.raises(ValueError, match=r"shape \(Q, 24\)"):
        index.search(uniform(1, 2, WIDTH + 1), 3)
    with pytest.raises(ValueError, match="k be positive"):
        index.search(uniform(1, 2, WIDTH), 0)


def test_deleting_twice_or_what_is_not_there_changes_nothing_more() -> None:
    index = filled(uniform(0, 9, WIDTH))
    for row in (3, 3, 0, 10, -5):
        index.delete(row)
    assert index.num_vectors == 8


def test_memory_is_given_back_by_a_rebuild_once_many_rows_are_dead() -> None:
    index = filled(uniform(0, 100, WIDTH))
    full = index.num_bytes
    assert full >= 100 * WIDTH * 4
    for row in range(1, 51):
        assert index.needs_rebuild == (row > 26)
        index.delete(row)
    assert index.num_bytes == full
    index.rebuild()
    assert not index.needs_rebuild
    assert index.num_bytes == full // 2
    assert (index.rows == rows_from(51, 50)).all()


@pytest.mark.parametrize("make", [exact_index, approximate_index, device_index])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_any_order_of_changes_gives_what_a_dictionary_would(make: Callable[[int], VectorIndex], seed: int) -> None:
    rng = np.random.default_rng(seed)
    index, model = make(WIDTH), dict[int, Vectors]()
    kinds = set()
    for step in range(120):
        action = rng.choice(["append", "delete", "search", "filter", "rebuild"], p=[0.3, 0.3, 0.2, 0.15, 0.05])
        if action == "append":
            new = clustered(1000 * seed + step, int(rng.integers(0, 90)), WIDTH)
            rows = index.through + np.cumsum(rng.integers(1, 4, len(new)))
            through = int(rows[-1]) if len(rows) else index.through
            index.append(rows, new, through=through + int(rng.integers(0, 2)))
            model |= dict(zip(rows.tolist(), new, strict=True))
        elif action == "delete":
            for row in rng.integers(0, index.through + 2, 20).tolist():
                index.delete(row)
                model.pop(row, None)
        elif action == "rebuild":
            index.rebuild()
            kinds.add(index.kind)
        else:
            queries, k = clustered(step, int(rng.integers(1, 4)), WIDTH), int(rng.choice([1, 10, 120]))
            among = np.flatnonzero(rng.random(index.through + 2) < rng.random()) if action == "filter" else None
            found = index.search(queries, k, among=among)
            if index.is_exact:
                check_answer(found, model, queries, k, among)
            else:
                check_truth(found, model, queries)
                assert among is None or np.isin(found.rows, [-1, *among]).all()
                num_rows = len(model) if among is None else len(set(model) & set(among.tolist()))
                assert ((found.rows >= 0).sum(axis=1) == min(k, num_rows)).all()
        assert index.num_vectors == len(model)
        assert index.rows.tolist() == sorted(model)
    assert ("ivf" in kinds) == (make is approximate_index)


@pytest.mark.slow
def test_what_is_appended_and_deleted_during_a_rebuild_outlasts_it() -> None:
    vectors = clustered(0, 40_000, WIDTH)
    index = filled(vectors[:20_000], SMALL)
    index.delete(1)
    deleted = {1}
    rebuild = threading.Thread(target=index.rebuild)
    rebuild.start()
    is_rebuilding = True  # once at least, however quick the rebuild was
    while is_rebuilding and index.through < 40_000:
        is_rebuilding = rebuild.is_alive()
        last = index.through
        index.append(rows_from(last + 1, 4), vectors[last : last + 4], through=last + 4)
        for row in (last + 2, last - 15_000):
            index.delete(row)
            deleted.add(row)
    rebuild.join()
    assert index.through > 20_000
    assert index.kind == "ivf"
    left = np.setdiff1d(rows_from(1, index.through), list(deleted))
    assert (index.rows == left).all()
    held, is_held = index.vectors(left)
    assert is_held.all() and (held == vectors[left - 1]).all()


@pytest.mark.parametrize("make", [exact_index, approximate_index, device_index])
@pytest.mark.slow
def test_readers_never_find_what_was_deleted_while_others_append_delete_and_rebuild(
    make: Callable[[int], VectorIndex],
) -> None:
    vectors = clustered(0, 4000, WIDTH)
    index = make(WIDTH)
    index.append(rows_from(1, 1000), vectors[:1000], through=1000)
    deleted = np.zeros(4001, np.bool_)  # set after delete() returned
    is_over = threading.Event()

    def read(seed: int) -> int:
        rng, num_searches = np.random.default_rng(seed), 0
        while not is_over.is_set() or not num_searches:
            gone = deleted.copy()
            queries = vectors[rng.integers(0, 4000, 3)]
            among = np.flatnonzero(rng.random(4001) < 0.5) if rng.random() < 0.3 else None
            found = index.search(queries, 10, among=among)
            held = found.rows[found.rows >= 0]
            assert not gone[held].any()
            of_row = vectors[np.maximum(found.rows, 1) - 1]
            cosines = np.einsum("qke,qe->qk", of_row, queries)
            assert (np.abs(cosines - found.scores)[found.rows >= 0] < 1e-5).all()
            num_searches += 1
        return num_searches

    def append() -> None:
        for start in range(1000, 4000, 50):
            index.append(rows_from(start + 1, 50), vectors[start : start + 50], through=start + 50)

    def delete() -> None:
        for row in np.random.default_rng(5).permutation(np.arange(1, 3001)).tolist()[:1200]:
            while index.through < row:
                index.rebuild()
            index.delete(row)
            deleted[row] = True

    def rebuild() -> None:
        for _ in range(4):
            index.rebuild()

    with ThreadPoolExecutor(5) as threads:
        readers = [threads.submit(read, seed) for seed in range(2)]
        try:
            for writer in [threads.submit(write) for write in (append, delete, rebuild)]:
                writer.result()
        finally:
            is_over.set()
        assert all(reader.result() > 0 for reader in readers)
    assert (index.rows == np.flatnonzero(~deleted[1:]) + 1).all()
    index.rebuild()
    assert (index.rows == np.flatnonzero(~deleted[1:]) + 1).all()
    held, is_held = index.vectors(index.rows)
    assert is_held.all() and (held == vectors[index.rows - 1]).all()
