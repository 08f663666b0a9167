"""Requests that generate's OpenAPI document allows, and many that it does not, are answered as the document says."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.contract.documented_answers import CHECKS, operations
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System
from tests.generate.served_tiny import MODEL

REFUSALS = {400, 404, 413, 422}
# An answer of more tokens shows nothing more of its form.
MAX_TOKENS = 3
QUESTION = [{"role": "user", "content": "who kept the lighthouse?"}]
PREDICATE = {"type": "predicate", "instructions": "Is it a question?"}
KNOWN = ("model", "messages", "input", "stream", "temperature", "top_p", "metadata")
# Fields that are refused whatever they hold, or nearly so.
REFUSED = (
    *("tools", "functions", "tool_choice", "function_call", "response_format", "modalities", "audio"),
    *("structured_outputs", "allowed_token_ids", "bad_words", "top_k", "min_p", "repetition_penalty"),
    *("web_search_options", "moderation", "suffix", "best_of", "top_logprobs", "logit_bias", "k", "text"),
)
STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v2/chat")
# Whose streams end with an event of their own, and not with OpenAI's.
WITH_OWN_END = ("/v1/responses", "/v1/messages")
# Beside the statuses that were seen: some answer was a stream.
STREAMED = 0


@pytest.fixture(scope="module")
def generate_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("generate")) as system:
        yield system


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_server_error_and_nothing_that_the_document_omits(generate_system: System, mode: GenerationMode) -> None:
    document = requests.get(f"{generate_system.service.url}/openapi.json", timeout=30).json()
    statuses = {
        operation.label: statuses_of(operation.as_strategy(generation_mode=mode).map(short_and_answerable), document)
        for operation in operations(generate_system.service.url, mode)
    }
    asked = ["/generate", *STREAMING, "/v1/rerank", "/v2/rerank"]
    asked += ["/v1/decisions"] if mode == GenerationMode.POSITIVE else []
    for path in asked:
        # what does not fit was refused, and what does reached the model
        assert statuses[f"POST {path}"] & REFUSALS
        if mode == GenerationMode.POSITIVE:
            assert 200 in statuses[f"POST {path}"], path
            assert STREAMED in statuses[f"POST {path}"] or path.endswith(("rerank", "decisions")), path


def test_every_route_and_both_forms_of_an_answer_are_documented(generate_system: System) -> None:
    document = requests.get(f"{generate_system.service.url}/openapi.json", timeout=30).json()
    for path in ("/generate", *STREAMING):
        answered = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert set(answered) == {"application/json", "text/event-stream"}
        assert answered["application/json"]["schema"]["$ref"]
        text = schema_of_events(document, path)
        of_anthropic = path == "/v1/messages"
        error = {"message": "m", "type": "t", **({} if of_anthropic else {"param": None, "code": None})}
        assert text.is_valid({"error": error, **({"type": "error"} if of_anthropic else {})})
        assert not text.is_valid({"id": "of no answer"})
    for path in ("/v1/rerank", "/v2/rerank"):
        operation = document["paths"][path]["post"]
        assert set(operation["responses"]["200"]["content"]) == {"application/json"}
        assert "RerankError" in str(operation["responses"]["422"])
    sent = document["paths"]["/v1/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"#/components/schemas/RerankRequest", "#/components/schemas/TeiRerankRequest"} == {
        one["$ref"] for one in sent["oneOf"]
    }


def short_and_answerable(case: Any) -> Any:
    """Few tokens of an answer, and every other time a model that exists, a question, and no fields that are refused."""
    body = case.body
    if case.path == "/v1/decisions" and isinstance(body, dict):
        if (size := len(str(body))) % 2:
            body |= {"model": MODEL, "input": QUESTION} | ({"questions": [PREDICATE]} if size // 2 % 2 else {})
    elif isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(name), int | float):  # 2000.0 is an integer to JSON Schema
                body[name] = min(body[name], MAX_TOKENS)
        limit = "max_output_tokens" if case.path == "/v1/responses" else "max_tokens"
        if body.get(limit) is None:
            body[limit] = MAX_TOKENS
        if (size := len(str(body))) % 2:
            body["model"] = MODEL
            body["stream"] = size % 4 == 1
            for name in REFUSED:
                body.pop(name, None)
            if isinstance(body.get("n"), int | float):
                body["n"] = min(body["n"], 2)
            if case.path in ("/v1/chat/completions", "/v1/messages", "/v2/chat"):
                body["messages"] = QUESTION
            if case.path == "/v1/responses":
                body["input"] = QUESTION
            if case.path in WITH_OWN_END:  # which refuse every field that they do not know
                case.body = {name: body[name] for name in (*KNOWN, limit) if name in body}
            if case.path == "/v1/completions":
                body["prompt"] = QUESTION[0]["content"]
    return case


def schema_of_events(document: dict[str, Any], path: str) -> jsonschema_rs.Validator:
    """Return the document's schema of the JSON in the events of a stream."""
    answered = document["paths"][path]["post"]["responses"]["200"]["content"]
    payload = answered["text/event-stream"]["itemSchema"]["properties"]["data"]
    if path not in WITH_OWN_END:
        done, payload = payload["anyOf"]
        assert done["const"] == "[DONE]"
    return jsonschema_rs.validator_for(payload["contentSchema"])


def check_events(response: Any, path: str, schema: jsonschema_rs.Validator) -> None:
    """Every event is one line of JSON as the document has it, up to the end, if it was read so far."""
    *events, rest = response.text.split("\n\n")
    is_whole = rest == "" and not response.stream_cut_short
    if path not in WITH_OWN_END:
        is_whole = events.pop() == "data: [DONE]" and rest == ""
    assert events
    assert is_whole or response.stream_cut_short
    for event in events:
        schema.validate(
            json.loads(event.split("\n")[-1].removeprefix("data: "))
        )  # after the event's name, if it has one


def statuses_of(cases: st.SearchStrategy[Any], document: dict[str, Any]) -> set[int]:
    """Send what is generated, hold every answer against the document, and return the statuses seen."""
    seen: set[int] = set()

    @given(case=cases)
    # a request that fails is shown as it was: making it smaller would take minutes
    @settings(
        max_examples=40,
        phases=[Phase.generate],
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def answered_as_documented(case: Any) -> None:
        response = case.call()
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)
        if response.headers["content-type"][0].startswith("text/event-stream"):
            # a check of the schema takes the text of an event for a text
            check_events(response, case.path, schema_of_events(document, case.path))
            seen.add(STREAMED)

    answered_as_documented()
    return seen
