"""Chat and completions over HTTP: what is refused, what a stream holds, and how answers are put into OpenAI's forms."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.errors import InvalidRequest
from services.generate.citations import sentences
from services.generate.generation.answer_text import TokenOut
from services.generate.generation.generation import Generation, Progress, PromptFacts
from services.generate.generation.sampling import Sampling
from services.generate.http.openai_bodies import ChatForm, ChoiceSoFar, CompletionForm, Identity, usage_of
from services.generate.http.openai_routes import check_chat, sampling_of
from services.generate.http.openai_schemas import ChatRequest, CompletionRequest
from services.generate.prompts.templates import Prompt
from tests.core.trace_collector import gen_ai_told
from tests.generate.served_tiny import CONTEXT, MODEL, broken_off, served_tiny

QUESTION = [{"role": "user", "content": "who kept the lighthouse?"}]
PROMPT = "The keeper of the lighthouse was called"
DOCUMENTS: list[Any] = [
    {"title": "The harbour", "text": "The harbour was built by the people of the island.", "id": "h"},
    {"title": "The lighthouse", "text": "The keeper of the lighthouse was called Ada.", "id": "l"},
    "The people fished and traded with the mainland.",
]
CHAT, COMPLETIONS, COHERE = "/v1/chat/completions", "/v1/completions", "/v2/chat"
MAX_TOKENS, MAX_CHOICES, MAX_DOCUMENTS = 100, 4, 5


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    limits: dict[str, Any] = {"max_tokens": MAX_TOKENS, "max_choices": MAX_CHOICES, "max_documents": MAX_DOCUMENTS}
    with served_tiny(tmp_path_factory.mktemp("openai"), **limits) as client:
        yield client


def chat(client: TestClient, **fields: Any) -> Any:
    response = client.post(CHAT, json={"messages": QUESTION, "max_tokens": 8, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def complete(client: TestClient, **fields: Any) -> Any:
    response = client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def events_of(client: TestClient, path: str, body: dict[str, Any]) -> list[Any]:
    """The objects of a stream, which ends as OpenAI's do."""
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


# --- what is answered ---


@pytest.mark.slow
def test_both_spellings_of_a_path_are_answered(client: TestClient) -> None:
    for path in (CHAT, COMPLETIONS):
        body = {"messages": QUESTION, "prompt": PROMPT, "max_tokens": 2}
        assert client.post(path.removeprefix("/v1"), json=body).status_code == 200


@pytest.mark.slow
def test_the_newer_name_of_the_number_of_tokens_goes_first(client: TestClient) -> None:
    assert chat(client, max_tokens=8, max_completion_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    assert complete(client, max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 16
    assert chat(client, max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == MAX_TOKENS


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 999}, "max_tokens"),
        ({"max_completion_tokens": 999}, "max_completion_tokens"),
        ({"max_tokens": 2, "max_completion_tokens": 999}, "max_completion_tokens"),
    ],
)
def test_too_many_tokens_are_refused_by_the_name_that_was_sent(
    client: TestClient, fields: dict[str, int], named: str
) -> None:
    error = client.post(CHAT, json={"messages": QUESTION, **fields}).json()["error"]
    assert (error["param"], error["message"].split(": ")[0]) == (named, named)


def test_fields_that_ask_for_what_is_done_anyway_are_taken(client: TestClient) -> None:
    harmless = {
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "audio": None,
        "store": True,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "user": "somebody",
        "logit_bias": {},
        "stop": None,
        "n": None,
        "a_field_that_nobody_knows": 1,
        "guided_json": None,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "chat_template_kwargs": {},
    }
    assert text_of(chat(client, **harmless)) == text_of(chat(client))


