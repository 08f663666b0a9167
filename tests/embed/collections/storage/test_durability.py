"""Stored data is intact until it is deleted, also after the process was killed or the disk full."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from services.core.errors import FoveaError
from services.embed.collections.storage.database import StorageFull
from services.embed.collections.storage.sqlite_store import DATABASE_NAME, SqliteImageStore
from tests.embed.collections.adding_and_deleting import Known, add_and_delete, checked
from tests.embed.collections.killed_process import NUM_KILLS, until_killed
from tests.embed.collections.small_disk import fill, mounted_disk
from tests.embed.collections.stored import INFO, LIMITS, content, everything, new_image

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "collection"


def check_file(folder: Path) -> None:
    connection = sqlite3.connect(folder / DATABASE_NAME)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def work(folder: Path, seed: int, reports: Connection) -> None:
    add_and_delete(SqliteImageStore.open(folder), seed, reports)


@pytest.mark.timeout(600 + 5 * NUM_KILLS)
def test_a_process_killed_at_any_moment_loses_nothing_that_it_acknowledged(folder: Path) -> None:
    SqliteImageStore.create(folder, INFO).close()
    there: Known = {}
    for kill in range(NUM_KILLS):
        reports = until_killed(work, folder, kill)
        store = SqliteImageStore.open(folder)
        there = checked(store, there, reports)
        store.close()
        check_file(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk") as path:
        yield path


def test_a_full_disk_refuses_an_add_as_a_whole_and_the_store_works_on(small_disk: Path) -> None:
    folder = small_disk / "collection"
    store = SqliteImageStore.create(folder, INFO)
    (small_disk / "ballast").write_bytes(bytes(400_000))
    stored: dict[str, bytes] = {}
    with pytest.raises(StorageFull) as raised:
        for number in range(1000):
            batch = {f"{number}/{part}": content(10 * number + part, 9000) for part in range(3)}
            store.add([new_image(image_id, data) for image_id, data in batch.items()], LIMITS)
            stored |= batch
    assert (raised.value.status, raised.value.code, raised.value.is_retryable) == (503, "storage_full", True)
    assert len(stored) > 3
    assert {image_id: data for image_id, (_, data) in everything(store).items()} == stored
    (small_disk / "ballast").unlink()
    store.add([new_image(image_id, data) for image_id, data in batch.items()], LIMITS)
    assert {image_id: data for image_id, (_, data) in everything(store).items()} == stored | batch
    store.close()
    check_file(folder)
    store = SqliteImageStore.open(folder)
    assert {image_id: data for image_id, (_, data) in everything(store).items()} == stored | batch
    store.close()


def test_a_disk_that_images_have_filled_still_takes_deletions_and_conditions(small_disk: Path) -> None:
    folder = small_disk / "collection"
    store = SqliteImageStore.create(folder, INFO)
    with pytest.raises(StorageFull):
        for number in range(1000):
            store.add([new_image(str(number), content(number, 5000))], LIMITS)
    stored = everything(store)
    for image_id in stored:
        store.delete(image_id)
        store.put_condition(image_id, is_pinned=False)
    store.close()
    # the file has taken in its log
    assert [path.name for path in folder.iterdir()] == [DATABASE_NAME]
    store = SqliteImageStore.open(folder)
    assert everything(store) == {}
    assert [condition.text for condition in store.conditions()] == list(stored)
    store.close()


def test_what_is_deleted_is_room_for_what_is_added_next_and_for_others(small_disk: Path) -> None:
    store = SqliteImageStore.create(small_disk / "collection", INFO)
    numbers = []
    for _ in range(3):
        numbers.append(0)
        with pytest.raises(StorageFull):
            while True:
                store.add([new_image(str(numbers[-1]), content(numbers[-1], 5000))], LIMITS)
                numbers[-1] += 1
        for number in range(numbers[-1]):
            store.delete(str(number))
    assert min(numbers) >= 0.9 * numbers[0] > 20
    assert store.has_much_to_give_back()
    store.give_back()
    assert not store.has_much_to_give_back()
    assert sum(path.stat().st_size for path in (small_disk / "collection").iterdir()) < 150_000
    fill(small_disk / "others")
    assert (small_disk / "others").stat().st_size > 850_000
    store.close()


def test_an_add_that_the_disk_has_no_room_for_takes_none_of_it(small_disk: Path) -> None:
    store = SqliteImageStore.create(small_disk / "collection", INFO)
    for _ in range(3):
        with pytest.raises(StorageFull):
            store.add([new_image("large", content(1, 2_000_000))], LIMITS)
        fill(small_disk / "others")
        assert (small_disk / "others").stat().st_size > 800_000
        (small_disk / "others").unlink()
    store.add([new_image("small", content(2, 100_000))], LIMITS)
    assert list(everything(store)) == ["small"]
    store.close()


def test_without_a_byte_left_every_change_is_refused_and_reading_goes_on(small_disk: Path) -> None:
    store = SqliteImageStore.create(small_disk / "collection", INFO)
    store.add([new_image("a", content(1, 50_000))], LIMITS)
    fill(small_disk / "ballast")
    with pytest.raises(StorageFull):
        store.add([new_image("b", content(2, 100_000))], LIMITS)
    with pytest.raises(StorageFull):
        store.put_condition("long " * 20_000, is_pinned=True)
    with pytest.raises(StorageFull):
        store.patch("a", {"long": "x" * 100_000}, replace(LIMITS, max_metadata_bytes=200_000))
    assert store.image("a").metadata == {}
    assert store.data("a") == content(1, 50_000)
    (small_disk / "ballast").unlink()
    store.add([new_image("b", content(2, 100_000))], LIMITS)
    assert store.delete("a") == 1
    assert list(everything(store)) == ["b"]
    store.close()


def test_a_store_on_a_full_disk_opens_once_there_is_room(small_disk: Path) -> None:
    store = SqliteImageStore.create(small_disk / "collection", INFO)
    store.add([new_image("a", b"1")], LIMITS)
    store.close()
    fill(small_disk / "ballast")
    with pytest.raises(StorageFull):
        SqliteImageStore.open(small_disk / "collection")
    with pytest.raises(FoveaError):
        SqliteImageStore.create(small_disk / "another", INFO)
    (small_disk / "ballast").unlink()
    store = SqliteImageStore.open(small_disk / "collection")
    assert store.data("a") == b"1"
    store.close()
