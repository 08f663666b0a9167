import random
from typing import Any

import orjson
import pytest

from services.core.admission.json_scan import MAX_NAMING_MEMBERS, JsonScan, check_num_values
from services.core.errors import TooLarge

LITTLE = ["", ",", "[{:,", 'a "quoted" word', "\\", '\\"', "\\\\,", "caf\u00e9", "{", "\n"]


def some_value(generator: random.Random, depth: int = 0) -> Any:
    kind = generator.randrange(6 if depth < 4 else 3)
    if kind == 0:
        return generator.choice([None, True, 1, -2.5])
    if kind <= 2:
        return generator.choice(LITTLE)
    if kind == 3:
        return {generator.choice(LITTLE) + str(n): some_value(generator, depth + 1) for n in range(3)}
    return [some_value(generator, depth + 1) for _ in range(generator.randrange(4))]


def expected(value: Any) -> int:
    """Commas, colons and opening brackets."""
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + len(value) + sum(map(expected, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(expected, value))
    return 0


def scanned(pieces: list[bytes], max_values: int = 1000) -> JsonScan:
    scan = JsonScan(max_values)
    for piece in pieces:
        scan.feed(piece)
    return scan


@pytest.mark.parametrize("seed", range(50))
def test_values_are_counted_however_the_text_is_cut(seed: int) -> None:
    generator = random.Random(seed)
    value = [some_value(generator) for _ in range(8)]
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if seed % 2 else 0)
    assert scanned([text]).num_values == expected(value)
    assert scanned([text[place : place + 1] for place in range(len(text))]).num_values == expected(value)
    for _ in range(20):
        cut = generator.randrange(len(text))
        assert scanned([text[:cut], text[cut:]]).num_values == expected(value)


def test_what_strings_hold_counts_for_nothing() -> None:
    assert scanned([orjson.dumps({"text": "[{,:" * 100_000})]).num_values == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"model":"m","texts":["a"' + b',"a"' * 2000, "texts"),
        (b'{"condition":["a"], "images" : [{"url":"x"}' + b',{"u":"[texts\\": ["}' * 500, "images"),
        (b'{"not \\"texts\\":[":"","inputs":[[]' + b",[]" * 2000, "inputs"),
        (b"[1" + b",1" * 2000, None),
        (b'{"a":[1],' * (MAX_NAMING_MEMBERS + 1) + b'"b":[1' + b",1" * 2000, None),
    ],
)
def test_the_refusal_names_the_field_and_the_limit(body: bytes, field: str | None) -> None:
    scan = scanned([body])
    assert scan.is_over
    refusal = scan.refusal()
    assert (refusal.param, refusal.code) == (field, "too_many_values")
    assert "more than 1000 values" in refusal.message


@pytest.mark.parametrize("filler", [b'\\"', b'"a"', b'"a" ', b"\\", b'"a":', b'"' + b"a" * 70, b": "])
def test_no_text_makes_naming_the_field_slow(filler: bytes) -> None:
    # a pattern that looked back would take minutes
    scan = scanned([b'{"texts":["' + filler * (200_000 // len(filler)) + b'",1' + b",1" * 2000])
    scan.refusal()


def test_a_text_is_refused_by_the_name_that_it_has() -> None:
    check_num_values(b"[1,2,3]", 3, param="metadata")
    with pytest.raises(TooLarge) as refused:
        check_num_values(b'{"texts":[1,2,3]}', 3, param="metadata")
    assert refused.value.param == "metadata"