@pytest.mark.parametrize(
    ("path", "field", "value", "nearest"),
    [
        *((CHAT, name, ["Ada kept it."], "documents") for name in ("docs", "context", "contexts", "passages")),
        (CHAT, "Documents", ["Ada kept it."], "documents"),
        (CHAT, "citation", True, "citations"),
        *((COHERE, name, ["Ada kept it."], "documents") for name in ("docs", "document", "Documents", "passages")),
        (COHERE, "citation_option", {"mode": "OFF"}, "citation_options"),
        (COHERE, "citation_options", {"mod": "OFF"}, "mode"),
        (COHERE, "citations", True, "citation_options"),
        (COHERE, "max_token", 3, "max_tokens"),
        (COHERE, "max_token", None, "max_tokens"),
        (CHAT, "citation", None, "citations"),
        (COHERE, "top_p", 0.5, "p"),
    ],
)
def test_another_spelling_of_a_field_is_refused_with_the_one_that_is_read(
    client: TestClient, path: str, field: str, value: Any, nearest: str
) -> None:
    response = client.post(path, json={"messages": QUESTION, "max_tokens": 2, field: value})
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert error["param"].startswith(field)
    assert error["message"].endswith(f"the nearest that is known is {nearest}.")


def test_what_cohere_alone_does_not_have_is_refused_on_its_route(client: TestClient) -> None:
    for fields in ({"calibration": {"enabled": True}}, {"reorder": "calibrated"}):
        response = client.post(COHERE, json={"messages": QUESTION, "documents": ["Ada kept it."], **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(fields)))


@pytest.mark.parametrize("path", [CHAT, "/generate"])
def test_citations_need_documents_which_may_be_an_empty_list(client: TestClient, path: str) -> None:
    asked = {"messages": QUESTION} if path == CHAT else {"query": "who kept the lighthouse?"}
    body = {**asked, "citations": True, "max_tokens": 2}
    response = client.post(path, json={**body, "documents": []})
    assert response.status_code == 200
    assert '"documents":[]' in response.text
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "citations")


def test_every_role_of_text_is_read(client: TestClient) -> None:
    def prompt_tokens(*messages: dict[str, Any]) -> int:
        return int(chat(client, messages=[*messages, *QUESTION])["usage"]["prompt_tokens"])

    alone = prompt_tokens()
    system = {"role": "system", "content": "Answer briefly."}
    assert prompt_tokens(system) == prompt_tokens({**system, "role": "developer"}) > alone
    told = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}]
    assert prompt_tokens(*told, {"role": "tool", "content": "42", "tool_call_id": "1"}) > prompt_tokens(*told) > alone
    parts = [{"type": "text", "text": "Answer "}, {"type": "text", "text": "briefly."}]
    assert prompt_tokens({**system, "content": parts}) == prompt_tokens(system)


