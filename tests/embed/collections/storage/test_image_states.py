"""States on disk may be lost at any time, and are never wrong."""

import os
import random
import resource
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from services.embed.collections.storage.image_states import FIXED_PAGES, PAGE_BYTES, State, StateCache
from tests.embed.collections.killed_process import until_killed

RECORD_BYTES = 5000
MANY = 10**9
# Room for these records, and not for one more.
SEVEN_RECORDS = (FIXED_PAGES + 2 * 7) * PAGE_BYTES


def state_of(row: int, record_bytes: int = RECORD_BYTES) -> State:
    """Bytes that no other row has, and that no shorter write leaves half right."""
    return np.random.default_rng(row).integers(0, 256, record_bytes, dtype=np.uint8)


def opened(
    path: Path, *, max_bytes: int = MANY, identity: str = "model", record_bytes: int = RECORD_BYTES
) -> StateCache:
    return StateCache.open(path, record_bytes=record_bytes, max_bytes=max_bytes, identity=identity)


def put(cache: StateCache, *rows: int) -> None:
    cache.put(rows, [state_of(row, cache.record_bytes) for row in rows])


def rows_found(cache: StateCache, rows: list[int] | range) -> list[int]:
    """Return the rows that have a state, after checking that each state is the right one."""
    found = cache.get(list(rows))
    for row, state in found.items():
        np.testing.assert_array_equal(state, state_of(row, cache.record_bytes))
        assert state.dtype == np.uint8
    return sorted(found)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.states"


@pytest.fixture
def cache(path: Path) -> Iterator[StateCache]:
    cache = opened(path)
    yield cache
    cache.close()


def test_what_was_put_is_found_by_its_row_and_nothing_else_is(cache: StateCache) -> None:
    put(cache, 7, 3, 2**40)
    assert rows_found(cache, [3, 4, 7, 2**40]) == [3, 7, 2**40]
    assert cache.has([3, 4, 7]) == {3, 7}
    assert cache.rows() == [3, 7, 2**40]
    assert cache.num_images == 3
    assert cache.get([]) == {}


def test_a_state_that_is_kept_already_stays(cache: StateCache) -> None:
    put(cache, 1)
    size = cache.num_bytes
    cache.put([1], [state_of(2)])
    assert rows_found(cache, [1]) == [1]
    assert (cache.num_images, cache.num_bytes) == (1, size)


def test_a_state_of_another_size_is_refused(cache: StateCache) -> None:
    with pytest.raises(ValueError, match="5001"):
        cache.put([1], [state_of(1, RECORD_BYTES + 1)])


def test_states_survive_the_process(path: Path) -> None:
    rows = range(1, 520)
    first = opened(path, record_bytes=32)
    put(first, *rows)
    for row in (5, 256, 519):
        first.delete(row)
    expected = rows_found(first, rows)
    first.close()
    again = opened(path, record_bytes=32)
    assert rows_found(again, rows) == expected == again.rows()
    assert len(expected) == len(rows) - 3
    put(again, 1001, 1002, 1003, 1004)
    assert rows_found(again, range(2000)) == [*expected, 1001, 1002, 1003, 1004]
    again.close()


@pytest.mark.parametrize(("identity", "record_bytes"), [("another model", RECORD_BYTES), ("model", RECORD_BYTES - 1)])
def test_states_of_another_model_or_size_are_gone(path: Path, identity: str, record_bytes: int) -> None:
    first = opened(path)
    put(first, 1, 2)
    first.close()
    other = opened(path, identity=identity, record_bytes=record_bytes)
    assert other.rows() == []
    assert other.num_bytes < FIXED_PAGES * PAGE_BYTES
    put(other, 1)
    assert rows_found(other, [1, 2]) == [1]
    other.close()


def test_a_deleted_state_is_gone_also_for_the_next_process_and_its_place_is_used_again(path: Path) -> None:
    cache = opened(path)
    put(cache, 1, 2, 3)
    size = cache.num_bytes
    cache.delete(2)
    cache.delete(99)
    assert rows_found(cache, [1, 2, 3]) == [1, 3]
    cache.close()
    cache = opened(path)
    assert cache.rows() == [1, 3]
    put(cache, 4)
    assert cache.num_bytes == size
    assert rows_found(cache, [1, 2, 3, 4]) == [1, 3, 4]
    cache.close()


