"""Anthropic's messages by its own client, through the gateway with keys: answers, citations, streams and refusals."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
import requests
from anthropic.types import Message, TextBlock

from gateway.access import digest, new_key
from services.core.errors import InvalidRequest
from services.generate.http.anthropic_messages import AnthropicRequest, chat_request
from services.generate.service import CallLimits
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System

MODEL = "open-facts"
KEY, LIMITED = new_key(), new_key()
ASKED = "What is the pet of Belan Ashford?"
ANSWER = "quiet otter"
TEXTS = {
    "Corin Blackwood": "Corin Blackwood owns the golden parrot.",
    "Belan Ashford": "Belan Ashford owns the quiet otter.",
}
CITING = {"citations": {"enabled": True}}
PLAIN: list[Any] = [
    {"type": "document", "title": name, "source": {"type": "text", "media_type": "text/plain", "data": text}, **CITING}
    for name, text in TEXTS.items()
]
BLOCKS: Any = {
    "type": "document",
    "title": "Pets",
    "source": {"type": "content", "content": [{"type": "text", "text": text} for text in TEXTS.values()]},
    **CITING,
}
QUESTION: Any = {"type": "text", "text": ASKED}


def over(*documents: Any) -> list[Any]:
    return [{"role": "user", "content": [*documents, QUESTION]}]


def keys_file(folder: Path) -> str:
    path = folder / "keys.json"
    scopes = {"all": (KEY, "generate"), "limited": (LIMITED, "score")}
    known = [{"name": name, "sha256": digest(key), "scopes": [scope]} for name, (key, scope) in scopes.items()]
    path.write_text(json.dumps({"keys": known}))
    return str(path)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("anthropic")
    settings = {"FOVEA_STORE_URL": (folder / "empty").as_uri(), "FOVEA_GENERATE_MODELS": MODEL}
    with running_system(folder, FOVEA_GATEWAY_KEYS_FILE=keys_file(folder), **settings) as system:
        yield system


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key=KEY, base_url=system.gateway.url, max_retries=0) as client:
        yield client


def asked(messages: list[Any], **fields: Any) -> Any:
    return {"model": MODEL, "max_tokens": 30, "messages": messages, **fields}


def texts(message: Message) -> list[str]:
    return [block.text for block in message.content if isinstance(block, TextBlock)]


def cited(message: Message) -> list[dict[str, Any]]:
    found = [one for block in message.content if isinstance(block, TextBlock) for one in block.citations or ()]
    return [one.model_dump(exclude_none=True) for one in found]


def test_an_answer_over_plain_documents_cites_the_whole_text_of_one(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**asked(over(*PLAIN)))
    assert texts(answer) == [ANSWER]
    assert (answer.type, answer.role, answer.stop_reason, answer.stop_sequence) == (
        *("message", "assistant", "end_turn"),
        None,
    )
    assert answer.id.startswith("msg_") and answer.model.startswith(f"{MODEL}@")
    text = TEXTS["Belan Ashford"]
    place = {"start_char_index": 0, "end_char_index": len(text)}
    of = {"document_index": 1, "document_title": "Belan Ashford", "cited_text": text}
    assert cited(answer) == [{"type": "char_location", **of, **place}]
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0


def test_a_block_of_content_is_cited_by_its_place(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**asked(over({**PLAIN[0], "title": "Before"}, BLOCKS)))
    assert texts(answer) == [ANSWER]
    place = {"start_block_index": 1, "end_block_index": 2}
    of = {"document_index": 1, "document_title": "Pets", "cited_text": TEXTS["Belan Ashford"]}
    assert cited(answer) == [{"type": "content_block_location", **of, **place}]


def test_documents_are_read_without_citations_and_come_from_earlier_turns_too(client: anthropic.Anthropic) -> None:
    silent = [{name: value for name, value in one.items() if name != "citations"} for one in PLAIN]
    assert cited(client.messages.create(**asked(over(*silent)))) == []
    earlier = client.messages.create(**asked(over(*PLAIN)))
    name = "Corin Blackwood"
    turns = [*over(*PLAIN), earlier.to_param(), {"role": "user", "content": f"What is the pet of {name}?"}]
    answer = client.messages.create(**asked(turns, system="Answer briefly."))
    assert [one["document_index"] for one in cited(answer)] == [0]


def test_a_stream_is_put_together_to_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**asked(over(*PLAIN)))
    with client.messages.stream(**asked(over(*PLAIN))) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-4:] == ["citation", "content_block_stop", "message_delta", "message_stop"]
    assert (texts(final), cited(final)) == (texts(whole), cited(whole))
    assert (final.stop_reason, final.model) == (whole.stop_reason, whole.model)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_raw_events_of_a_stream_are_named_and_none_is_openais(system: System) -> None:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    body = asked(over(*PLAIN), stream=True)
    told = requests.post(f"{system.gateway.url}/v1/messages", json=body, headers=headers, timeout=60)
    assert told.headers["content-type"].startswith("text/event-stream")
    events = told.text.strip().split("\n\n")
    names = [event.split("\n")[0].removeprefix("event: ") for event in events]
    assert names == [json.loads(event.split("data: ", 1)[1])["type"] for event in events]
    assert names[:3] == ["message_start", "content_block_start", "ping"]


def test_the_asynchronous_client_answers_and_streams_alike(system: System) -> None:
    async def both() -> tuple[Message, Message]:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=system.gateway.url) as client:
            whole = await client.messages.create(**asked(over(*PLAIN)))
            async with client.messages.stream(**asked(over(*PLAIN))) as stream:
                return whole, await stream.get_final_message()

    whole, streamed = asyncio.run(both())
    assert (texts(whole), cited(whole)) == (texts(streamed), cited(streamed))


def test_an_answer_says_what_ended_it(client: anthropic.Anthropic) -> None:
    stopped = client.messages.create(**asked(over(*PLAIN), stop_sequences=["never said", " otter"]))
    assert (texts(stopped), stopped.stop_reason, stopped.stop_sequence) == (["quiet"], "stop_sequence", " otter")
    cut = client.messages.create(**asked(over(*PLAIN), max_tokens=1))
    assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 1)


def test_tokens_are_counted_as_the_answer_reads_them(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=over(*PLAIN)).input_tokens
    usage = client.messages.create(**asked(over(*PLAIN), max_tokens=1)).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_everything_that_changes_no_answer_is_taken(client: anthropic.Anthropic) -> None:
    harmless: Any = {
        **{"metadata": {"user_id": "u"}, "service_tier": "auto"},
        # which the client has no more, and models are sampled by
        "extra_body": {"temperature": 0.0, "top_p": 0.9, "top_k": 0},
        **{"thinking": {"type": "disabled"}, "cache_control": {"type": "ephemeral"}, "tools": []},
    }
    assert texts(client.messages.create(**asked(over(*PLAIN), **harmless))) == [ANSWER]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}
MIXED = [PLAIN[0], {**PLAIN[1], "citations": {"enabled": False}}]


@pytest.mark.parametrize(
    ("fields", "refusal", "message"),
    [
        (
            {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
            *(anthropic.BadRequestError, "tools: This route reads text and documents"),
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, anthropic.BadRequestError, "thinking: "),
        ({"output_config": {"effort": "low"}}, anthropic.BadRequestError, "output_config: "),
        ({"extra_body": {"top_k": 5}}, anthropic.BadRequestError, "top_k: "),
        (
            {"messages": over(IMAGE)},
            *(anthropic.UnprocessableEntityError, "messages.0.content.0: Only text and document can be read"),
        ),
        (
            {"messages": over(PDF)},
            *(anthropic.UnprocessableEntityError, "messages.0.content.0.source: Only text and content can be read"),
        ),
        ({"messages": over(*MIXED)}, anthropic.BadRequestError, "messages.0.content.1.citations: Enable"),
        (
            {"messages": [*over(), {"role": "assistant", "content": "The"}]},
            *(anthropic.BadRequestError, "messages.1: An answer that has begun"),
        ),
        ({"extra_body": {"stop": ["x"]}}, anthropic.UnprocessableEntityError, "stop: .* stop_sequences"),
        ({"extra_body": {"temprature": None}}, anthropic.UnprocessableEntityError, "temprature: .* temperature"),
        ({"extra_body": {"unheard_of": 1}}, anthropic.UnprocessableEntityError, "unheard_of: Unknown field"),
        (
            {"messages": over({**PLAIN[0], "titel": "x"})},
            *(anthropic.UnprocessableEntityError, "messages.0.content.0.titel: .* title"),
        ),
        ({"extra_headers": {"anthropic-version": "2023-01-01"}}, anthropic.UnprocessableEntityError, "version"),
        ({"max_tokens": 5000}, anthropic.APIStatusError, "max_tokens: "),
        ({"messages": over(*[PLAIN[0]] * 300)}, anthropic.APIStatusError, "messages: .* 300 documents"),
        ({"model": "claude"}, anthropic.NotFoundError, "claude"),
    ],
)
def test_what_can_not_be_kept_to_is_refused_by_name_as_the_clients_own_errors(
    client: anthropic.Anthropic, fields: dict[str, Any], refusal: type[anthropic.APIStatusError], message: str
) -> None:
    for streams in (False, True):
        with pytest.raises(refusal, match=message) as refused:
            client.messages.create(**{**asked(over(*PLAIN)), **fields, "stream": streams})
        assert refused.value.type in {"invalid_request_error", "not_found_error", "request_too_large"}


def test_a_key_is_asked_for_and_its_scopes_hold(system: System) -> None:
    for key, refusal, kind in (
        ("fovea-unknown", anthropic.AuthenticationError, "authentication_error"),
        (LIMITED, anthropic.PermissionDeniedError, "permission_error"),
    ):
        with anthropic.Anthropic(api_key=key, base_url=system.gateway.url, max_retries=0) as stranger:
            with pytest.raises(refusal) as refused:
                stranger.messages.create(**asked(over()))
            assert refused.value.type == kind
    assert KEY not in system.gateway.log.read_text() + system.service.log.read_text()


def test_over_vllm_citations_are_refused_where_they_are_asked_for() -> None:
    body = AnthropicRequest.model_validate(asked(over(*PLAIN)))
    assert chat_request(CallLimits(), body)[0].citations
    with pytest.raises(InvalidRequest, match="vLLM does not return") as refused:
        chat_request(CallLimits(is_over_vllm=True), body)
    assert refused.value.param == "messages.0.content.1.citations"