def test_calls_of_tools_are_not_left_out_of_a_count_of_tokens(client: TestClient) -> None:
    refused = client.post("/tokenize", json={"messages": [*QUESTION, {"role": "assistant", "tool_calls": [CALL]}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"messages.{len(QUESTION)}")


def test_a_logit_bias_has_its_token_taken(client: TestClient) -> None:
    told = complete(client, logit_bias={"300": 100}, logprobs=0, ignore_eos=True)["choices"][0]["logprobs"]
    assert len(told["tokens"]) == 8
    assert len(set(told["tokens"])) == 1
    assert told["top_logprobs"] is None


def test_everything_that_is_said_of_sampling_reaches_the_model() -> None:
    body = ChatRequest.model_validate(
        {
            "messages": QUESTION,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": -1,
            "presence_penalty": 1,
            "frequency_penalty": -1,
            "logit_bias": {"5": -100, "7": 0.5},
        }
    )
    assert sampling_of(body, 3, vocab_size=8) == Sampling(0.5, 0.9, -1, 3, 1.0, -1.0, ((5, -100.0), (7, 0.5)))
    # as OpenAI's, where nothing is said
    assert sampling_of(ChatRequest.model_validate({"messages": QUESTION}), None, vocab_size=8) == Sampling(1.0)


def test_a_share_of_probability_that_is_next_to_nothing_keeps_the_most_likely_token(client: TestClient) -> None:
    tiny = {"temperature": 1, "top_p": 5e-324, "seed": 0}
    assert text_of(chat(client, **tiny)) == text_of(chat(client))
    assert complete(client, **tiny)["choices"][0]["text"] == complete(client)["choices"][0]["text"]


def test_answers_of_one_prompt_share_its_computation_and_its_tokens_count_once(client: TestClient) -> None:
    question = [{"role": "user", "content": "who built the harbour? " * 10}]
    one = chat(client, messages=question, max_tokens=2)
    several = chat(client, messages=question, n=3, max_tokens=2, ignore_eos=True)
    assert several["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert several["usage"]["completion_tokens"] == 6
    again = chat(client, messages=question, max_tokens=2)
    assert 0 < again["usage"]["prompt_tokens_details"]["cached_tokens"] < again["usage"]["prompt_tokens"]


def test_cached_tokens_tell_a_tenant_nothing_of_what_another_has_asked(client: TestClient) -> None:
    body = {"prompt": "the secret of the lighthouse is kept by the keeper " * 8, "max_tokens": 1}
    told = []
    for tenant in ("north", "south", "north"):
        response = client.post(COMPLETIONS, json=body, headers={"x-fovea-tenant": tenant})
        told.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert told == [False, False, True]


def test_documents_are_calibrated_and_ordered_as_the_request_asks(client: TestClient) -> None:
    calibrated = chat(client, documents=DOCUMENTS)
    plain = chat(client, documents=DOCUMENTS, calibration={"enabled": False})
    assert calibrated["usage"]["calibration_passes"] > plain["usage"]["calibration_passes"] == 0
    assert [one["id"] for one in calibrated["documents"]] == ["h", "l", None]
    assert all(one["relevance"] is not None for one in calibrated["documents"])
    assert all(one["relevance"] is None for one in plain["documents"])
    places = [one["position"] for one in chat(client, documents=DOCUMENTS, reorder="query_likelihood")["documents"]]
    assert sorted(places) == [0, 1, 2]
    assert "documents" not in chat(client)


def test_each_choice_of_a_chat_over_documents_cites_them(client: TestClient) -> None:
    body = {"documents": DOCUMENTS, "max_tokens": 30, "temperature": 1, "seed": 3, "n": 2, "citations": True}
    whole = [one["message"] for one in chat(client, **body)["choices"]]
    for message in whole:
        assert [one["text"] for one in message["citations"]] == [
            message["content"][start:end] for start, end in sentences(message["content"])
        ]
    events = events_of(client, CHAT, {"messages": QUESTION, **body})
    last = {one["index"]: one["delta"] for chunk in events for one in chunk["choices"] if one["finish_reason"]}
    assert [last[index]["citations"] for index in range(2)] == [message["citations"] for message in whole]
    assert "citations" not in chat(client, documents=DOCUMENTS)["choices"][0]["message"]


def test_citations_are_refused_over_vllm_which_returns_no_attention_of_answers() -> None:
    body = ChatRequest.model_validate({"messages": QUESTION, "documents": DOCUMENTS, "citations": True})
    with pytest.raises(InvalidRequest, match="vLLM does not return") as refused:
        check_chat(body, is_over_vllm=True)
    assert refused.value.param == "citations"
    check_chat(body)


def test_a_stream_tells_of_documents_with_its_last_chunk(client: TestClient) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "temperature": 0, "documents": DOCUMENTS}
    *before, last = events_of(client, CHAT, body)
    assert last["choices"][0]["finish_reason"] is not None
    whole = chat(client, max_tokens=3, documents=DOCUMENTS)["documents"]
    for told, expected in zip(last["documents"], whole, strict=True):
        assert told == pytest.approx(expected)
    assert all("documents" not in chunk for chunk in before)


def test_each_choice_of_a_stream_has_its_own_beginning_and_end(client: TestClient) -> None:
    body = {"messages": QUESTION, "max_tokens": 6, "temperature": 1, "seed": 3, "n": 3}
    events = events_of(client, CHAT, {**body, "stream_options": {"include_usage": True}})
    *chunks, usage = events
    assert usage["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["delta"] == {}
        assert [one["finish_reason"] is not None for one in own] == [False] * (len(own) - 1) + [True]
    whole = chat(client, **body)
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_an_echo_comes_before_its_continuation_in_a_stream_too(client: TestClient) -> None:
    prompts = [PROMPT, "It was built"]
    body = {"prompt": prompts, "max_tokens": 4, "temperature": 0, "echo": True}
    texts = ["", ""]
    for chunk in events_of(client, COMPLETIONS, body):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in complete(client, **body)["choices"]]
    assert all(text.startswith(prompt) and text != prompt for text, prompt in zip(texts, prompts, strict=True))


def test_no_event_of_a_stream_holds_what_clients_take_for_the_end_of_a_line(client: TestClient) -> None:
    prompt = "one\u2028two\u2029three\u0085four"
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "echo": True, "stream": True}
    response = client.post(COMPLETIONS, json=body)
    assert response.text.splitlines() == response.text.split("\n")[:-1]
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines()[:-2] if line]
    assert "".join(event["choices"][0]["text"] for event in events).startswith(prompt)


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("prompt", [PROMPT, [5, 6, 7, 8], "Ça brûle ☃"])
def test_an_echoed_prompt_has_the_log_probability_of_each_of_its_tokens(
    client: TestClient, prompt: str | list[int], max_tokens: int
) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 2, "temperature": 0}
    answer = complete(client, **body)
    (choice,), usage = answer["choices"], answer["usage"]
    told = choice["logprobs"]
    assert usage["completion_tokens"] <= max_tokens
    assert len(told["tokens"]) == len(told["text_offset"]) == usage["total_tokens"]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert all(logprob <= max(top.values()) <= 0 for logprob, top in _after_first(told))
    assert told["text_offset"] == sorted(told["text_offset"])
    answered = complete(client, **{**body, "max_tokens": 3, "echo": False})["choices"][0]
    assert choice["text"].endswith(answered["text"] if max_tokens else "")
    assert told["token_logprobs"][usage["prompt_tokens"] :] == (
        pytest.approx(answered["logprobs"]["token_logprobs"], abs=1e-4) if max_tokens else []
    )
    chunks = [chunk["choices"][0] for chunk in events_of(client, COMPLETIONS, body)]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert [token for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["tokens"]] == told["tokens"]
    if isinstance(prompt, str):
        assert choice["text"].startswith(prompt)
        places = zip(told["tokens"], told["text_offset"], strict=True)
        assert all(choice["text"].startswith(token, at) for token, at in places if "\ufffd" not in token)