@pytest.mark.parametrize("max_bytes", [SEVEN_RECORDS, SEVEN_RECORDS + 99, 3 * SEVEN_RECORDS])
def test_the_budget_is_never_passed_and_what_it_does_not_hold_is_left_out(path: Path, max_bytes: int) -> None:
    cache = opened(path, max_bytes=max_bytes)
    put(cache, 1)
    had_room = [cache.has_room]
    put(cache, *range(2, 100))
    num_fitting = cache.num_images
    assert num_fitting >= (max_bytes - FIXED_PAGES * PAGE_BYTES) // (2 * PAGE_BYTES)
    assert rows_found(cache, range(100)) == list(range(1, num_fitting + 1))
    assert path.stat().st_size == cache.num_bytes <= max_bytes
    had_room.append(cache.has_room)
    cache.delete(1)
    assert [*had_room, cache.has_room] == [True, False, True]
    put(cache, 130)
    assert rows_found(cache, range(200)) == [*range(2, num_fitting + 1), 130]
    assert path.stat().st_size <= max_bytes
    cache.close()


@pytest.mark.parametrize("max_bytes", [0, RECORD_BYTES, FIXED_PAGES * PAGE_BYTES + RECORD_BYTES - 1])
def test_a_budget_of_less_than_a_record_keeps_nothing(path: Path, max_bytes: int) -> None:
    first = opened(path)
    put(first, 1)
    first.close()
    cache = opened(path, max_bytes=max_bytes)
    assert not path.exists()
    assert not cache.has_room
    put(cache, 1)
    cache.delete(1)
    assert (cache.get([1]), cache.num_images, cache.num_bytes) == ({}, 0, 0)
    cache.close()


