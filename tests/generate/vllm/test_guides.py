"""Guides of answers are bounded before vLLM compiles them, and those from which nothing follows are refused."""

import re
from typing import Any

import pytest

from services.core.errors import FoveaError, InvalidRequest, TooLarge
from services.generate.http.openai_routes import check_chat, check_completion
from services.generate.http.openai_schemas import ChatRequest, CompletionRequest

TEXT = {"type": "string"}


def check(**fields: Any) -> None:
    check_completion(CompletionRequest.model_validate({"prompt": "the keeper", **fields}), is_over_vllm=True)


def wide(number: int, inner: Any = TEXT) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{place}": inner for place in range(number)}}


def deep(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(depth - 1)} if depth else TEXT


RULES = "root ::= a{1,20}\na ::= b{1,20}\nb ::= [a-z]{1,20}"
LENGTHS = {"properties": {f"p{place}": {"type": "string", "maxLength": 500 + place} for place in range(9)}}


@pytest.mark.parametrize(
    ("guide", "field", "limit"),
    [
        ({"json": wide(1500, wide(12))}, "json", "4096 values"),
        ({"json": {"enum": ["a" * 140_000]}}, "json", "131072 characters"),
        ({"json": deep(200)}, "json", "32 levels"),
        ({"json": LENGTHS}, "json", "1024 repetitions"),
        ({"json": {"type": "string", "pattern": "[a-z]{1,9999}"}}, "json", "1024 repetitions"),
        ({"json": {"patternProperties": {"a{9999}": TEXT}}}, "json", "1024 repetitions"),
        ({"choice": ["otter"] * 20_000}, "choice", "limit is 1024"),
        ({"regex": "a|" * 2000}, "regex", "2048 characters of patterns"),
        ({"regex": "(([a-z]{1,30}){1,30}){1,30}"}, "regex", "1024 repetitions"),
        ({"grammar": "# " + "a" * 40_000}, "grammar", "32768 characters of grammars"),
        ({"grammar": RULES}, "grammar", "1024 repetitions"),
        (
            {"structural_tag": '{"format": {"type": "regex", "pattern": "a{9999}"}}'},
            "structural_tag",
            "1024 repetitions",
        ),
    ],
)
def test_a_guide_that_takes_long_to_compile_is_refused_with_its_field_and_the_limit(
    guide: dict[str, Any], field: str, limit: str
) -> None:
    with pytest.raises(TooLarge, match=re.escape(limit)) as raised:
        check(structured_outputs=guide)
    assert raised.value.param == f"structured_outputs.{field}"


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
MAYBE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    "guide",
    [
        {"json": {"$ref": "#"}},
        {"json": '{"$ref": "#"}'},
        {"json": {"allOf": [{"$ref": "#"}]}},
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
        {"json": {"$ref": "#/$defs/node", "$defs": {"node": NODE}}},
        {"json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}},
        {"structural_tag": '{"format": {"type": "json_schema", "json_schema": {"$ref": "#"}}}'},
        {"grammar": "root ::= root"},
        {"grammar": 'root ::= a\na ::= (b | "x" a)+ "y"\nb ::= a'},
        {"grammar": 'start: one\none: one "a"'},
    ],
)
def test_a_guide_that_refers_to_itself_without_end_is_refused_with_its_field(guide: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="to itself without end") as raised:
        check(structured_outputs=guide)
    (field,) = guide
    assert raised.value.param == f"structured_outputs.{field}"


@pytest.mark.parametrize(
    "guide",
    [
        {"json": {"type": "array", "items": {"$ref": "#"}}},
        {"json": {"anyOf": [{"$ref": "#"}, TEXT]}},
        {"json": {"$ref": "#/$defs/node", "$defs": {"node": {**MAYBE, "required": ["next"]}}}},
        {"json": {"type": "object", "properties": {"schema": {"$ref": "#"}}}},
        {"json": wide(600)},
        {"json": wide(400, {"type": "string", "maxLength": 255})},
        {"choice": ["otter", "parrot"] * 500},
        {"regex": r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}){0,1}|[^\s\S]{1,500}"},
        {"grammar": 'root ::= root "a" | "b"'},
        {"grammar": 'root ::= ("x" root)? "(" "y"{2,9}'},
        {"grammar": 'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"'},
        {"grammar": "%import common.WORD\nstart: WORD+"},
    ],
)
def test_guides_of_a_usual_size_are_taken_recursive_ones_too(guide: dict[str, Any]) -> None:
    check(structured_outputs=guide)


def test_response_formats_tools_and_words_are_bounded_alike() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}
    tool = {"type": "function", "function": {"name": "a", "parameters": wide(3000)}}
    for fields, error, param in (
        ({"response_format": schema}, InvalidRequest, "response_format.json_schema.schema"),
        ({"tools": [{**tool, "function": {"name": "a"}}, tool]}, TooLarge, "tools.1.function.parameters"),
        ({"bad_words": ["a"] * 2000}, TooLarge, "bad_words"),
    ):
        body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "Who?"}], **fields})
        with pytest.raises(FoveaError) as raised:
            check_chat(body, is_over_vllm=True)
        assert (type(raised.value), raised.value.param) == (error, param)