def _after_first(told: dict[str, Any]) -> list[tuple[float, dict[str, float]]]:
    return list(zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True))


def test_chat_over_documents_is_greedy_unless_it_says_otherwise(client: TestClient) -> None:
    def answers(**fields: Any) -> set[str]:
        return {text_of(chat(client, max_tokens=24, seed=seed, **fields)) for seed in range(5)}

    greedy = answers(temperature=0, documents=DOCUMENTS)
    assert answers(temperature=None, documents=DOCUMENTS) == greedy
    assert len(greedy) == 1
    assert len(answers(temperature=1, documents=DOCUMENTS)) > 1
    assert len(answers(temperature=None)) > 1


def test_a_checkpoint_that_is_not_made_for_sampling_is_greedy_unless_the_request_says_otherwise() -> None:
    bodies = ChatRequest.model_validate({"messages": QUESTION}), CompletionRequest.model_validate({"prompt": "a"})
    for body in bodies:
        assert sampling_of(body, None, 10).temperature == 1
        assert sampling_of(body, None, 10, is_greedy=True).temperature == 0
        warm = body.model_copy(update={"temperature": 0.7})
        assert sampling_of(warm, None, 10, is_greedy=True).temperature == 0.7


def test_tokenize_counts_what_chat_and_completions_count(client: TestClient) -> None:
    for body, answered in (({"prompt": PROMPT}, complete(client)), ({"messages": QUESTION}, chat(client))):
        response = client.post("/tokenize", json=body)
        assert response.status_code == 200, response.text
        counted = response.json()
        assert counted["count"] == len(counted["tokens"]) == answered["usage"]["prompt_tokens"]
        assert counted["max_model_len"] == CONTEXT
    tokens = client.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    assert complete(client, prompt=tokens)["choices"] == complete(client)["choices"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"prompt": PROMPT, "messages": QUESTION}, 422),
        ({"prompt": PROMPT, "add_special_tokens": False}, 400),
        ({"messages": QUESTION, "return_token_strs": True}, 400),
        ({"prompt": "lighthouse " * 100_000}, 413),
        ({"prompt": PROMPT, "model": "gpt-5"}, 404),
    ],
)
def test_what_can_not_be_tokenised_is_refused(client: TestClient, body: dict[str, Any], status: int) -> None:
    assert client.post("/tokenize", json=body).status_code == status


