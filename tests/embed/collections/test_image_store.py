"""What was stored is there, whole, until it is deleted: also after the process was killed or the disk full."""

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.errors import Conflict, FoveaError, InvalidField, NotFound, TooLarge
from services.embed.collections.database import IncompatibleDatabase, StorageFull
from services.embed.collections.image_store import (
    DATABASE_NAME,
    Added,
    ImageStore,
    StoredCondition,
    check_image_id,
)
from tests.embed.collections.killed_process import NUM_KILLS, until_killed
from tests.embed.collections.small_disk import fill, mounted_disk
from tests.embed.collections.stored import INFO, LIMITS, content, everything, new_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "collection"


@pytest.fixture
def store(folder: Path) -> Iterator[ImageStore]:
    store = ImageStore.create(folder, INFO)
    yield store
    store.close()


def check_file(folder: Path) -> None:
    connection = sqlite3.connect(folder / DATABASE_NAME)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def ids_matching(store: ImageStore, fields: dict[str, Any]) -> list[str]:
    rows = store.rows_matching(fields)
    assert rows.dtype == np.int64
    return [image.id for image in store.by_rows(rows.tolist()).values()]


def test_what_was_added_comes_back_also_after_opening_the_store_again(folder: Path) -> None:
    began = time.time()
    store = ImageStore.create(folder, INFO)
    added = store.add(
        [new_image("b", b"bbb", {"place": "Köln", "sizes": [1, 2.5, None, True]}), new_image("a/b.png", b"aaaa")],
        LIMITS,
    )
    assert added == Added(added=2, unchanged=0, ids=["b", "a/b.png"], rows=[1, 2])
    before = everything(store)
    store.close()
    store = ImageStore.open(folder)
    assert everything(store) == before
    assert store.info == INFO
    image, data = before["b"]
    assert (image.row, image.metadata, data) == (1, {"place": "Köln", "sizes": [1, 2.5, None, True]}, b"bbb")
    assert began <= image.created <= time.time()
    assert before["a/b.png"][0].metadata == {}
    assert store.size() == (2, 7)
    store.close()


