"""A snapshot brings back what an index held, or says that it cannot."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.embed.collections.index.snapshots import CorruptSnapshot, load_snapshot, save_snapshot
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from tests.embed.collections.vectors import clustered, rows_from

WIDTH = 16
OPTIONS = IndexOptions(max_exact=300, min_recall=0.9)
IDENTITY = {"checkpoint": "ab12", "condition": "What is the colour?"}
QUERIES = clustered(9, 50, WIDTH)


def index_of(size: int) -> VectorIndex:
    """Rows 2, 4, …, built; `through` is one more than the last."""
    index = VectorIndex(WIDTH, OPTIONS)
    index.append(rows_from(2, size, step=2), clustered(0, size, WIDTH), through=2 * size + 1)
    index.rebuild()
    return index


def save(index: VectorIndex, path: Path) -> None:
    save_snapshot(index.contents, path, identity=IDENTITY, max_exact=OPTIONS.max_exact)


def load(path: Path, options: IndexOptions = OPTIONS, identity: dict[str, str] = IDENTITY) -> VectorIndex:
    return VectorIndex.holding(*load_snapshot(path, identity=identity), options)


def saved(index: VectorIndex, path: Path) -> VectorIndex:
    save(index, path)
    return load(path)


def check_same(loaded: VectorIndex, index: VectorIndex) -> None:
    assert (loaded.through, loaded.num_vectors, loaded.kind) == (index.through, index.num_vectors, index.kind)
    assert loaded.recall_at_10 == index.recall_at_10
    assert (loaded.rows == index.rows).all()
    assert (loaded.vectors(loaded.rows)[0] == index.vectors(index.rows)[0]).all()


@pytest.mark.parametrize("size", [0, 1, 300, 1203])
def test_an_index_comes_back_as_it_was_and_goes_on(tmp_path: Path, size: int) -> None:
    index = index_of(size)
    loaded = saved(index, tmp_path / "new" / "a.index")
    check_same(loaded, index)
    before, after = index.search(QUERIES, 5), loaded.search(QUERIES, 5)
    assert (before.rows == after.rows).all()
    np.testing.assert_allclose(before.scores, after.scores, atol=1e-6)
    for one in (index, loaded):
        one.append(rows_from(5001, 10), QUERIES[:10], through=5010)
        one.delete(5003)
        one.delete(2)
        one.rebuild()
    check_same(loaded, index)
    assert loaded.search(QUERIES[:1], 1).rows.tolist() == [[5001]]


@pytest.mark.parametrize("size", [40, 1203])
def test_dead_rows_are_left_out_and_the_others_keep_their_neighbours(tmp_path: Path, size: int) -> None:
    index = index_of(size)
    index.append(rows_from(9000, 6), QUERIES[:6], through=9005)
    for row in [*rows_from(2, size // 5, step=8).tolist(), 9002]:
        index.delete(row)
    loaded = saved(index, tmp_path / "a.index")
    check_same(loaded, index)
    assert len(loaded.contents.table) == index.num_vectors
    before, after = index.search(QUERIES, 5), loaded.search(QUERIES, 5)
    assert (before.rows == after.rows).mean() > 0.99
    np.testing.assert_allclose(before.scores, after.scores, atol=0.05)
    assert after.rows[:6, 0].tolist() == before.rows[:6, 0].tolist()


def test_everything_deleted_comes_back_as_nothing(tmp_path: Path) -> None:
    index = index_of(1000)
    for row in index.rows.tolist():
        index.delete(row)
    loaded = saved(index, tmp_path / "a.index")
    assert (loaded.through, loaded.num_vectors, loaded.kind) == (2001, 0, "flat")


def test_saving_does_not_disturb_the_index_and_replaces_the_file(tmp_path: Path) -> None:
    index = index_of(1000)
    check_same(saved(index, tmp_path / "a.index"), index)
    index.delete(4)
    check_same(saved(index, tmp_path / "a.index"), index)
    assert [path.name for path in tmp_path.iterdir()] == ["a.index"]


def test_lists_that_the_options_no_longer_want_are_left(tmp_path: Path) -> None:
    save(index_of(1000), tmp_path / "a.index")

    def loaded(options: IndexOptions) -> VectorIndex:
        return load(tmp_path / "a.index", options)

    assert loaded(OPTIONS).kind == "ivf"
    larger = loaded(replace(OPTIONS, max_exact=1000))
    assert (larger.kind, larger.needs_rebuild) == ("flat", False)
    stricter = loaded(replace(OPTIONS, min_recall=1.1))
    assert (stricter.kind, stricter.needs_rebuild) == ("flat", True)


def test_a_missing_file_is_no_corrupt_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "a.index")


@pytest.mark.parametrize("identity", [{}, IDENTITY | {"condition": "x"}, IDENTITY | {"more": "x"}])
def test_another_identity_is_refused(tmp_path: Path, identity: dict[str, str]) -> None:
    save(index_of(10), tmp_path / "a.index")
    with pytest.raises(CorruptSnapshot, match="What is the colour"):
        load(tmp_path / "a.index", identity=identity)


def with_header(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        line, rest = data.split(b"\n", 1)
        header = json.loads(line)
        change(header)
        return json.dumps(header, separators=(",", ":")).encode() + b"\n" + rest

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\n",
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: data.split(b"\n", 1)[0],
        lambda data: b"x" * 200_000,
        lambda data: b"\xff" + data[1:],
        with_header(lambda header: header.update(version=2)),
        with_header(lambda header: header.update(format="other")),
        with_header(lambda header: header.update(more=1)),
        with_header(lambda header: header.update(through=77)),
        with_header(lambda header: header.update(num_vectors=10**12)),
        with_header(lambda header: header.update(num_vectors=-1)),
        with_header(lambda header: header.update(width=0)),
        with_header(lambda header: header.pop("identity")),
        with_header(lambda header: header.pop("lists")),
    ],
)
@pytest.mark.parametrize("size", [50, 800])
def test_a_damaged_file_is_refused(tmp_path: Path, size: int, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.index"
    save(index_of(size), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptSnapshot, match=r"a\.index"):
        load(path)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "a.index"
    save(index_of(800), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    header_bytes = whole.index(b"\n") + 1
    places = [*range(header_bytes), *rng.integers(header_bytes, len(whole), 100).tolist(), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(CorruptSnapshot):
            load(path)
