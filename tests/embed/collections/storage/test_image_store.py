"""Images are stored once, as they came, and found by id and by row until they are deleted."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.core.errors import Conflict, InvalidField, NotFound, TooLarge
from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.image_store import Added, ImageStore, ReadOnly, StoredCondition, check_image_id
from tests.embed.collections.stored import INFO, LIMITS, content, everything, new_image


def test_what_was_added_comes_back_also_after_opening_the_store_again(catalog: Catalog) -> None:
    began = time.time()
    store = catalog.create(INFO)
    added = store.add(
        [new_image("b", b"bbb", {"place": "Köln", "sizes": [1, 2.5, None, True]}), new_image("a/b.png", b"aaaa")],
        LIMITS,
    )
    assert added == Added(added=2, unchanged=0, ids=["b", "a/b.png"], rows=[1, 2])
    before = everything(store)
    store.close()
    store = catalog.open_store(INFO.name)
    assert everything(store) == before
    assert store.info == INFO
    image, data = before["b"]
    assert (image.row, image.metadata, data) == (1, {"place": "Köln", "sizes": [1, 2.5, None, True]}, b"bbb")
    assert began <= image.created <= time.time()
    assert before["a/b.png"][0].metadata == {}
    assert store.size() == (2, 7)
    store.close()


def test_adding_the_same_again_changes_nothing(store: ImageStore) -> None:
    store.add([new_image("a", b"1", {"x": 1, "y": 2})], LIMITS)
    before = everything(store)
    again = [new_image("a", b"1", {"y": 2, "x": 1}), new_image("a", b"1"), new_image("new", b"2")]
    assert store.add(again, LIMITS) == Added(1, 2, ["a", "a", "new"], [2])
    assert everything(store)["a"] == before["a"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (new_image("a", b"2"), "'a' exists with different content; delete it first"),
        (new_image("a", b"1", {"x": True}), "'a' exists with different metadata; change it by PATCH"),
        (new_image("a", b"1", {}), "'a' exists with different metadata; change it by PATCH"),
    ],
)
def test_an_id_that_has_other_content_or_metadata_is_a_conflict_and_nothing_is_added(
    store: ImageStore, other: Any, told: str
) -> None:
    store.add([new_image("a", b"1", {"x": 1})], LIMITS)
    before = everything(store)
    with pytest.raises(Conflict, match=told) as raised:
        store.add([new_image("new", b"3"), replace(other, param="images.1")], LIMITS)
    assert raised.value.param == "images.1"
    assert everything(store) == before
    assert store.add([new_image("new", b"3")], LIMITS).rows == [2]


def test_a_patch_is_kept_and_filtered_by_and_changes_nothing_else(catalog: Catalog) -> None:
    store = catalog.create(INFO)
    metadata = {"color": "red", "seen": None, "size": {"w": 1, "h": 2}}
    store.add([new_image("a", b"1", metadata), new_image("b", b"1", metadata)], LIMITS)
    before = everything(store)
    changed = store.patch("a", {"color": "blue", "seen": None, "size": {"w": None, "d": 3}, "n": 7}, LIMITS)
    assert changed == replace(before["a"][0], metadata={"color": "blue", "size": {"h": 2, "d": 3}, "n": 7})
    assert store.rows_matching({"color": "blue", "n": {"$gt": 6}}).tolist() == [changed.row]
    assert store.rows_matching({"seen": {"$exists": True}}).tolist() == [before["b"][0].row]
    assert store.patch("a", {}, LIMITS) == changed
    assert store.add([new_image("a", b"1", changed.metadata), new_image("a", b"1")], LIMITS).unchanged == 2
    store.close()
    store = catalog.open_store(INFO.name)
    assert everything(store) == {"a": (changed, b"1"), "b": before["b"]}
    store.close()


# The examples of RFC 7396 whose target and patch are objects.
@pytest.mark.parametrize(
    ("metadata", "changes", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_patch_merges_as_rfc_7396_says(
    store: ImageStore, metadata: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    store.add([new_image("a", b"1", metadata)], LIMITS)
    assert store.patch("a", changes, LIMITS).metadata == store.image("a").metadata == expected


def test_a_patch_that_does_not_fit_changes_nothing(store: ImageStore) -> None:
    store.add([new_image("a", b"1", {"x": 1})], LIMITS)
    too_deep: dict[str, Any] = {}
    for _ in range(900):
        too_deep = {"x": too_deep}
    for changes in (too_deep, {"x": "\0"}, {"\ud800": 1}, {"x": float("nan")}):
        with pytest.raises(InvalidField) as raised:
            store.patch("a", changes, LIMITS)
        assert raised.value.param == "metadata"
    with pytest.raises(TooLarge, match="limit is 1000") as too_large:
        store.patch("a", {"y": 990 * "y"}, LIMITS)
    assert too_large.value.param == "metadata"
    assert store.image("a").metadata == {"x": 1}


def test_patches_of_one_image_at_once_all_remain(store: ImageStore) -> None:
    store.add([new_image("a", b"1")], LIMITS)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: store.patch("a", {str(number): number}, LIMITS), range(40)))
    assert store.image("a").metadata == {str(number): number for number in range(40)}


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


@pytest.mark.parametrize("image_id", ["", "there-is-none", "\ud800", "\0"])
def test_an_image_that_is_not_there_is_not_found(store: ImageStore, image_id: str) -> None:
    store.add([new_image("a", b"1")], LIMITS)
    for ask in (store.image, store.data, store.delete, lambda one: store.patch(one, {"x": 1}, LIMITS)):
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
    check_image_id(image_id, "images.0.id")


@pytest.mark.parametrize(
    "image_id",
    ["", "a" * 257, "a\nb", "a\0", "\x7f", "a\u0085", "\ud800", "/a", "a/", "a//b", "/", ".", "..", "a/../b", "./a"],
)
def test_what_can_not_be_an_id_is_refused(store: ImageStore, image_id: str) -> None:
    with pytest.raises(InvalidField) as raised:
        store.add([new_image(image_id, b"1", param="images.7")], LIMITS)
    assert raised.value.param == "images.7.id"


def test_conditions_are_kept_until_they_are_dropped(store: ImageStore, catalog: Catalog) -> None:
    began = time.time()
    store.put_condition("the color", is_pinned=False)
    store.put_condition("the\0size", is_pinned=False)
    store.drop_condition("the\0size")
    store.put_condition("the shape", is_pinned=True)
    store.put_condition("the shape", is_pinned=False)
    store.put_condition("the color", is_pinned=True)
    store.drop_condition("the size")
    other = catalog.open_store(INFO.name)
    found = other.conditions()
    other.close()
    assert [replace(condition, used=0.0) for condition in found] == [
        StoredCondition("the color", True, 0.0),
        StoredCondition("the shape", True, 0.0),
    ]
    assert all(began <= condition.used <= time.time() for condition in found)
    store.drop_condition("the color")
    assert [condition.text for condition in store.conditions()] == ["the shape"]


def test_an_image_that_comes_from_elsewhere_keeps_its_time(store: ImageStore) -> None:
    store.add([replace(new_image("a", b"1"), created=1_500_000_000.25)], LIMITS)
    assert store.image("a").created == 1_500_000_000.25
    store.add([replace(new_image("a", b"1"), created=1.0)], LIMITS)
    assert store.image("a").created == 1_500_000_000.25


def test_a_read_only_collection_refuses_changes_and_answers_as_before(catalog: Catalog) -> None:
    store = catalog.create(INFO)
    store.add([new_image("a", b"1")], LIMITS)
    store.put_condition("the color", is_pinned=True)
    before, conditions = everything(store), store.conditions()
    store.set_access("read_only")
    store.close()
    store = catalog.open_store(INFO.name)
    for change in (
        lambda: store.add([new_image("b", b"2")], LIMITS),
        lambda: store.delete("a"),
        lambda: store.patch("a", {"x": 1}, LIMITS),
        lambda: store.put_condition("the shape", is_pinned=True),
    ):
        with pytest.raises(ReadOnly, match="read-only"):
            change()
    assert store.add([new_image("a", b"1")], LIMITS).unchanged == 1
    assert (everything(store), store.conditions(), store.access()) == (before, conditions, "read_only")
    store.set_access("open")
    store.delete("a")
    store.close()


def test_a_copy_takes_only_what_fills_it_and_no_other_collection_takes_that(store: ImageStore) -> None:
    store.set_access("copy")
    store.add([new_image("a", b"1"), new_image("b", b"2")], LIMITS, fill=True)
    store.put_condition("the color", is_pinned=True)
    before = everything(store)
    for change in (
        lambda: store.add([new_image("c", b"3")], LIMITS),
        lambda: store.add([new_image("a", b"1")], LIMITS),  # even this could be removed again
        lambda: store.delete("a"),
        lambda: store.patch("a", {"x": 1}, LIMITS),
    ):
        with pytest.raises(ReadOnly, match="still being filled"):
            change()
    assert everything(store) == before
    store.delete("b", fill=True)
    for access in ("open", "read_only"):
        store.set_access(access)
        for late in (
            lambda: store.add([new_image("d", b"4")], LIMITS, fill=True),
            lambda: store.add([new_image("a", b"1")], LIMITS, fill=True),
            lambda: store.delete("a", fill=True),
        ):
            with pytest.raises(Conflict, match="not a copy"):
                late()
    assert [image.id for image in store.images(None, 10)] == ["a"]


def test_only_a_new_collection_can_become_a_copy(store: ImageStore) -> None:
    store.set_access("copy")
    store.add([new_image("a", b"1")], LIMITS, fill=True)
    store.set_access("copy")
    store.set_access("open")
    with pytest.raises(Conflict, match="not a copy"):
        store.set_access("copy")
    assert store.access() == "open"


@pytest.mark.slow
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