# --- what is refused ---

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "user"}]}, 422, "messages.0.content"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, 422, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 422, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, 400, "messages.0"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
        ({"tools": [{"type": "function"}]}, 422, "tools.0.function"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"functions": [{"name": "f"}]}, 400, "functions"),
        ({"function_call": {"name": "f"}}, 400, "function_call"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"modalities": ["text", "audio"]}, 400, "modalities"),
        ({"audio": {"voice": "alloy"}}, 400, "audio"),
        ({"web_search_options": {}}, 400, "web_search_options"),
        ({"moderation": {"model": "m"}}, 400, "moderation"),
        ({"guided_json": {"type": "object"}}, 400, "guided_json"),
        ({"vllm_xargs": {"fovea_documents": [0, 3]}}, 400, "vllm_xargs"),
        ({"guided_choice": ["yes", "no"]}, 400, "guided_choice"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, 400, "structured_outputs"),
        ({"top_k": 5}, 400, "top_k"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 400, "chat_template_kwargs"),
        ({"calibration": {"enabeld": False}}, 422, "calibration.enabeld"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 422, "top_logprobs"),
        ({"temperature": 2.1}, 422, "temperature"),
        ({"top_p": 0}, 422, "top_p"),
        ({"n": MAX_CHOICES + 1}, 413, "n"),
        ({"n": 0}, 422, "n"),
        ({"max_tokens": MAX_TOKENS + 1}, 413, "max_tokens"),
        ({"max_tokens": 0}, 422, "max_tokens"),
        ({"seed": 2**63}, 422, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 422, "stop"),
        ({"stop": ""}, 422, "stop"),
        ({"presence_penalty": 2.5}, 422, "presence_penalty"),
        ({"logit_bias": {"100000": 1}}, 422, "logit_bias"),
        ({"logit_bias": {"5": 101}}, 422, "logit_bias.5"),
        ({"logit_bias": {"5": 100, "05": 100}}, 400, "logit_bias"),
        ({"logit_bias": {"the": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"5\n": 1}}, 400, "logit_bias"),
        ({"logit_bias": {str(token_id): 0 for token_id in range(1025)}}, 400, "logit_bias"),
        ({"logit_bias": 5}, 422, "logit_bias"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, 413, "documents"),
        ({"documents": [{"title": "a"}]}, 422, "documents.0.text"),
        ({"documents": ["a", "b"], "messages": [{"role": "system", "content": "a"}]}, 400, "messages"),
        *(
            ({"documents": ["a", "b"], "messages": [{"role": "user", "content": unseen}]}, 422, "messages")
            for unseen in ("", "\u00a0\u200b")
        ),
        ({"reorder": "randomly"}, 422, "reorder"),
        ({"reorder": "attention"}, 400, "reorder"),
        ({"calibration": {"enabled": True}}, 400, "calibration"),
        ({"calibration": {}}, 400, "calibration"),
        ({"citations": True}, 400, "citations"),
        ({"documents": DOCUMENTS, "citation": True}, 422, "citation"),
        ({"document": DOCUMENTS}, 422, "document"),
        ({"documnets": DOCUMENTS}, 422, "documnets"),
        ({"documents": DOCUMENTS, "calibrations": {"enabled": True}}, 422, "calibrations"),
        ({"continue_final_message": True}, 400, "continue_final_message"),
        ({"documents": DOCUMENTS, "calibration": {"layers": [99]}}, 422, "calibration.layers"),
        ({"calibration": {"temperature": 0}}, 422, "calibration.temperature"),
        ({"model": "gpt-5"}, 404, "model"),
        ({"messages": [{"role": "user", "content": "lighthouse " * CONTEXT}]}, 413, "messages"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused_by_name(
    client: TestClient, fields: dict[str, Any], status: int, param: str
) -> None:
    body = {"messages": QUESTION, "max_tokens": 4, **fields}
    for stream in (False, True):
        response = client.post(CHAT, json={**body, "stream": stream})
        assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text
        assert response.headers["x-should-retry"] == "false"


def test_a_value_is_told_what_is_wrong_with_it_and_not_which_other_types_there_are(client: TestClient) -> None:
    error = client.post(COMPLETIONS, json={"prompt": [-1]}).json()["error"]
    assert error["message"] == "prompt.0: Input should be greater than or equal to 0."


def test_a_chat_without_documents_may_say_that_it_is_not_calibrated(client: TestClient) -> None:
    assert chat(client, calibration={"enabled": False})["choices"]
    assert chat(client, documents=[], calibration={"enabled": True})["choices"]


def test_the_assistants_message_at_the_end_is_a_finished_turn_as_with_vllm(client: TestClient) -> None:
    ended = chat(client, messages=[*QUESTION, {"role": "assistant", "content": "The keeper"}])
    counted = client.post("/tokenize", json={"messages": QUESTION}).json()["count"]
    assert ended["usage"]["prompt_tokens"] > counted


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": None}, 422, "prompt"),
        ({"prompt": []}, 422, "prompt"),
        ({"prompt": ["a"] * 129}, 413, "prompt"),
        ({"prompt": ""}, 422, "prompt"),
        ({"prompt": ["a", ""]}, 422, "prompt.1"),
        ({"prompt": [True]}, 422, "prompt.0"),
        ({"document": ["a"]}, 422, "document"),
        ({"prompt": [5, 512]}, 422, "prompt"),
        ({"prompt": [[5], [512]]}, 422, "prompt"),
        ({"guided_regex": "a|b"}, 400, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"suffix": "end"}, 400, "suffix"),
        ({"best_of": 3}, 400, "best_of"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"documents": ["a"]}, 400, "documents"),
        ({"logprobs": 21}, 422, "logprobs"),
        ({"prompt": "lighthouse " * CONTEXT}, 413, "prompt"),
    ],
)
def test_a_completion_that_cannot_be_given_is_refused_by_name(
    client: TestClient, fields: dict[str, Any], status: int, param: str
) -> None:
    response = client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 4, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, '{"messages": [{"role": "user", "content": "a\\ud800b"}]}'),
        (COMPLETIONS, '{"prompt": "a\\ud800b"}'),
        (COMPLETIONS, '{"prompt": "a", "stop": "\\udc00"}'),
        (COMPLETIONS, '{"prompt": "a", "temperature": NaN}'),
    ],
)
def test_a_body_that_is_no_json_is_refused_as_such(client: TestClient, path: str, body: str) -> None:
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert "not valid JSON" in response.json()["error"]["message"]