def test_there_is_one_store_in_a_folder(store: ImageStore, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        ImageStore.create(folder, INFO)
    with pytest.raises(FileNotFoundError):
        ImageStore.open(tmp_path)


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(folder: Path) -> None:
    ImageStore.create(folder, INFO).close()
    connection = sqlite3.connect(folder / DATABASE_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(IncompatibleDatabase, match=r"schema version 99.*newer"):
        ImageStore.open(folder)


def test_a_store_whose_making_was_broken_off_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / DATABASE_NAME).touch()
    with pytest.raises(IncompatibleDatabase, match="never finished"):
        ImageStore.open(folder)


def test_adding_the_same_again_changes_nothing(store: ImageStore) -> None:
    store.add([new_image("a", b"1", {"x": 1, "y": 2})], LIMITS)
    before = everything(store)
    again = [new_image("a", b"1", {"y": 2, "x": 1}), new_image("a", b"1"), new_image("new", b"2")]
    assert store.add(again, LIMITS) == Added(1, 2, ["a", "a", "new"], [2])
    assert everything(store)["a"] == before["a"]


@pytest.mark.parametrize("other", [new_image("a", b"2"), new_image("a", b"1", {"x": True}), new_image("a", b"1", {})])
def test_an_id_that_has_other_content_or_metadata_is_a_conflict_and_nothing_is_added(
    store: ImageStore, other: Any
) -> None:
    store.add([new_image("a", b"1", {"x": 1})], LIMITS)
    before = everything(store)
    with pytest.raises(Conflict, match="'a'") as raised:
        store.add([new_image("new", b"3"), replace(other, param="images.1")], LIMITS)
    assert raised.value.param == "images.1"
    assert everything(store) == before
    assert store.add([new_image("new", b"3")], LIMITS).rows == [2]


def test_equal_images_in_one_call_are_added_once(store: ImageStore) -> None:
    images = [new_image("a", b"1"), new_image("b", b"1"), new_image("a", b"1"), new_image("a", b"1", {})]
    assert store.add(images, LIMITS) == Added(2, 2, ["a", "b", "a", "a"], [1, 2])
    assert store.size() == (2, 1)


@pytest.mark.parametrize("second", [new_image("a", b"2"), new_image("a", b"1", {"x": 2})])
def test_contradicting_images_in_one_call_are_a_conflict_and_none_is_added(store: ImageStore, second: Any) -> None:
    with pytest.raises(Conflict) as raised:
        store.add([new_image("a", b"1", {"x": 1}), replace(second, param="images.1")], LIMITS)
    assert raised.value.param == "images.1"
    assert everything(store) == {}
    assert store.size() == (0, 0)


def test_no_images_add_nothing(store: ImageStore) -> None:
    assert store.add([], LIMITS) == Added(0, 0, [], [])


def test_deleting_removes_an_image_and_bytes_that_no_other_has(store: ImageStore) -> None:
    store.add([new_image("a", b"shared"), new_image("b", b"shared"), new_image("c", b"own")], LIMITS)
    assert store.delete("a") == 1
    assert store.data("b") == b"shared"
    assert store.size() == (2, 9)
    assert store.delete("b") == 2
    assert store.size() == (1, 3)
    assert list(everything(store)) == ["c"]
    assert store.data_by_rows([1, 2, 3]) == {3: b"own"}


def test_a_row_is_never_used_again(store: ImageStore) -> None:
    store.add([new_image(name, name.encode()) for name in "abc"], LIMITS)
    for name in "abc":
        store.delete(name)
    assert store.add([new_image("a", b"a")], LIMITS).rows == [4]


@pytest.mark.parametrize("image_id", ["", "there-is-none", "\ud800"])
def test_an_image_that_is_not_there_is_not_found(store: ImageStore, image_id: str) -> None:
    store.add([new_image("a", b"1")], LIMITS)
    for ask in (store.image, store.data, store.delete):
        with pytest.raises(NotFound):
            ask(image_id)


def test_images_are_listed_page_by_page_in_the_order_of_their_ids(store: ImageStore) -> None:
    ids = ["a", "B", "ä", "z/1", "10", "9", "😀"]
    store.add([new_image(image_id, image_id.encode()) for image_id in ids], LIMITS)
    listed: list[str] = []
    while page := store.images(listed[-1] if listed else None, 2):
        assert len(page) <= 2
        listed += [image.id for image in page]
    assert listed == sorted(ids)
    store.delete("a")
    assert store.images("a", 1)[0].id == "z/1"


def test_rows_can_be_asked_for_in_steps(store: ImageStore) -> None:
    store.add([new_image(str(number), content(number, 10)) for number in range(1, 8)], LIMITS)
    store.delete("3")
    assert store.rows().tolist() == [1, 2, 4, 5, 6, 7]
    assert store.rows(after=2).tolist() == [4, 5, 6, 7]
    assert store.rows(after=1, limit=2).tolist() == [2, 4]
    assert store.rows(after=7).tolist() == []
    assert store.rows().dtype == store.rows(after=7).dtype == np.int64


METADATA: dict[str, dict[str, Any]] = {
    "true": {"v": True},
    "false": {"v": False},
    "one": {"v": 1},
    "zero": {"v": 0},
    "real": {"v": 0.1},
    "half": {"v": 2.5},
    "huge": {"v": 10**400},
    "text": {"v": "1"},
    "empty": {"v": ""},
    "null": {"v": None},
    "list": {"v": [1]},
    "object": {"v": {"w": 1}},
    "other": {"w": 1},
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ["true"]),
        (False, ["false"]),
        (1, ["one"]),
        (1.0, ["one"]),
        (0, ["zero"]),
        (-0.0, ["zero"]),
        (0.1, ["real"]),
        (2.5, ["half"]),
        (10**400, ["huge"]),
        ("1", ["text"]),
        ("true", []),
        ("", ["empty"]),
        (None, ["null", "other"]),
        ([1, "1", True], ["true", "one", "text"]),
        ([None, ""], ["empty", "null", "other"]),
        ([], []),
        (list(range(1, 3000)), ["one"]),
    ],
)
def test_a_filter_finds_the_value_of_that_type_and_no_other(
    store: ImageStore, value: object, expected: list[str]
) -> None:
    store.add([new_image(name, name.encode(), metadata) for name, metadata in METADATA.items()], LIMITS)
    assert ids_matching(store, {"v": value}) == expected


def test_a_filter_of_several_fields_wants_all_of_them(store: ImageStore) -> None:
    images = {"a": {"x": 1, "y": "u"}, "b": {"x": 1, "y": "v"}, "c": {"x": 2, "y": "u"}}
    store.add([new_image(name, name.encode(), metadata) for name, metadata in images.items()], LIMITS)
    assert ids_matching(store, {"x": 1, "y": "u"}) == ["a"]
    assert ids_matching(store, {"x": [1, 2], "y": "u"}) == ["a", "c"]
    assert ids_matching(store, {}) == ["a", "b", "c"]
    store.delete("a")
    assert ids_matching(store, {"x": 1}) == ["b"]


