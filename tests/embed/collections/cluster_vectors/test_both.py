"""The promises of both the index in memory and the one in PostgreSQL."""

import numpy as np

from services.embed.collections.index.vector_table import Rows, Vectors
from tests.embed.collections.cluster_vectors.conftest import WIDTH, Index
from tests.embed.collections.index.test_vector_index import check_answer
from tests.embed.collections.vectors import rows_from, uniform


def model_of(rows: Rows, vectors: Vectors) -> dict[int, Vectors]:
    return dict(zip(rows.tolist(), vectors, strict=True))


def test_an_empty_index_finds_nothing(index: Index) -> None:
    assert (index.search(uniform(1, 2, WIDTH), 4).rows == -1).all()
    found = index.search(uniform(1, 2, WIDTH), 4, among=rows_from(1, 3))
    assert found.rows.shape == (2, 4)
    assert (found.rows == -1).all() and np.isneginf(found.scores).all()
    assert index.vectors(np.array([1, 2]))[1].tolist() == [False, False]
    assert (index.is_exact, index.rows()) == (True, [])


def test_searches_find_what_numpy_finds_with_and_without_a_filter(index: Index) -> None:
    rows, vectors, queries = rows_from(3, 700, step=2), uniform(0, 700, WIDTH), uniform(1, 5, WIDTH)
    index.add(rows, vectors)
    model = model_of(rows, vectors)
    for k in (1, 10, 150, 701):
        check_answer(index.search(queries, k), model, queries, k)
    for among in ([], [4], [2, 3, 5, 1401, 1402, 10**9], range(1, 1500, 3)):
        wanted = np.array(among, np.int64)
        check_answer(index.search(queries, 10, among=wanted), model, queries, 10, wanted)


def test_a_large_filter_is_as_exact_as_a_small_one(index: Index) -> None:
    rows, vectors, queries = rows_from(1, 20_000), uniform(0, 20_000, WIDTH), uniform(1, 3, WIDTH)
    index.add(rows, vectors)
    for wanted, k in ((rows[rows % 7 > 0], 10), (rows_from(12_000, 10_000), 10), (rows[rows % 2 == 0], 9000)):
        held = wanted[wanted <= 20_000]
        model = model_of(held, vectors[held - 1])
        check_answer(index.search(queries, k, among=wanted), model, queries, k)


def test_what_is_deleted_is_not_found_again(index: Index) -> None:
    rows, vectors = rows_from(1, 300), uniform(0, 300, WIDTH)
    index.add(rows, vectors)
    model = model_of(rows, vectors)
    for deleted in ([1], [5, 5, 301, 10**6], list(range(100, 250))):
        index.delete(deleted)
        model = {row: vector for row, vector in model.items() if row not in deleted}
        queries = vectors[[0, 4, 120]]
        check_answer(index.search(queries, 10), model, queries, 10)
        check_answer(index.search(queries, 10, among=rows), model, queries, 10, rows)
        assert index.rows() == sorted(model)


def test_vectors_come_back_bit_for_bit_until_they_are_deleted(index: Index) -> None:
    vectors = uniform(0, 5, WIDTH)
    index.add(rows_from(10, 5, step=10), vectors)
    index.delete([30])
    held, is_held = index.vectors(np.array([50, 20, 30, 35, 99]))
    assert is_held.tolist() == [True, True, False, False, False]
    assert (held[[0, 1]] == vectors[[4, 1]]).all()
    assert (held[2:] == 0).all()
    assert index.rows() == [10, 20, 40, 50]


def test_among_equal_vectors_the_lower_row_stands_first(index: Index) -> None:
    same = np.repeat(uniform(0, 2, WIDTH), 6, axis=0)
    index.add(rows_from(1, 12), same)
    assert index.search(same[:1], 12).rows.tolist() == [[*range(1, 13)]]
