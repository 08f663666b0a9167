"""Metadata is any JSON object, and a filter finds the images whose fields have its values and no other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.core.errors import InvalidField
from services.embed.collections.storage.image_store import ImageStore
from tests.embed.collections.stored import LIMITS, everything, new_image


def ids_matching(store: ImageStore, fields: dict[str, Any]) -> list[str]:
    rows = store.rows_matching(fields)
    assert rows.dtype == np.int64
    return [image.id for image in store.by_rows(rows.tolist()).values()]


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
