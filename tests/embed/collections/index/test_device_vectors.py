"""Search on a GPU: refused where there is none; the index used instead here has the same interface."""

import faiss
import numpy as np
import pytest

from services.embed.collections.index.vector_index import MAX_ANSWERS, DeviceVectors, IndexOptions, VectorIndex
from tests.embed.collections.vectors import best_scores, clustered, rows_from, uniform

WIDTH = 16


def test_a_gpu_that_is_not_there_is_refused_with_the_name_of_the_extra() -> None:
    if faiss.get_num_gpus() > 0:
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="search-gpu"):
        VectorIndex(WIDTH, IndexOptions(device="cuda"))


def test_more_dead_rows_than_the_device_can_sort_do_not_hide_the_living() -> None:
    vectors = uniform(0, MAX_ANSWERS + 100, WIDTH)
    index = VectorIndex(WIDTH, IndexOptions(), device=DeviceVectors(faiss.IndexFlatIP(WIDTH)))
    index.append(rows_from(1, len(vectors)), vectors, through=len(vectors))
    queries = uniform(1, 3, WIDTH)
    nearest = index.search(queries[:1], MAX_ANSWERS)
    for row in nearest.rows[0].tolist():
        index.delete(row)
    alive = vectors[index.rows - 1]
    for _ in range(2):
        found = index.search(queries, 10)
        np.testing.assert_allclose(found.scores, best_scores(queries, alive, 10), atol=1e-6)
        index.rebuild()


def test_the_device_compares_every_vector_whatever_their_number() -> None:
    index = VectorIndex(WIDTH, IndexOptions(max_exact=100), device=DeviceVectors(faiss.IndexFlatIP(WIDTH)))
    index.append(rows_from(1, 500), clustered(0, 500, WIDTH), through=500)
    assert not index.needs_rebuild
    index.rebuild()
    assert (index.kind, index.is_exact) == ("flat", True)
