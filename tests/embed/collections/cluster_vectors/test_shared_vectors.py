"""The promises of the index in PostgreSQL alone: of its graph, and of what is removed meanwhile."""

import threading

import numpy as np
import pytest

pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")

from services.embed.collections.cluster.connections import Connections
from services.embed.collections.cluster.vectors import IndexRemoved
from services.embed.collections.index.vector_index import IndexOptions
from tests.embed.collections.cluster_vectors.conftest import WIDTH
from tests.embed.collections.index.test_vector_index import check_answer
from tests.embed.collections.shared_index import ClusterIndex
from tests.embed.collections.vectors import clustered, rows_from, uniform

pytestmark = pytest.mark.process


@pytest.fixture
def shared(connections: Connections) -> ClusterIndex:
    return ClusterIndex(connections, WIDTH, IndexOptions(max_exact=2000, min_recall=0.9))


def test_the_fewest_candidates_that_reach_the_recall_are_looked_at(shared: ClusterIndex) -> None:
    size, index = 6000, shared.index
    rows, stored, queries = rows_from(1, size), clustered(0, size, WIDTH), clustered(1, 40, WIDTH)
    shared.add(rows, stored)
    index.take_over(size, 2000, None)
    assert not index.needs_tuning
    index.take_over(size, size, None)
    assert (index.kind, index.needs_tuning) == ("flat", True)
    tuning = index.tune(np.arange(size, size + 40) - 30)  # some of these rows do not exist
    index.take_over(size, size, tuning)
    assert (index.kind, index.is_exact, index.needs_tuning) == ("hnsw", False, False)
    assert index.recall_at_10 is not None and index.recall_at_10 >= 0.9
    model = dict(zip(rows.tolist(), stored, strict=True))
    best = queries @ stored.T
    # also of a filter that leaves many vectors
    for among, scores in ((None, best), (rows[:4000], best[:, :4000])):
        found = index.search(queries, 10, among=among).scores
        assert (found >= np.sort(scores, axis=1)[:, -10:][:, :1] - 1e-5).mean() >= 0.8
    # all of a small filter are compared, and a k that needs all vectors gets them
    check_answer(index.search(queries, 10, among=rows[::7]), model, queries, 10, rows[::7])
    check_answer(index.search(queries[:1], size + 1), model, queries[:1], size + 1)
    index.take_over(size, 3 * size, tuning)
    assert index.needs_tuning


def test_a_graph_finds_what_is_added_later_and_not_what_is_deleted(shared: ClusterIndex) -> None:
    stored, new = clustered(0, 3000, WIDTH), uniform(1, 20, WIDTH)
    shared.add(rows_from(1, 3000), stored)
    shared.index.take_over(3000, 3000, None)
    shared.index.take_over(3000, 3000, shared.index.tune(rows_from(1, 40)))
    shared.add(rows_from(3001, 20), new)
    assert (shared.search(new, 1).rows[:, 0] == rows_from(3001, 20)).mean() >= 0.9
    shared.delete(list(range(1, 60)))
    found = shared.search(stored[:60], 10).rows
    assert found.min() >= 60


def test_a_graph_whose_making_was_interrupted_is_made_again(shared: ClusterIndex) -> None:
    shared.add(rows_from(1, 2500), clustered(0, 2500, WIDTH))
    shared.index.take_over(2500, 2500, None)
    tuning = shared.index.tune(rows_from(1, 40))
    graph = f"vectors_{shared.number}_graph"
    with shared.connections.reading() as connection:
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", (graph,))
        assert shared.index.tune(rows_from(1, 40)) == tuning
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass"
        assert connection.execute(valid, (graph,)).fetchone() == (True,)


@pytest.mark.parametrize("width", [2001, 4001])
def test_vectors_that_are_too_wide_for_a_page_or_a_graph_are_stored_and_found(
    connections: Connections, width: int
) -> None:
    wide = ClusterIndex(connections, width, IndexOptions(max_exact=2, min_recall=0.9))
    rows, vectors = rows_from(1, 12), uniform(0, 12, width)
    wide.add(rows, vectors)
    wide.index.take_over(12, 12, None)
    if wide.index.needs_tuning:
        wide.index.take_over(12, 12, wide.index.tune(rows))
    assert wide.index.kind == ("hnsw" if width < 4000 else "flat")
    check_answer(wide.search(vectors[:3], 5), dict(zip(rows.tolist(), vectors, strict=True)), vectors[:3], 5)


def test_an_image_deleted_while_its_vector_is_written_leaves_none(shared: ClusterIndex) -> None:
    rows, vectors = rows_from(1, 40), uniform(0, 40, WIDTH)
    shared.add_images(rows)
    together = threading.Barrier(2)

    def delete() -> None:
        together.wait()
        shared.delete(rows[::2].tolist())

    thread = threading.Thread(target=delete)
    thread.start()
    together.wait()
    for row in range(40):
        shared.store(rows[row : row + 1], vectors[row : row + 1])
    thread.join()
    assert shared.rows() == rows[1::2].tolist()
    shared.store(rows, vectors)  # as another process does that had the lease before
    assert shared.rows() == rows[1::2].tolist()


def test_an_index_that_was_removed_takes_nothing_and_asks_to_come_again(shared: ClusterIndex) -> None:
    shared.add(rows_from(1, 3), uniform(0, 3, WIDTH))
    shared.work.drop_index("plain")
    shared.store(rows_from(1, 3), uniform(0, 3, WIDTH))
    for call in (lambda: shared.search(uniform(0, 1, WIDTH), 1), lambda: shared.vectors(rows_from(1, 1))):
        with pytest.raises(IndexRemoved) as removed:
            call()
        assert "retry-after" in removed.value.headers()
