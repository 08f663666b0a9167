"""The parts that need no server: names, keys, filters, the choice of how much to read, and an absent server."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pymilvus", reason="needs the extra `cluster`")

from pymilvus import MilvusException

from services.embed.collections.cluster.milvus import (
    MAX_ROW,
    MilvusVectors,
    Partition,
    VectorsRefused,
    VectorsUnreachable,
    partitions,
)
from services.embed.collections.cluster.milvus_index import (
    MAX_LISTS,
    NUM_LISTS,
    MilvusDatabase,
    MilvusIndex,
    Tuning,
    only,
    tuned,
)
from services.embed.collections.cluster.vectors import VectorsLost
from services.embed.collections.index.inverted_lists import recall
from services.embed.collections.index.vector_index import IndexOptions
from services.embed.collections.index.vector_table import Nearest
from tests.core.milvus_server import free_ports
from tests.embed.collections.vectors import uniform

INDEX = MilvusIndex(MilvusVectors("http://127.0.0.1:1"), Partition(1, "a", "plain"), 8, IndexOptions())


def test_a_key_holds_a_row_and_differs_between_conditions() -> None:
    rows = np.array([0, 1, 5, MAX_ROW])
    plain, color = Partition(1, "a", "plain"), Partition(1, "a", "color")
    assert plain.rows(plain.keys(rows)).tolist() == rows.tolist()
    assert not np.intersect1d(plain.keys(rows), color.keys(rows)).size
    assert (plain.keys(rows) >= 0).all()
    for bad in (-1, MAX_ROW + 1):
        with pytest.raises(ValueError, match="rows must be from 0"):
            plain.keys(np.array([bad]))


def test_why_a_server_can_not_be_reached_is_told_without_its_password() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    database = MilvusDatabase(f"http://root:secret@{address}", "", IndexOptions())
    problem = database.problem()
    database.close()
    assert address in problem and "secret" not in problem


@pytest.mark.parametrize("name", ["", "a-b", "ä", "a b", "x" * 101])
def test_names_that_milvus_would_refuse_are_refused(name: str) -> None:
    for checkpoint, condition in ((name, "plain"), ("a", name)):
        with pytest.raises(ValueError, match="names must be"):
            Partition(1, checkpoint, condition)


def test_a_server_that_is_not_there_is_overloaded_and_a_closed_connection_is_an_error() -> None:
    vectors = MilvusVectors(f"http://127.0.0.1:{free_ports(1)[0]}")
    for _ in range(2):
        with pytest.raises(VectorsUnreachable) as error:
            partitions(vectors)
        assert (error.value.status, error.value.code) == (503, "vectors_unreachable")
        assert "retry-after" in error.value.headers()
    vectors.close()
    vectors.close()
    with pytest.raises(RuntimeError, match="closed"):
        partitions(vectors)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (100, "can't find collection[database=default][collection=fovea_1_a]", VectorsLost),
        (200, "partition not found[partition=condition_3]", VectorsLost),
        (1, "collection fovea_1_a not found", VectorsLost),
        (101, "failed to search: collection not loaded[collection=47]", VectorsUnreachable),
        (103, "collection not fully loaded[collection=47]", VectorsUnreachable),
        # nothing is lost where Milvus looks for a part of its own
        (901, "fail to search on QueryNode 5: Session 5: node not found[node=5]", VectorsUnreachable),
        (500, "failed to get shard leaders: channel not found[channel=by-dev-rootcoord-dml_0]", VectorsUnreachable),
        (65535, "unrecoverable error", VectorsUnreachable),
        (65535, "the rate is limited", VectorsRefused),
    ],
)
def test_what_milvus_says_after_a_restart_is_no_loss(code: int, message: str, expected: type[Exception]) -> None:
    class Connected(MilvusVectors):
        def _open(self) -> Any:
            return None

    def fail(_: Any) -> None:
        raise MilvusException(code, message)

    with pytest.raises(expected):
        Connected("http://127.0.0.1:1").run("search vectors", fail)


def test_wrong_shapes_are_refused_before_milvus_is_asked() -> None:
    with pytest.raises(ValueError, match=r"shape \(Q, 8\)"):
        INDEX.search(uniform(0, 1, 9), 3)
    for k in (0, 16_385):
        with pytest.raises(ValueError, match="k be from 1"):
            INDEX.search(uniform(0, 1, 8), k)
    with pytest.raises(ValueError, match=r"shape \(2, 8\)"):
        INDEX.upsert(np.array([1, 2]), uniform(0, 1, 8))


def test_the_smallest_number_of_lists_that_reaches_the_recall_is_chosen() -> None:
    for needed in (1, 2, 3, 17, 100, MAX_LISTS):
        asked: list[int] = []

        def recall_with(num_lists: int, k: int, needed: int = needed, asked: list[int] = asked) -> float:
            asked.append(num_lists)
            return min(1.0, 0.9 * num_lists / needed / (2 if k > 10 else 1))

        deep = 2 * needed if 2 * needed <= MAX_LISTS else NUM_LISTS
        assert tuned(recall_with, 0.9, 1000) == Tuning(needed, 0.9, 1000, deep)
        assert len(asked) < 40
    nothing = tuned(lambda num_lists, k: 0.5, 0.9, 1000)
    assert nothing == Tuning(NUM_LISTS, None, 1000) and nothing.is_exact
    assert Tuning(num_lists=3, recall=0.97, num_vectors=1000).deep_lists == NUM_LISTS


def test_more_results_are_looked_for_in_more_lists() -> None:
    tuning = Tuning(10, 0.95, 10**7, 34)
    assert [tuning.lists_for(k) for k in (1, 10, 50, 250, 6250)] == [10, 10, 22, 34, 58]
    assert Tuning(10, 0.95, 1000, 34).lists_for(10) == 41  # else there might not be enough vectors in them
    assert Tuning(10, 0.95, 10**7, 34).lists_for(10**7) == Tuning(NUM_LISTS, None, 9).lists_for(1) == NUM_LISTS


def test_a_vector_does_not_count_as_its_own_neighbor_and_equal_scores_do() -> None:
    own = np.array([1, 2])
    best = Nearest(np.array([[1, 5, 6], [2, 7, 8]]), np.array([[1, 0.9, 0.8], [1, 0.7, 0.6]], np.float32))
    assert recall(best, best, own) == 1.0
    tied = Nearest(np.array([[1, 5, 9], [2, 7, 8]]), np.array([[1, 0.9, 0.8], [1, 0.7, 0.6]], np.float32))
    assert recall(tied, best, own) == 1.0
    worse = Nearest(np.array([[1, 5, 9], [7, 3, -1]]), np.array([[1, 0.9, 0.1], [0.7, 0.1, -np.inf]], np.float32))
    assert recall(worse, best, own) == 0.5


def test_dropping_others_from_more_results_is_only_done_where_enough_remain() -> None:
    found = Nearest(np.array([[4, 2, 9, 7], [9, 8, 2, -1]]), np.array([[4, 3, 2, 1], [4, 3, 2, 0]], np.float32))
    kept = only(found, np.array([2, 4, 7, 8]), 2)
    assert kept is not None
    assert kept.positions.tolist() == [[4, 2], [8, 2]]
    assert kept.scores.tolist() == [[4, 3], [3, 2]]
    assert only(found, np.array([2, 4, 7, 8]), 3) is None
