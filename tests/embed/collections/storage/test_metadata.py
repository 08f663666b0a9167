"""Metadata is any JSON object, and a filter finds the images whose fields have its values and no other."""

import operator
import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    "name", ["", " ", ".", "a.b", "a$", "a.$.a", "[0]", 'a"b', "a\\b", "a\\u0000b", "a'b", "ä\n", "😀", "type", "key"]
)
def test_a_filter_takes_any_field_name_and_any_text(store: ImageStore, name: str) -> None:
    store.add([new_image("a", b"1", {name: name}), new_image("b", b"2", {"a": {"b": 1}})], LIMITS)
    assert store.image("a").metadata == {name: name}
    assert ids_matching(store, {name: name}) == ["a"]
    assert ids_matching(store, {name: None}) == ["b"]


@pytest.mark.parametrize("value", [[[1]], [{"w": 1}], float("nan"), "a\0", "\ud800", ["\0"]])
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


# Strings that UTF-16 or a dictionary would order otherwise. A whole number is exact up to 64 bits, and one beyond 2^53
# is far from all numbers of other types.
VALUES: list[Any] = [
    None, True, False, 0, -0.0, 1, 1.0, 0.1, 1.5, -3, 2**53 + 1, 2**63 - 1, -(2**63), 1e300, -1e-300,
    "", "1", "B", "a", "é", "\uffff", "😀", "true", "2026-11-28", "2026-11-28T22:00:00Z",
]  # fmt: skip
ABSENT = object()
STORED = [*VALUES, ABSENT, [], [1], {}, {"w": 1}]
PAIRS = [{k: v for k, v in (("a", a), ("b.$", b)) if v is not ABSENT} for a, b in product(STORED, STORED[::-4])]
BOUND_BY = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def kind(value: object) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def equals(value: object, other: object) -> bool:
    return kind(value) == kind(other) and value == other


def compares(metadata: dict[str, Any], field: str, name: str, operand: Any) -> bool:
    value: Any = metadata.get(field)
    match name:
        case "$exists":
            return (field in metadata) is operand
        case "$eq" | "$ne":
            return equals(value, operand) == (name == "$eq")
        case "$in" | "$nin":
            return any(equals(value, one) for one in operand) == (name == "$in")
    return kind(value) == kind(operand) and bool(BOUND_BY[name](value, operand))


