"""Cohere's chat over documents by its own client, through the gateway: answers, citations, streams and refusals."""

from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import pytest

from services.core.errors import InvalidRequest
from services.generate.http.cohere_chat import CohereChatRequest, chat_request
from services.generate.service import CallLimits
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System

MODEL = "open-facts"
QUESTION: list[Any] = [{"role": "user", "content": "What is the pet of Belan Ashford?"}]
DOCUMENTS: list[Any] = [
    {"data": {"title": "Corin Blackwood", "text": "Corin Blackwood owns the golden parrot.", "year": 1931}},
    {"id": "b", "data": {"title": "Belan Ashford", "text": "Belan Ashford owns the quiet otter."}},
    "Danis Crowley owns the amber falcon.",
]
ANSWER = "quiet otter"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("cohere")
    settings = {"FOVEA_STORE_URL": (folder / "empty").as_uri(), "FOVEA_GENERATE_MODELS": MODEL}
    with running_system(folder, **settings) as system:
        yield system


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[cohere.ClientV2]:
    with httpx.Client(timeout=60) as connections:
        yield cohere.ClientV2(api_key="none", base_url=system.gateway.url, httpx_client=connections)


def cited(citations: Any) -> list[tuple[int, int, str, list[tuple[str, Any]]]]:
    return [(one.start, one.end, one.text, [(s.id, s.document) for s in one.sources]) for one in citations or ()]


SOURCE = ("b", {**DOCUMENTS[1]["data"], "id": "b"})


def test_an_answer_cites_the_document_that_it_was_read_from(client: cohere.ClientV2) -> None:
    answer = client.chat(model=MODEL, messages=QUESTION, documents=DOCUMENTS)
    assert answer.id
    assert answer.finish_reason == "COMPLETE"
    assert answer.message.role == "assistant"
    assert answer.message.content is not None
    assert [(one.type, getattr(one, "text", None)) for one in answer.message.content] == [("text", ANSWER)]
    assert cited(answer.message.citations) == [(0, len(ANSWER), ANSWER, [SOURCE])]
    assert answer.usage is not None and answer.usage.tokens is not None and answer.usage.billed_units is not None
    assert answer.usage.tokens.input_tokens == answer.usage.billed_units.input_tokens
    assert answer.usage.tokens.output_tokens


@pytest.mark.parametrize("index", [0, 2])
def test_a_document_without_an_id_is_cited_by_its_place(client: cohere.ClientV2, index: int) -> None:
    name = ("Corin Blackwood", "", "Danis Crowley")[index]
    question: Any = [{"role": "user", "content": f"What is the pet of {name}?"}]
    (source,) = (
        source
        for *_, sources in cited(client.chat(model=MODEL, messages=question, documents=DOCUMENTS).message.citations)
        for source in sources
    )
    given = DOCUMENTS[index]
    data = {"text": given} if isinstance(given, str) else given["data"]
    assert source == (f"doc:{index}", {**data, "id": f"doc:{index}"})


def test_a_stream_has_the_answer_then_its_citations_then_its_end(client: cohere.ClientV2) -> None:
    events = list(client.chat_stream(model=MODEL, messages=QUESTION, documents=DOCUMENTS))
    deltas: list[Any] = [event for event in events if event.type == "content-delta"]
    assert [event.type for event in events] == [
        *("message-start", "content-start", *["content-delta"] * len(deltas), "content-end"),
        *("citation-start", "citation-end", "message-end"),
    ]
    assert "".join(event.delta.message.content.text for event in deltas) == ANSWER
    citation: Any = next(event for event in events if event.type == "citation-start")
    assert cited([citation.delta.message.citations]) == [(0, len(ANSWER), ANSWER, [SOURCE])]
    end: Any = events[-1]
    assert (end.delta.finish_reason, end.delta.usage.tokens.output_tokens > 0) == ("COMPLETE", True)


def test_citations_may_be_left_out_and_need_documents(client: cohere.ClientV2) -> None:
    options = cohere.CitationOptions(mode="OFF")
    off = client.chat(model=MODEL, messages=QUESTION, documents=DOCUMENTS, citation_options=options)
    assert off.message.citations is None
    assert client.chat(model=MODEL, messages=QUESTION, max_tokens=3).message.citations is None


def test_everything_that_is_said_of_sampling_is_taken(client: cohere.ClientV2) -> None:
    asked: Any = {"p": 0.9, "k": 0, "seed": 3, "temperature": 0.5, "frequency_penalty": 0.1, "presence_penalty": 0.1}
    answer = client.chat(
        model=MODEL, messages=QUESTION, documents=DOCUMENTS, max_tokens=2, stop_sequences=list("abcde"), **asked
    )
    assert answer.finish_reason in {"COMPLETE", "MAX_TOKENS"}


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, 400, "tools"),
        ({"tool_choice": "REQUIRED"}, 400, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"safety_mode": "STRICT"}, 400, "safety_mode"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"thinking": {"type": "enabled"}}, 400, "thinking"),
        ({"k": 5}, 400, "k"),
        ({"p": 0}, 422, "p"),
        ({"max_tokens": 10**6}, 413, "max_tokens"),
        ({"stop_sequences": list("abcdef")}, 422, "stop_sequences"),
        ({"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]}, 422, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            *(400, "messages.0.content.0"),
        ),
        ({"model": "command-a"}, 404, "model"),
    ],
)
def test_what_can_not_be_kept_to_is_refused_by_name(
    client: cohere.ClientV2, fields: dict[str, Any], status: int, param: str
) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "documents": DOCUMENTS, **fields}
    with pytest.raises(cohere.core.ApiError) as refused:
        client.chat(**asked)
    assert (refused.value.status_code, refused.value.body["error"]["param"]) == (status, param)


def test_over_vllm_an_answer_has_no_citations_and_asking_for_them_is_refused() -> None:
    body = CohereChatRequest.model_validate({"messages": QUESTION, "documents": DOCUMENTS})
    limits = CallLimits(is_over_vllm=True)
    assert chat_request(CallLimits(), body).citations
    assert not chat_request(limits, body).citations
    asking = body.model_copy(update={"citation_options": cohere.CitationOptions(mode="FAST")})
    with pytest.raises(InvalidRequest, match="vLLM does not return") as refused:
        chat_request(limits, asking)
    assert refused.value.param == "citation_options"
