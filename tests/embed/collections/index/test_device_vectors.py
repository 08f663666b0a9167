"""Search on a GPU; where there is none, an index of the same interface is used instead."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from services.embed.collections.index.gpu import MAX_ANSWERS
from services.embed.collections.index.snapshots import load_snapshot, save_snapshot
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from tests.embed.collections.index.processor import device
from tests.embed.collections.vectors import best_scores, clustered, rows_from, uniform

WIDTH = 16
# The vectors of a table may be larger than what one index may have of the GPU.
LARGER = IndexOptions(max_exact=1000, device="cuda", max_device_bytes=0)


def index_of(vectors: np.ndarray, options: IndexOptions | None = None) -> VectorIndex:
    index = VectorIndex(WIDTH, options or IndexOptions(device="cuda"), gpu=device())
    index.append(rows_from(1, len(vectors)), vectors, through=len(vectors))
    return index


def test_without_a_gpu_the_processor_searches() -> None:
    if faiss.get_num_gpus() > 0:
        pytest.skip("there is one")
    index = VectorIndex(WIDTH, IndexOptions(device="cuda"))
    vectors = uniform(0, 50, WIDTH)
    index.append(rows_from(1, 50), vectors, through=50)
    np.testing.assert_allclose(index.search(vectors[:2], 3).scores, best_scores(vectors[:2], vectors, 3), atol=1e-6)


def test_more_dead_rows_than_the_device_can_sort_do_not_hide_the_living() -> None:
    vectors = uniform(0, MAX_ANSWERS + 100, WIDTH)
    index = index_of(vectors)
    queries = uniform(1, 3, WIDTH)
    nearest = index.search(queries[:1], MAX_ANSWERS)
    for row in nearest.rows[0].tolist():
        index.delete(row)
    alive = vectors[index.rows - 1]
    for _ in range(2):
        found = index.search(queries, 10)
        np.testing.assert_allclose(found.scores, best_scores(queries, alive, 10), atol=1e-6)
        index.rebuild()


def test_the_device_compares_every_vector_that_fits_whatever_their_number() -> None:
    index = index_of(clustered(0, 500, WIDTH), IndexOptions(max_exact=100))
    assert not index.needs_rebuild
    index.rebuild()
    assert (index.kind, index.is_exact) == ("flat", True)


@pytest.mark.parametrize("share", [0.9, 0.3, 0.02, 0.001, 0])
def test_a_filter_on_the_device_finds_the_nearest_of_what_it_lets_through(share: float) -> None:
    vectors, queries = uniform(0, 5000, WIDTH), uniform(1, 4, WIDTH)
    index = index_of(vectors)
    kept = np.flatnonzero(np.random.default_rng(2).random(5000) < share)
    for row in (kept[::7] + 1).tolist():
        index.delete(row)
    found = index.search(queries, 10, among=kept + 1)
    alive = np.setdiff1d(kept, kept[::7])
    k = min(10, len(alive))
    np.testing.assert_allclose(found.scores[:, :k], best_scores(queries, vectors[alive], k), atol=1e-6)
    assert (found.rows[:, k:] == -1).all()
    assert np.isin(found.rows[:, :k], alive + 1).all()


@pytest.mark.parametrize("share", [1, 0.5])
def test_lists_on_the_device_find_what_lists_on_the_processor_find(share: float) -> None:
    vectors, queries = clustered(0, 6000, WIDTH), clustered(1, 20, WIDTH)
    on_device, on_processor = index_of(vectors, LARGER), VectorIndex(WIDTH, IndexOptions(max_exact=1000))
    on_processor.append(rows_from(1, len(vectors)), vectors, through=len(vectors))
    among = None if share == 1 else rows_from(1, 6000)[::2]
    best = best_scores(queries, vectors if among is None else vectors[among - 1], 10)
    for index in (on_device, on_processor):
        assert index.needs_rebuild
        index.rebuild()
        assert index.kind == "ivf"
        found = index.search(queries, 10, among=among)
        assert (found.scores >= best[:, -1:] - 1e-6).mean() >= 0.9
    assert on_device.recall_at_10 == pytest.approx(on_processor.recall_at_10, abs=0.05)


def test_lists_on_the_device_come_back_from_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = index_of(clustered(0, 3000, WIDTH), LARGER)
    index.rebuild()
    save_snapshot(index.contents, path, identity={"a": "b"}, max_exact=1000)
    restored = VectorIndex.holding(*load_snapshot(path, identity={"a": "b"}), LARGER)
    queries = clustered(1, 5, WIDTH)
    np.testing.assert_array_equal(restored.search(queries, 10).rows, index.search(queries, 10).rows)