def accepts(asked: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """What a filter means, written plainly."""

    def member(name: str, value: Any) -> bool:
        match name, value:
            case "$not", _:
                return not accepts(value, metadata)
            case "$and", _:
                return all(accepts(one, metadata) for one in value)
            case "$or", _:
                return any(accepts(one, metadata) for one in value)
            case _, dict():
                return all(compares(metadata, name, one, operand) for one, operand in value.items())
            case _, list():
                return compares(metadata, name, "$in", value)
        return compares(metadata, name, "$eq", value)

    return all(member(name, value) for name, value in asked.items())


SCALARS = st.sampled_from(VALUES) | st.floats(-10, 10) | st.integers(-5, 5) | st.text("a1Bé\uffff😀", max_size=2)
SOME = st.lists(SCALARS, max_size=4) | st.lists(st.integers(-5, 60), min_size=33, max_size=40)
OPERANDS = {
    **dict.fromkeys(("$eq", "$ne"), SCALARS),
    **dict.fromkeys(("$in", "$nin"), SOME),
    **dict.fromkeys(BOUND_BY, SCALARS.filter(lambda value: kind(value) in ("number", "str"))),
    "$exists": st.booleans(),
}
COMPARISONS = st.sampled_from(sorted(OPERANDS)).flatmap(lambda name: OPERANDS[name].map(lambda one: {name: one}))
CONDITIONS = st.one_of(
    SCALARS, SOME, COMPARISONS, st.tuples(COMPARISONS, COMPARISONS).map(lambda both: both[0] | both[1])
)
FIELDS = st.dictionaries(st.sampled_from(["a", "b.$", "nobody has"]), CONDITIONS, min_size=1, max_size=2)
FILTERS = st.recursive(
    FIELDS,
    lambda inner: st.one_of(
        inner.map(lambda one: {"$not": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$or": some}),
        st.tuples(st.lists(inner, min_size=1, max_size=2), CONDITIONS).map(lambda two: {"$and": two[0], "a": two[1]}),
    ),
    max_leaves=4,
)


@pytest.fixture
def pairs(store: ImageStore) -> ImageStore:
    """A store with PAIRS, in this order."""
    limits = replace(LIMITS, max_metadata_bytes=10_000)
    store.add([new_image(f"{place:04}", b"same", metadata) for place, metadata in enumerate(PAIRS)], limits)
    return store


def check_finds_what_it_means(pairs: ImageStore, asked: dict[str, Any]) -> None:
    expected = [row for row, metadata in zip(pairs.rows().tolist(), PAIRS, strict=True) if accepts(asked, metadata)]
    assert pairs.rows_matching(asked).tolist() == expected, asked


def test_both_stores_compare_every_type_with_every_other_alike(pairs: ImageStore) -> None:
    for value in VALUES:
        names = ["$eq", "$ne", *(BOUND_BY if kind(value) in ("number", "str") else ())]
        operands = [{name: value} for name in names] + [{"$in": [value, "B"]}, {"$nin": [value, *range(60)]}]
        for condition in operands:
            check_finds_what_it_means(pairs, {"a": condition})
            check_finds_what_it_means(pairs, {"$not": {"a": condition}})
    for is_there in (True, False):
        check_finds_what_it_means(pairs, {"b.$": {"$exists": is_there}})


def test_both_stores_find_what_a_filter_means_and_nothing_else(pairs: ImageStore) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(FILTERS)
    def check(asked: dict[str, Any]) -> None:
        check_finds_what_it_means(pairs, asked)

    check()


def nested_filter(levels: int, innermost: dict[str, Any]) -> dict[str, Any]:
    return {"$not": nested_filter(levels - 1, innermost)} if levels else innermost


@pytest.mark.parametrize(
    ("asked", "param", "told"),
    [
        ({"n": {}}, "filter.n", "$gte"),
        ({"n": {"gt": 1}}, "filter.n.gt", "'gt' is no operator"),
        ({"n": {"width": 256}}, "filter.n.width", "Only top-level fields are compared"),
        ({"n": {"$gt": 1, "$like": "a"}}, "filter.n.$like", "'$like' is no operator; those on a field are $eq"),
        ({"n": {"$and": [{"n": 1}]}}, "filter.n.$and", "'$and' is no operator"),
        ({"n": {"\ud800": 1}}, "filter.n", "JSON"),
        ({"$eq": "red"}, "filter.$eq", "'$eq' is no operator on filters; those are $and, $or, $not"),
        ({"$nor": 1}, "filter.$nor", "'$nor' is no operator on filters; those are $and, $or, $not"),
        ({"$nor": [{"n": 1}]}, "filter.$nor", "'$nor' is no operator on filters; those are $and, $or, $not"),
        ({"$not": {"$OR": []}}, "filter.$not.$OR", "'$OR' is no operator on filters; those are $and, $or, $not"),
        ({"$n": {"$gt": 1}}, "filter.$n", "'$n' is no operator on filters"),
        ({"n": {"$gt": True}}, "filter.n.$gt", "number or a string"),
        ({"n": {"$lte": None}}, "filter.n.$lte", "number or a string"),
        ({"n": {"$lt": [1]}}, "filter.n.$lt", "number or a string"),
        ({"n": {"$gte": float("nan")}}, "filter.n.$gte", "JSON"),
        ({"n": {"$lt": "a\0"}}, "filter.n.$lt", "U+0000"),
        ({"n": {"$exists": 1}}, "filter.n.$exists", "true or false"),
        ({"n": {"$in": "a"}}, "filter.n.$in", "list"),
        ({"n": {"$nin": [[1]]}}, "filter.n.$nin", "compared with"),
        ({"n": {"$eq": [1]}}, "filter.n.$eq", "compared with"),
        ({"n": {"$ne": {"$gt": 1}}}, "filter.n.$ne", "compared with"),
        ({"$or": []}, "filter.$or", "one or more filters"),
        ({"$and": {"n": 1}}, "filter.$and", "one or more filters"),
        ({"$or": [{"n": 1}, "red"]}, "filter.$or.1", "JSON object"),
        ({"$not": [{"n": 1}]}, "filter.$not", "JSON object"),
        ({"$not": {"$or": [{"n": 1}, {"n": {"$gt": None}}]}}, "filter.$not.$or.1.n.$gt", "number or a string"),
        (nested_filter(8, {}), f"filter{8 * '.$not'}", "8 levels"),
        (nested_filter(500, {}), f"filter{8 * '.$not'}", "8 levels"),
        ({"$or": [{"n": {"$gt": number, "$lt": 9}} for number in range(33)]}, "filter", "66 clauses; the limit is 64"),
    ],
)
def test_a_filter_that_means_nothing_names_the_clause(
    store: ImageStore, asked: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises(InvalidField, match=re.escape(told)) as raised:
        store.rows_matching(asked)
    assert raised.value.param == param


def test_a_filter_is_as_deep_and_as_long_as_it_may_be(store: ImageStore) -> None:
    store.add([new_image("a", b"1", {"n": 1})], LIMITS)
    assert ids_matching(store, nested_filter(7, {"n": 2})) == ["a"]
    assert ids_matching(store, {"$or": [{"n": number} for number in range(64)]}) == ["a"]
    assert ids_matching(store, {"n": {"$in": list(range(70))}}) == ["a"]  # a list is one clause


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\0", {"\0": 1}, "\udfff", nested(40), nested(900)])
def test_metadata_that_json_can_not_say_is_refused(store: ImageStore, value: object) -> None:
    limits = replace(LIMITS, max_metadata_bytes=10_000)
    with pytest.raises(InvalidField) as raised:
        store.add([new_image("a", b"1", {"v": 1}), new_image("b", b"2", {"v": value}, "images.1")], limits)
    assert raised.value.param == "images.1.metadata"
    assert everything(store) == {}
