"""The promises of the index in PostgreSQL alone: of its graph, and of what is removed meanwhile."""

import threading

import numpy as np
import pytest

pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")

from services.embed.collections.cluster.connections import Connections
from services.embed.collections.cluster.vectors import GRAPHS, IndexRemoved
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


def graphs(shared: ClusterIndex) -> dict[str, bool]:
    """Return the graphs of an index, and whether each is complete."""
    with shared.connections.reading() as connection:
        return dict(connection.execute(GRAPHS, (f"vectors_{shared.number}",)).fetchall())


def test_what_comes_after_the_graph_is_always_found_and_what_is_deleted_never(shared: ClusterIndex) -> None:
    stored, new = clustered(0, 3000, WIDTH), uniform(1, 1000, WIDTH)
    shared.add(rows_from(1, 3000), stored)
    shared.index.take_over(3000, 3000, None)
    tuning = shared.index.tune(rows_from(1, 40))
    shared.index.take_over(3000, 3000, tuning)
    shared.add(rows_from(3001, 1000), new)
    assert (shared.search(new, 1).rows[:, 0] == rows_from(3001, 1000)).all()
    wanted = rows_from(1, 3900)  # a filter that wants more than are compared without the graph
    assert (shared.search(new[:900], 1, among=wanted).rows[:, 0] == rows_from(3001, 900)).all()
    assert shared.search(new[900:], 1, among=wanted).rows.max() <= 3900
    shared.delete([*range(1, 60), *range(3001, 3060)])
    found = shared.search(np.concatenate([stored[:60], new[:60]]), 10).rows
    assert not np.isin(found, [*range(1, 60), *range(3001, 3060)]).any()


def test_a_graph_is_made_again_for_many_new_vectors_and_replaces_the_earlier_one(shared: ClusterIndex) -> None:
    index, stored = shared.index, clustered(0, 5000, WIDTH)
    shared.add(rows_from(1, 4000), stored[:4000])
    index.take_over(4000, 4000, None)
    earlier = index.tune(rows_from(1, 40))
    index.take_over(4000, 4000, '{"num_candidates": 40, "recall": 0.97, "num_vectors": 4000}')  # of an earlier version
    assert (index.kind, index.needs_tuning) == ("flat", True)
    index.take_over(4080, 4080, earlier)
    assert (index.kind, index.needs_tuning) == ("hnsw", False)
    index.take_over(5000, 4000, earlier)  # as many were deleted as added
    assert (index.kind, index.needs_tuning) == ("hnsw", True)
    shared.add(rows_from(4001, 1000), stored[4000:])
    later = index.tune(rows_from(1, 40))
    assert graphs(shared) == {f"vectors_{shared.number}_graph_5000": True}
    # another process still searches by the earlier graph
    for tuning in (earlier, later):
        index.take_over(5000, 5000, tuning)
        assert (index.search(stored[::50], 1).rows[:, 0] == rows_from(1, 100, step=50)).mean() >= 0.9
    assert (index.kind, index.needs_tuning) == ("hnsw", False)


def test_a_graph_whose_making_was_interrupted_is_made_again(shared: ClusterIndex) -> None:
    shared.add(rows_from(1, 2500), clustered(0, 2500, WIDTH))
    shared.index.take_over(2500, 2500, None)
    tuning = shared.index.tune(rows_from(1, 40))
    (graph,) = graphs(shared)
    with shared.connections.reading() as connection:
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", (graph,))
    assert graphs(shared) == {graph: False}
    assert shared.index.tune(rows_from(1, 40)) == tuning
    assert graphs(shared) == {graph: True}


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