def test_best_of_as_many_as_are_answered_is_taken(client: TestClient) -> None:
    assert len(complete(client, best_of=2, n=2)["choices"]) == 2


def test_what_goes_wrong_in_mid_stream_is_its_last_event(client: TestClient) -> None:
    body = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    *before, last = broken_off(client, COMPLETIONS, body).text.strip().split("\n\n")
    assert before
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "timeout_error"


# --- the forms ---

IDENTITY = Identity("id-1", 1_700_000_000, "tiny@1", "fp_1")
GENERATION = Generation(Prompt((5,), (), 0), 9)


def progress(*tokens: TokenOut, text: str = "", num_tokens: int = 0, **more: Any) -> Progress:
    told = {"finish_reason": None, "facts": None, **more}
    return Progress(GENERATION, text, tokens, num_tokens=num_tokens, **told)


def facts(prompt_tokens: int, cached_tokens: int, calibration_passes: int = 0) -> PromptFacts:
    return PromptFacts(prompt_tokens, cached_tokens, (), None, calibration_passes, ())


def test_usage_counts_a_prompt_once_and_what_its_first_choice_had_to_compute() -> None:
    choices = [ChoiceSoFar(index, prompt=index // 2) for index in range(4)]
    for choice, cached in zip(choices, (0, 9, 4, 9), strict=True):
        choice.add(progress(text="a", num_tokens=1, facts=facts(10 * (choice.prompt + 1), cached, 2)))
        choice.add(progress(text="b", num_tokens=3, finish_reason="stop"))
    usage = usage_of(choices)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (30, 12, 42)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0 + 4
    assert usage["calibration_passes"] == 8


def test_a_token_inside_a_character_stands_where_the_character_begins() -> None:
    snow = "☃".encode()
    tokens = [
        TokenOut(1, b"a", -0.5),
        TokenOut(2, snow[:1], -1.0),
        TokenOut(3, snow[1:], -2.0),
        TokenOut(4, b"b", -3.0),
    ]
    choice = ChoiceSoFar(0, 0)
    choice.add(progress(tokens[0], text="a", num_tokens=1))
    choice.add(progress(*tokens[1:], text="☃b", num_tokens=4, finish_reason="length"))
    form = CompletionForm(num_logprobs=1)
    told = form.whole(IDENTITY, [choice])["choices"][0]["logprobs"]
    assert told["text_offset"] == [0, 1, 1, 2]
    assert told["tokens"] == ["a", "\ufffd", "\ufffd\ufffd", "b"]
    assert told["token_logprobs"] == [-0.5, -1.0, -2.0, -3.0]
    (chat,) = ChatForm(has_logprobs=True).whole(IDENTITY, [choice])["choices"]
    assert b"".join(bytes(token["bytes"]) for token in chat["logprobs"]["content"]) == "a☃b".encode()


def test_chunks_of_tokens_without_text_are_sent_for_their_probabilities_alone() -> None:
    held = progress(TokenOut(1, b"\xe2", -1.0), num_tokens=1)
    choice = ChoiceSoFar(0, 0)
    choice.add(held)
    assert list(ChatForm().chunks(IDENTITY, choice, held)) == []
    (chunk,) = ChatForm(has_logprobs=True).chunks(IDENTITY, choice, held)
    assert chunk["choices"][0]["delta"] == {"content": ""}
    assert chunk["choices"][0]["logprobs"]["content"][0]["bytes"] == [0xE2]
    assert list(CompletionForm().chunks(IDENTITY, choice, held)) == []


def test_of_tokens_that_read_alike_the_likelier_one_is_told() -> None:
    top = (TokenOut(7, b"x", -0.1), TokenOut(8, b"\xff", -1.0), TokenOut(9, b"\xfe", -2.0))
    taken = progress(TokenOut(10, b"y", -3.0, top), text="y", num_tokens=1, finish_reason="length")
    choice = ChoiceSoFar(0, 0)
    choice.add(taken)
    (told,) = CompletionForm(num_logprobs=3).whole(IDENTITY, [choice])["choices"][0]["logprobs"]["top_logprobs"]
    assert told == {"x": -0.1, "\ufffd": -1.0, "y": -3.0}


# --- what is traced ---


@pytest.mark.slow
@pytest.mark.parametrize("opt_in", ["http, gen_ai_latest_experimental", "http", ""])
async def test_a_span_tells_the_model_and_its_tokens_where_the_conventions_are_switched_on_and_never_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opt_in: str
) -> None:
    answered: list[Any] = []

    def ask() -> None:
        several = {"n": 2, "max_tokens": 3, "ignore_eos": True}
        with served_tiny(tmp_path, telemetry=True) as client:
            answered.append(chat(client, model=MODEL, **several))
            *_, last = events_of(
                client, CHAT, {"messages": QUESTION, **several, "stream_options": {"include_usage": True}}
            )
            answered.append(last)
            answered.append(complete(client, prompt=[PROMPT, PROMPT], max_tokens=4, ignore_eos=True))
            question = {"query": "who?", "documents": ["Ada kept it."]}
            answered.append(client.post("/generate", json={**question, "max_tokens": 2}).json())
            cohere = {"messages": QUESTION, "max_tokens": 2}
            assert client.post(COHERE, json=cohere).status_code == 200
            assert client.post(CHAT, json={"messages": QUESTION, "model": "nobody"}).status_code == 404
            assert client.post("/v1/rerank", json=question).status_code == 200
            broken_off(client, CHAT, {"messages": QUESTION, "max_tokens": 100, "ignore_eos": True})

    told = await gen_ai_told(monkeypatch, ask, opt_in)
    if "gen_ai" not in opt_in:
        assert told == []
        return
    broken = told.pop()
    assert 0 < broken["usage.output_tokens"] < 100
    assert "response.finish_reasons" not in broken
    told = told[:6]  # what follows missed its deadline before its first token
    assert [one["operation.name"] for one in told] == [*("chat",) * 2, *("text_completion",) * 2, *("chat",) * 2]
    assert {one["provider.name"] for one in told} == {"fovea"}
    for one, answer in zip(told, answered, strict=False):
        assert one["response.model"] == answer["model"]
        assert one["usage.input_tokens"] == answer["usage"]["prompt_tokens"]
        assert one["usage.output_tokens"] == answer["usage"]["completion_tokens"]
    assert [one.get("request.model") for one in told] == [MODEL, None, None, None, None, None]
    assert [len(one.get("response.finish_reasons", ())) for one in told] == [2, 2, 2, 1, 1, 0]
    assert told[0]["response.finish_reasons"] == ["length", "length"]
    assert "lighthouse" not in str(told)
    assert "usage.input_tokens" not in told[-1]


# --- what a gateway is told ---


@pytest.mark.slow
def test_the_tokens_so_far_are_told_to_a_gateway_that_asks_and_to_nobody_else(client: TestClient) -> None:
    body = {"messages": QUESTION, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    asking = {"X-Fovea-Tokens": "count"}
    whole = client.post(CHAT, json=body, headers=asking)
    assert whole.headers["x-fovea-tokens"] == str(whole.json()["usage"]["total_tokens"])
    streamed = client.post(CHAT, json={**body, "stream": True}, headers=asking)
    *events, rest = streamed.text.split("\n\n")
    told = [int(event.split("\n")[0].removeprefix(": tokens ")) for event in events]
    assert rest == ""
    assert told == sorted(told)
    assert told[-1] == whole.json()["usage"]["total_tokens"]
    assert told[0] >= int(streamed.headers["x-fovea-tokens"]) > 0
    unasked = client.post(CHAT, json={**body, "stream": True})
    assert ": tokens" not in unasked.text
    assert "x-fovea-tokens" not in unasked.headers