@pytest.mark.parametrize(
    "name", ["", " ", ".", "a.b", "$", "$.a", "[0]", 'a"b', "a\\b", "a\\u0000b", "a'b", "ä\n", "😀", "type", "key"]
)
def test_a_filter_takes_any_field_name_and_any_text(store: ImageStore, name: str) -> None:
    store.add([new_image("a", b"1", {name: name}), new_image("b", b"2", {"a": {"b": 1}})], LIMITS)
    assert store.image("a").metadata == {name: name}
    assert ids_matching(store, {name: name}) == ["a"]
    assert ids_matching(store, {name: None}) == ["b"]


@pytest.mark.parametrize("value", [{"w": 1}, [[1]], [{"w": 1}], float("nan"), "a\0", "\ud800", ["\0"]])
def test_a_filter_by_anything_else_is_refused(store: ImageStore, value: object) -> None:
    with pytest.raises(InvalidField) as raised:
        store.rows_matching({"fine": 1, "v": value})
    assert raised.value.param == "filter.v"


@pytest.mark.parametrize("fields", [{"a\0": 1}, {"\ud800": 1}, {str(number): 1 for number in range(65)}])
def test_a_filter_of_impossible_or_too_many_fields_is_refused(store: ImageStore, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidField) as raised:
        store.rows_matching(fields)
    assert raised.value.param == "filter"


def test_a_filter_takes_as_many_fields_as_it_says(store: ImageStore) -> None:
    assert ids_matching(store, {str(number): None for number in range(64)}) == []


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\0", {"\0": 1}, "\udfff", nested(40), nested(900)])
def test_metadata_that_json_can_not_say_is_refused(store: ImageStore, value: object) -> None:
    limits = replace(LIMITS, max_metadata_bytes=10_000)
    with pytest.raises(InvalidField) as raised:
        store.add([new_image("a", b"1", {"v": 1}), new_image("b", b"2", {"v": value}, "images.1")], limits)
    assert raised.value.param == "images.1.metadata"
    assert everything(store) == {}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (replace(LIMITS, max_images=4), "hold 5 images; the limit is 4"),
        (replace(LIMITS, max_bytes=49), "have 50 bytes; the limit is 49"),
        (replace(LIMITS, max_metadata_bytes=9), "'4' has 10 bytes; the limit is 9"),
    ],
)
def test_over_a_limit_nothing_is_added_and_up_to_it_all(store: ImageStore, limits: Any, message: str) -> None:
    store.add([new_image("0", content(0, 10)), new_image("again", content(0, 10))], LIMITS)
    store.delete("again")
    new = [new_image(str(number), content(number, 10), {"x": "ä"} if number == 4 else None) for number in range(1, 5)]
    before = everything(store)
    with pytest.raises(TooLarge, match=message):
        store.add(new, limits)
    assert everything(store) == before
    assert store.add(new, replace(LIMITS, max_images=5, max_bytes=50, max_metadata_bytes=10)).added == 4


def test_a_full_collection_confirms_what_it_has_and_shares_bytes(store: ImageStore) -> None:
    store.add([new_image("a", b"12345")], LIMITS)
    full = replace(LIMITS, max_images=1, max_bytes=4)
    assert store.add([new_image("a", b"12345")], full).unchanged == 1
    assert store.add([new_image("b", b"12345")], replace(LIMITS, max_bytes=5)).added == 1


@pytest.mark.parametrize("image_id", ["a", "a" * 256, "a/b c/ü.jpg", "...", ".a/b..", "a\\b", "a\u00a0b", "😀"])
def test_names_and_paths_can_be_ids(image_id: str) -> None:
    check_image_id(image_id, "images.0")


@pytest.mark.parametrize(
    "image_id",
    ["", "a" * 257, "a\nb", "a\0", "\x7f", "a\u0085", "\ud800", "/a", "a/", "a//b", "/", ".", "..", "a/../b", "./a"],
)
def test_what_can_not_be_an_id_is_refused(store: ImageStore, image_id: str) -> None:
    with pytest.raises(InvalidField) as raised:
        store.add([new_image(image_id, b"1", param="images.7")], LIMITS)
    assert raised.value.param == "images.7.id"


def test_conditions_are_kept_until_they_are_dropped(store: ImageStore, folder: Path) -> None:
    began = time.time()
    store.put_condition("the color", is_pinned=False)
    store.put_condition("the shape", is_pinned=True)
    store.put_condition("the shape", is_pinned=False)
    store.put_condition("the color", is_pinned=True)
    store.drop_condition("the size")
    other = ImageStore.open(folder)
    found = other.conditions()
    other.close()
    assert [replace(condition, used=0.0) for condition in found] == [
        StoredCondition("the color", True, 0.0),
        StoredCondition("the shape", True, 0.0),
    ]
    assert all(began <= condition.used <= time.time() for condition in found)
    store.drop_condition("the color")
    assert [condition.text for condition in store.conditions()] == ["the shape"]


