"""The model that a body names, as a parser would find it, without parsing."""

import asyncio
import random
import threading
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gateway.routing.upstream_choice import (
    MAX_INLINE_BYTES,
    MAX_POSITIONS,
    find_in_body,
    find_in_form,
    find_in_json,
    find_in_query,
)

# Texts that look like the field, its value, or the end of one.
TEXTS = some.sampled_from(
    ["model", "vicuna", '"model": "no"', '\\"model\\":\\"no\\"', "\\", '"', "{", "[[", "é\u2028", ""]
)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers(-9, 9) | TEXTS,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def expected(body: Any) -> str | None:
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) and model else None


@given(some.dictionaries(TEXTS, VALUES, max_size=6) | VALUES, some.booleans())
@settings(max_examples=400)
def test_a_model_is_found_where_a_parser_finds_it(body: Any, is_indented: bool) -> None:
    text = orjson.dumps(body, option=orjson.OPT_INDENT_2 if is_indented else 0)
    assert find_in_json(text, "model") == expected(body)


@pytest.mark.parametrize("seed", range(20))
def test_a_model_is_found_wherever_the_pieces_of_a_long_body_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(seed)
    members = [("image", "A" * generator.randrange(40)), ("note", 'a \\"model": "no"'), ("list", [{"model": "inner"}])]
    members.insert(generator.randrange(4), ("model", 'vic\\u"na'))
    text = orjson.dumps(dict(members))
    for piece in range(1, 40):
        monkeypatch.setattr("gateway.routing.upstream_choice.PIECE_BYTES", piece)
        assert find_in_json(text, "model") == 'vic\\u"na'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'"model": "x"',
        b'["model", "x"]',
        b'[{"model": "x"}]',
        b'{"model": 5}',
        b'{"model": null}',
        b'{"model": ["x"]}',
        b'{"model": {"model": "x"}}',
        b'{"model": ""}',
        b'{"model": "x',
        b'{"model": "\\x"}',
        b'{"model": "' + b"x" * 1000 + b'"}',
        b'{"other": "model"}',
        b'{"a": {"model": "x"}, "b": 1}',
        b'{"a": "\\"model\\": \\"x\\""}',
        b'{"a": "b"model": "x"}',
        b"\xff\xfe{}",
    ],
)
def test_what_names_no_model_finds_none(body: bytes) -> None:
    assert find_in_json(body, "model") is None


def test_a_name_may_be_written_with_escapes_and_beside_a_value_that_equals_the_field() -> None:
    assert find_in_json(rb'{ "role" : "model" , "model" : "org\/vicun\u0061" }', "model") == "org/vicuna"


@given(some.lists(some.tuples(some.sampled_from(["model", "role"]), TEXTS | VALUES), max_size=6))
def test_of_equal_members_the_last_names_the_model_as_a_parser_takes_it(members: list[tuple[str, Any]]) -> None:
    text = b"{%b}" % b", ".join(orjson.dumps(name) + b": " + orjson.dumps(value) for name, value in members)
    assert find_in_json(text, "model") == expected(orjson.loads(text))


@pytest.mark.parametrize("last", ["null", "5", '""', '{"model": "y"}'])
def test_a_last_member_that_names_no_model_leaves_none(last: str) -> None:
    assert find_in_json(b'{"model": "x", "a": 1, "model": %b}' % last.encode(), "model") is None


def test_an_endless_number_of_nested_fields_is_not_followed_to_the_end() -> None:
    few = b'{"a": [' + b'{"model": "no"},' * (MAX_POSITIONS - 1) + b'0], "model": "x"}'
    many = b'{"a": [' + b'{"model": "no"},' * MAX_POSITIONS + b'0], "model": "x"}'
    assert find_in_json(few, "model") == "x"
    assert find_in_json(many, "model") is None


async def test_a_large_body_is_searched_in_another_thread() -> None:
    searched_in: list[int] = []

    def find(body: bytes, field: str) -> str | None:
        searched_in.append(threading.get_ident())
        return find_in_json(body, field)

    start, end = b'{"images": ["', b'"], "model": "x"}'
    small = start + b"A" * (MAX_INLINE_BYTES - len(start + end)) + end
    assert await find_in_body(find, small, "model") == "x"
    assert await find_in_body(find, start + b"A" + small.removeprefix(start), "model") == "x"
    assert searched_in[0] == threading.get_ident()
    assert searched_in[1] != threading.get_ident()


def form(**fields: str | bytes) -> tuple[str, bytes]:
    """A form as aiohttp writes it; bytes are files."""
    writer = aiohttp.MultipartWriter("form-data")
    for name, value in fields.items():
        part = writer.append(value)
        more: dict[str, Any] = {"filename": "model"} if isinstance(value, bytes) else {}
        part.set_content_disposition("form-data", name=name, **more)
    parts: list[bytes] = []

    class Target:
        async def write(self, data: bytes) -> None:
            parts.append(data)

    asyncio.run(writer.write(Target()))  # type: ignore[arg-type]
    return writer.content_type, b"".join(parts)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_part_of_a_form_names_a_model(is_first: bool) -> None:
    image = b'\x89PNG \r\n\r\n model name="model" \r\n' * 20
    content_type, body = form(model="eyes@3", file=image) if is_first else form(file=image, model="eyes@3")
    assert find_in_form(content_type, body, "model") == "eyes@3"


@pytest.mark.parametrize(
    "fields",
    [
        {"file": b"image"},
        {"file": b'\r\n\r\nContent-Disposition: form-data; name="model"\r\n\r\nx\r\n'},
        {"condition": 'a name="model" or two'},
        {"models": "x"},
        {"model": ""},
        {"model": "x" * 1000},
    ],
)
def test_what_a_form_only_holds_is_no_model(fields: dict[str, str | bytes]) -> None:
    assert find_in_form(*form(**fields), "model") is None


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=", "text/plain"])
def test_a_form_without_a_boundary_names_no_model(content_type: str) -> None:
    assert find_in_form(content_type, b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\na', "model") is None


def test_a_form_cut_in_the_middle_names_no_model() -> None:
    content_type, body = form(model="eyes")
    assert find_in_form(content_type, body, "model") == "eyes"
    for length in range(body.index(b"eyes") + 6):
        assert find_in_form(content_type, body[:length], "model") is None


@pytest.mark.parametrize(
    ("query", "model"),
    [
        (b"", None),
        (b"model=", None),
        (b"models=a", None),
        (b"condition=model%3Dx", None),
        (b"model=eyes%401&condition=a+b", "eyes@1"),
        (b"model=a&model=b", "b"),
    ],
)
def test_a_parameter_of_the_url_names_a_model(query: bytes, model: str | None) -> None:
    assert find_in_query(query, "model") == model
