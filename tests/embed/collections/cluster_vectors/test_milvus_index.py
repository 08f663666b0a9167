"""The promises of the index in Milvus alone: to several processes, over a restart, while it can't be reached."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest

pytest.importorskip("pymilvus", reason="needs the extra `cluster`")

from services.embed.collections.cluster import milvus_index
from services.embed.collections.cluster.milvus import (
    MilvusVectors,
    Partition,
    VectorsRefused,
    VectorsUnreachable,
    drop,
    drop_checkpoint,
    partitions,
)
from services.embed.collections.cluster.milvus_index import MilvusIndex
from services.embed.collections.cluster.vectors import VectorsLost
from services.embed.collections.index.vector_index import IndexOptions
from tests.core.milvus_server import MilvusServer
from tests.embed.collections.cluster_vectors.conftest import WIDTH
from tests.embed.collections.index.test_vector_index import check_answer
from tests.embed.collections.vectors import clustered, rows_from, uniform

pytestmark = pytest.mark.process

OPTIONS = IndexOptions()
Connect = Callable[[], MilvusVectors]
Result = TypeVar("Result")


def test_conditions_and_checkpoints_are_apart_and_are_dropped_apart(connect: Connect, number: int) -> None:
    vectors = connect()
    kept = [Partition(number, "old", "plain"), Partition(number, "old", "color"), Partition(number, "new", "plain")]
    others = [Partition(number + 10**6, "old", "plain")]
    indexes = {place: MilvusIndex(vectors, place, WIDTH, OPTIONS) for place in kept + others}
    one = {place: uniform(seed, 1, WIDTH) for seed, place in enumerate(indexes)}
    for place, index in indexes.items():
        index.create()
        index.create()  # nothing more
        index.take_over(index.upsert(np.array([7]), one[place]), None)
    for place, index in indexes.items():
        assert (index.vectors(np.array([7]))[0] == one[place]).all()
        assert index.search(one[place], 2).rows.tolist() == [[7, -1]]

    def listed() -> set[Partition]:
        return {place for place in partitions(vectors) if place.collection in (number, number + 10**6)}

    assert listed() == {*kept, *others}
    drop(vectors, kept[1])
    assert listed() == {kept[0], kept[2], *others}
    with pytest.raises(VectorsLost):
        indexes[kept[1]].search(one[kept[1]], 1)
    with pytest.raises(VectorsLost):
        indexes[kept[1]].upsert(np.array([1]), one[kept[1]])
    assert indexes[kept[1]].num_vectors == 0
    indexes[kept[1]].create()
    assert indexes[kept[1]].rows(0, 100).tolist() == []
    drop_checkpoint(vectors, number, "old")
    assert listed() == {kept[2], *others}
    assert indexes[kept[2]].num_vectors == 1
    drop_checkpoint(vectors, number, "new")
    assert listed() == set(others)
    for _ in range(2):  # again: no error
        drop_checkpoint(vectors, number + 10**6, "old")
        drop(vectors, kept[1])
        drop_checkpoint(vectors, number, "old")


def test_what_one_process_wrote_another_finds_at_once(connect: Connect, number: int) -> None:
    place, new = Partition(number, "shared", "plain"), uniform(0, 60, WIDTH)
    mine, theirs = (MilvusIndex(connect(), place, WIDTH, OPTIONS) for _ in range(2))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(MilvusIndex.create, (mine, theirs)))
    for row in range(3):
        mine.upsert(np.array([row]), new[row : row + 1])
        assert theirs.search(new[row : row + 1], 1).rows[0, 0] == row
        mine.delete(np.array([row]))
        assert theirs.search(new[row : row + 1], 1).rows[0, 0] == -1
    for row in range(3, 6):
        theirs.take_over(mine.upsert(np.array([row]), new[row : row + 1]), None)
        assert theirs.search(new[row : row + 1], 1).rows[0, 0] == row
        theirs.take_over(mine.delete(np.array([row])), None)
        assert theirs.search(new[row : row + 1], 1).rows[0, 0] == -1
    # both write all, a few rows at a time, and each row exists once afterwards
    with ThreadPoolExecutor(2) as threads:
        pieces = [slice(start, start + 20) for start in (0, 20, 40)]
        rows = rows_from(0, 60)
        for index, order in ((mine, pieces), (theirs, pieces[::-1])):
            for piece in order:
                threads.submit(index.upsert, rows[piece], new[piece])
    fresh = MilvusIndex(connect(), place, WIDTH, OPTIONS)
    assert fresh.num_vectors == 60
    check_answer(fresh.search(new[:3], 60), dict(enumerate(new)), new[:3], 60)


def test_the_fewest_lists_that_reach_the_recall_are_read(connect: Connect, number: int) -> None:
    size = 12_000
    rows, queries = rows_from(1, size), clustered(1, 40, WIDTH)
    options = IndexOptions(max_exact=2000, min_recall=0.9)
    sample = np.random.default_rng(0).permutation(size + 500)  # some rows do not exist
    held = {"plain": clustered(0, size, WIDTH), "few": uniform(0, 1500, WIDTH)}
    indexes = {
        condition: MilvusIndex(connect(), Partition(number, "tuned", condition), WIDTH, options) for condition in held
    }
    for condition, index in indexes.items():
        index.create()
        index.take_over(index.upsert(rows[: len(held[condition])], held[condition]), None)
    index = indexes["plain"]
    assert (index.kind, index.needs_tuning(size), index.needs_tuning(2000)) == ("flat", True, False)
    index.take_over(0, index.tune(sample))
    tuning = index.tuning
    assert tuning is not None and tuning.recall is not None and tuning.recall >= 0.9
    assert tuning.num_lists > 1  # measured in lists, not before there were any
    assert (index.is_exact, index.kind, index.recall_at_10) == (False, "ivf", tuning.recall)
    assert (index.needs_tuning(size), index.needs_tuning(3 * size)) == (False, True)
    model = dict(zip(rows.tolist(), held["plain"], strict=True))
    best = queries @ held["plain"].T
    found = index.search(queries, 10).scores
    assert (found >= np.sort(best, axis=1)[:, -10:][:, :1] - 1e-5).mean() >= 0.8
    # of a filter that leaves many vectors, as many of the nearest are found
    wide = index.search(queries, 10, among=rows[:9000]).scores
    assert (wide >= np.sort(best[:, :9000], axis=1)[:, -10:][:, :1] - 1e-5).mean() >= 0.8
    # all of a small filter are compared, and a k that needs all vectors gets them
    check_answer(index.search(queries, 10, among=rows[::7]), model, queries, 10, rows[::7])
    check_answer(index.search(queries[:1], size + 1), model, queries[:1], size + 1)
    indexes["few"].tune(sample)
    assert indexes["few"].is_exact


def test_a_restart_loses_nothing_and_meanwhile_clients_are_told_to_come_again(
    connect: Connect, number: int, milvus: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "TIMEOUT_S", 2.0)
    vectors = connect()
    index = MilvusIndex(vectors, Partition(number, "restarted", "plain"), WIDTH, OPTIONS)
    new = uniform(0, 300, WIDTH)
    index.create()
    index.upsert(rows_from(1, 300), new)
    index.delete(rows_from(1, 50))
    milvus.hang()
    try:
        with pytest.raises(VectorsUnreachable) as hanging:
            index.search(new[:1], 1)
    finally:
        milvus.go_on()
    assert hanging.value.headers()["retry-after"] == "2"
    milvus.kill()
    try:
        for call in (
            lambda: index.search(new[:1], 1),
            lambda: index.upsert(np.array([1]), new[:1]),
            index.create,
            lambda: partitions(connect()),
        ):
            with pytest.raises(VectorsUnreachable):
                call()
    finally:
        milvus.start()
    model = {row: new[row - 1] for row in range(51, 301)}
    # Milvus accepts connections before it can search, and searches before it can load new collections
    found = once_settled(lambda: index.search(new[40:60], 10))
    check_answer(found, model, new[40:60], 10)
    assert index.rows(1, 300).tolist() == sorted(model)
    once_settled(MilvusIndex(vectors, Partition(number + 10**6, "restarted", "plain"), WIDTH, OPTIONS).create)


def once_settled(call: Callable[[], Result]) -> Result:
    """Return what a call returns once Milvus has found its parts after a restart."""
    give_up = time.monotonic() + 120
    while True:
        try:
            return call()
        except VectorsUnreachable:
            assert time.monotonic() < give_up
            time.sleep(0.2)


def test_a_refusal_names_the_operation(connect: Connect, number: int) -> None:
    place, vectors = Partition(number, "refused", "plain"), connect()
    MilvusIndex(vectors, place, WIDTH, OPTIONS).create()
    wide = MilvusIndex(vectors, place, 2 * WIDTH, OPTIONS)
    with pytest.raises(VectorsRefused, match="refused to store vectors"):
        wide.upsert(np.array([1]), uniform(0, 1, 2 * WIDTH))