def test_a_closed_store_fails_and_closes_again(folder: Path) -> None:
    store = ImageStore.create(folder, INFO)
    store.close()
    store.close()
    for use in (store.size, store.rows, lambda: store.add([new_image("a", b"1")], LIMITS)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_many_threads_add_delete_and_read_at_once(store: ImageStore) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                data = content(turn, 500)
                store.add([new_image(f"{number}/{turn}", data, {"n": number}), new_image("common", b"1")], LIMITS)
                assert store.data(f"{number}/{turn}") == data
                if turn % 2:
                    store.delete(f"{number}/{turn}")
                assert len(store.rows_matching({"n": number})) == turn // 2 + 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(everything(store)) == 8 * 10 + 1


# What a process that is to be killed does: add or delete the images of these numbers.
Operation = tuple[str, list[int]]


def data_of(number: int) -> bytes:
    """Two neighbours share their bytes; some are larger than a page of the file."""
    return content(number // 2, 200 + number // 2 * 977 % 30_000)


def add_and_delete(folder: Path, seed: int, reports: Connection) -> None:
    store = ImageStore.open(folder)
    dice = random.Random(seed)
    there = [int(image.id) for image in store.images(None, 1_000_000)]
    first = 100_000 * seed
    while True:
        if there and dice.random() < 0.4:
            operation: Operation = ("delete", [there.pop(dice.randrange(len(there)))])
        else:
            operation = ("add", list(range(first, first := first + dice.randint(1, 12))))
        kind, numbers = operation
        reports.send((operation, False))
        if kind == "add":
            store.add([new_image(str(number), data_of(number)) for number in numbers], LIMITS)
            there += numbers
        else:
            store.delete(str(numbers[0]))
        reports.send((operation, True))


def after(operation: Operation, there: set[int]) -> set[int]:
    kind, numbers = operation
    return there | set(numbers) if kind == "add" else there - set(numbers)


@pytest.mark.timeout(60 + 5 * NUM_KILLS)
def test_a_process_killed_at_any_moment_loses_nothing_that_it_acknowledged(folder: Path) -> None:
    ImageStore.create(folder, INFO).close()
    expected: set[int] = set()
    for kill in range(NUM_KILLS):
        reports = until_killed(add_and_delete, folder, kill)
        for operation in reports.done:
            expected = after(operation, expected)
        store = ImageStore.open(folder)
        found = everything(store)
        store.close()
        check_file(folder)
        assert all(data == data_of(int(image_id)) for image_id, (_, data) in found.items())
        there = {int(image_id) for image_id in found}
        assert there in (expected, after(reports.begun, expected) if reports.begun else expected)
        expected = there


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk") as path:
        yield path


def test_a_full_disk_refuses_an_add_as_a_whole_and_the_store_works_on(small_disk: Path) -> None:
    folder = small_disk / "collection"
    store = ImageStore.create(folder, INFO)
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
    store = ImageStore.open(folder)
    assert {image_id: data for image_id, (_, data) in everything(store).items()} == stored | batch
    store.close()


def test_a_disk_that_images_have_filled_still_takes_deletions_and_conditions(small_disk: Path) -> None:
    folder = small_disk / "collection"
    store = ImageStore.create(folder, INFO)
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
    store = ImageStore.open(folder)
    assert everything(store) == {}
    assert [condition.text for condition in store.conditions()] == list(stored)
    store.close()


def test_an_add_that_the_disk_has_no_room_for_takes_none_of_it(small_disk: Path) -> None:
    store = ImageStore.create(small_disk / "collection", INFO)
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
    store = ImageStore.create(small_disk / "collection", INFO)
    store.add([new_image("a", content(1, 50_000))], LIMITS)
    fill(small_disk / "ballast")
    with pytest.raises(StorageFull):
        store.add([new_image("b", content(2, 100_000))], LIMITS)
    with pytest.raises(StorageFull):
        store.put_condition("long " * 20_000, is_pinned=True)
    assert store.data("a") == content(1, 50_000)
    (small_disk / "ballast").unlink()
    store.add([new_image("b", content(2, 100_000))], LIMITS)
    assert store.delete("a") == 1
    assert list(everything(store)) == ["b"]
    store.close()


def test_a_store_on_a_full_disk_opens_once_there_is_room(small_disk: Path) -> None:
    store = ImageStore.create(small_disk / "collection", INFO)
    store.add([new_image("a", b"1")], LIMITS)
    store.close()
    fill(small_disk / "ballast")
    with pytest.raises(StorageFull):
        ImageStore.open(small_disk / "collection")
    with pytest.raises(FoveaError):
        ImageStore.create(small_disk / "another", INFO)
    (small_disk / "ballast").unlink()
    store = ImageStore.open(small_disk / "collection")
    assert store.data("a") == b"1"
    store.close()