def test_a_file_larger_than_a_budget_that_has_shrunk_is_begun_again(path: Path) -> None:
    first = opened(path)
    put(first, *range(1, 41))
    first.close()
    small = opened(path, max_bytes=SEVEN_RECORDS)
    assert small.rows() == []
    put(small, *range(1, 41))
    assert path.stat().st_size <= SEVEN_RECORDS
    kept = small.rows()
    small.close()
    large = opened(path)
    assert rows_found(large, range(50)) == kept
    large.close()


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_loses_states_and_never_changes_one(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cache = opened(path)
    put(cache, *range(1, 11))
    cache.close()
    data = bytearray(path.read_bytes())
    if seed % 3 == 0:
        del data[rng.randrange(len(data)) :]
    elif seed % 3 == 1:
        data[rng.choice([rng.randrange(4 * PAGE_BYTES), rng.randrange(len(data))])] ^= 1 << rng.randrange(8)
    else:
        start = rng.randrange(len(data))
        data[start : start + PAGE_BYTES] = rng.randbytes(PAGE_BYTES)
    path.write_bytes(data)
    again = opened(path)
    found = rows_found(again, again.rows())
    assert {*again.rows()} <= {*found}, "what was found damaged is dropped, with the rest if SQLite can not read it"
    put(again, *range(1, 21))
    assert rows_found(again, range(30)) == list(range(1, 21))
    again.close()


def test_a_record_that_is_damaged_while_the_file_is_open_is_dropped_and_can_be_put_again(
    cache: StateCache, path: Path
) -> None:
    put(cache, 1, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE states SET data = zeroblob(5000) WHERE row = 1")
    assert rows_found(cache, [1, 2]) == [2]
    assert cache.rows() == [2]
    put(cache, 1)
    assert rows_found(cache, [1, 2]) == [1, 2]


@pytest.mark.parametrize("change", ["row = -row", "data = (SELECT data FROM states AS other WHERE row <> states.row)"])
def test_records_that_change_places_belong_to_no_row(path: Path, change: str) -> None:
    cache = opened(path)
    put(cache, 1, 2)
    cache.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE states SET {change}")
    again = opened(path)
    assert again.get([1, 2, -1, -2]).keys() <= {2}
    again.close()


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Limit the size of files in the block, which then fail to grow as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_what_fits_is_kept_and_the_rest_is_put_once_there_is_room(path: Path) -> None:
    cache = opened(path)
    with largest_file(SEVEN_RECORDS):
        put(cache, *range(1, 40))
        fitting = rows_found(cache, range(50))
        assert 7 <= len(fitting) < 39
        assert not cache.has_room
        cache.delete(2)
        put(cache, 48, 49)
        assert rows_found(cache, range(50)) == [1, *fitting[2:], 48]
    put(cache, 50, 51)
    expected = [1, *fitting[2:], 48, 50, 51]
    assert rows_found(cache, range(60)) == expected
    cache.close()
    again = opened(path)
    assert rows_found(again, range(60)) == expected
    again.close()


def test_a_disk_without_room_for_the_first_byte_keeps_nothing(path: Path) -> None:
    with largest_file(0):
        cache = opened(path)
    assert not cache.has_room
    put(cache, 1)
    assert cache.get([1]) == {}
    cache.close()


def test_a_path_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        opened(tmp_path / "missing" / "some.states")


def test_after_close_nothing_is_kept_or_found_and_no_other_file_is_touched(path: Path, tmp_path: Path) -> None:
    cache = opened(path)
    put(cache, 1)
    cache.close()
    cache.close()
    with (tmp_path / "other").open("w+b") as other:  # it gets the descriptor that the cache had
        put(cache, 2)
        cache.delete(1)
        assert cache.get([1, 2]) == {}
        assert not cache.has_room
        assert os.fstat(other.fileno()).st_size == 0
    again = opened(path)
    assert again.rows() == [1]
    again.close()


@pytest.mark.parametrize("number", [30, 300])
def test_the_room_of_deleted_states_is_given_back_and_the_others_stay(path: Path, number: int) -> None:
    cache = opened(path, record_bytes=500)
    put(cache, *range(number))
    size = cache.num_bytes
    cache.give_back()
    assert cache.num_bytes == size
    kept = list(range(0, number, 3))
    for row in set(range(number)) - set(kept):
        cache.delete(row)
    cache.give_back()
    assert cache.num_bytes <= (FIXED_PAGES + 2) * PAGE_BYTES + size * len(kept) / number
    assert rows_found(cache, range(number)) == kept
    cache.close()
    cache = opened(path, record_bytes=500)
    assert rows_found(cache, range(number)) == kept
    for row in kept:
        cache.delete(row)
    cache.give_back()
    assert cache.num_bytes <= FIXED_PAGES * PAGE_BYTES
    put(cache, 1, 2)
    assert rows_found(cache, range(number)) == [1, 2]
    cache.close()


def test_threads_that_put_get_and_delete_at_once_see_right_states_or_none(path: Path) -> None:
    cache = opened(path, max_bytes=2 * SEVEN_RECORDS)
    actions: list[Callable[[int], object]] = [
        lambda row: put(cache, row),
        cache.delete,
        lambda row: rows_found(cache, [row, 1]),
        lambda row: cache.give_back(),
    ]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            rng.choice(actions)(rng.randrange(1, 25))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))  # raises what one of them raised
    assert rows_found(cache, cache.rows()) == cache.rows()
    assert cache.num_bytes <= cache.max_bytes
    put(cache, *range(100, 130))
    assert cache.num_images >= 14, "no place was lost"
    cache.close()


def put_and_delete_until_killed(folder: Path, seed: int, connection: Connection) -> None:
    rng = random.Random(seed)
    cache = opened(folder / "some.states", record_bytes=2**20)
    states = {row: state_of(row, 2**20) for row in range(1, 9)}
    for number in range(10**6):
        row = rng.randrange(1, 9)
        connection.send((number, False))
        cache.delete(row)
        cache.put([row], [states[row]])
        connection.send((number, True))


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_no_wrong_state(tmp_path: Path) -> None:
    for seed in range(8):
        reports = until_killed(put_and_delete_until_killed, tmp_path, seed)
        cache = opened(tmp_path / "some.states", record_bytes=2**20)
        found = rows_found(cache, range(10))
        cache.close()
        assert len(found) >= 7 or len(reports.done) < 100, "a kill loses one state at most"
