"""The starter as it is served: answers by curl, many at once, and requests whose clients have gone."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import requests

from services.generate.data.questions import Example, best_subspan_em
from starters.generate.questions import generated_facts
from tests.contract.curl import Answer, curl
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System, wait_until

MODEL = "litm-facts"
# The capacity of the running batch. A prompt of more than half of it leaves no room for another.
CONTEXT = 8192
NUM_WORDS = 4200
LONG = CONTEXT // 4
NUM_STREAMS = 200
CALIBRATED, PLAIN = {"enabled": True, "temperature": 1e-3}, {"enabled": False}
FIELDS = {"answer", "id", "object", "model", "finish_reason", "relevance", "documents", "citations"}
FIELDS |= {"calibration", "usage"}
QUESTIONS = generated_facts(NUM_STREAMS, 10, seed=7)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("starter")
    settings = {
        "FOVEA_STORE_URL": (folder / "empty").as_uri(),  # the service publishes its starter itself
        "FOVEA_GENERATE_MODELS": MODEL,
        "FOVEA_GENERATE_MAX_CACHED_TOKENS": str(CONTEXT),
        "FOVEA_GENERATE_MAX_TOKENS": str(CONTEXT),
        "FOVEA_REQUEST_TIMEOUT_S": "600",  # for the last of many on a slow machine
    }
    with running_system(folder, **settings) as system:
        yield system


def asked(example: Example, **fields: Any) -> dict[str, Any]:
    documents = [
        {"id": f"d{index}", "title": document.title, "text": document.text}
        for index, document in enumerate(example.documents)
    ]
    return {"query": example.question, "documents": documents, "max_tokens": 12, **fields}


def posted(url: str, body: dict[str, Any]) -> Answer:
    return curl(f"{url}/generate", "--header", "content-type: application/json", "--data", json.dumps(body))


def events_of(text: str) -> list[Any]:
    """The data of a stream's events, which ends as it must."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(events: list[Any]) -> str:
    return "".join(event["delta"] for event in events[:-1])


# --- by curl ---


@pytest.mark.parametrize("fields", [{"reorder": "attention"}, {"calibration": CALIBRATED}, {"calibration": PLAIN}])
def test_curl_gets_one_answer_from_service_and_gateway_whole_and_streamed(system: System, fields: Any) -> None:
    answers = []
    for url in (system.service.url, system.gateway.url, f"{system.gateway.url}/v1"):
        whole = posted(url, asked(QUESTIONS[0], **fields))
        assert whole.status == 200, whole.content
        body = whole.json
        assert next(iter(body)) == "answer"
        assert set(body) == FIELDS
        assert body["object"] == "fovea.generation"
        assert body["model"].startswith(f"{MODEL}@")
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens", "calibration_passes"}
        assert [(one["id"], one["index"]) for one in body["documents"]] == [(f"d{k}", k) for k in range(10)]
        assert sorted(one["position"] for one in body["documents"]) == list(range(10))
        if "calibration" in fields:
            is_calibrated = fields["calibration"]["enabled"]
            assert {one["relevance"] is not None for one in body["documents"]} == {is_calibrated}

        streamed = posted(url, asked(QUESTIONS[0], stream=True, **fields))
        assert streamed.status == 200
        *deltas, last = events_of(streamed.content.decode())
        assert all(set(delta) == {"delta"} for delta in deltas)
        assert set(last) == set(body) - {"answer"}
        assert text_of([*deltas, last]) == body["answer"]
        answers.append((body["answer"], body["finish_reason"], last["finish_reason"]))
    assert len(set(answers)) == 1


def test_curl_is_told_which_field_is_refused(system: System) -> None:
    refusals: list[tuple[dict[str, Any], int, str]] = [
        ({"query": None}, 422, "query"),
        ({"documents": ["a", "b", "c", {"text": 5}]}, 422, "documents.3.text"),
        ({"calibration": {"bias": "guessed"}}, 422, "calibration.bias"),
        ({"calibration": {"layers": [99]}}, 422, "calibration.layers"),
        ({"reorder": "best"}, 422, "reorder"),
        ({"temperature": 3}, 422, "temperature"),
        ({"documents": ["text"] * 300}, 413, "documents"),
        ({"documents": ["amber flute " * 6000]}, 413, "documents"),
        ({"max_tokens": CONTEXT + 1}, 413, "max_tokens"),
        ({"model": "other"}, 404, "model"),
    ]
    for changes, status, param in refusals:
        for url in (system.service.url, system.gateway.url):
            refused = posted(url, {**asked(QUESTIONS[0]), "stream": True, **changes})
            assert refused.status == status, (changes, refused.content)
            assert set(refused.json["error"]) == {"message", "type", "param", "code"}
            assert refused.json["error"]["param"] == param


def test_an_answer_begins_with_its_first_word_and_a_continuation_with_its_space(system: System) -> None:
    with openai.OpenAI(base_url=f"{system.gateway.url}/v1", api_key="none", max_retries=0) as client:
        chat: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTIONS[0].question}],
            "extra_body": {"documents": asked(QUESTIONS[0])["documents"]},
            "max_tokens": 12,
            "temperature": 0,
            "logprobs": True,
        }
        (whole,) = client.chat.completions.create(**chat).choices
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**chat, stream=True)]
        prompt = f"Question: {QUESTIONS[0].question}\nAnswer:"
        (continued,) = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0).choices

    answer = posted(system.gateway.url, asked(QUESTIONS[0])).json["answer"]
    assert answer == answer.lstrip() == whole.message.content
    assert "".join(chunk.delta.content or "" for chunk in chunks) == answer
    assert whole.logprobs is not None
    assert whole.logprobs.content is not None
    tokens = whole.logprobs.content
    assert "".join(token.token for token in tokens) == f" {answer}", "a token is told as the model wrote it"
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content or []]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    assert continued.text.startswith(" ")


# --- many at once ---


def test_two_hundred_streams_at_once_each_end_with_the_answer_that_they_get_alone(system: System) -> None:
    bodies = [asked(example, calibration=CALIBRATED if index % 2 else PLAIN) for index, example in enumerate(QUESTIONS)]

    async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> list[Any]:
        response = await client.post(f"{system.gateway.url}/generate", json={**body, "stream": True})
        assert response.status_code == 200, response.text
        return events_of(response.text)

    async def all_at_once() -> list[list[Any]]:
        async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=NUM_STREAMS)) as client:
            return await asyncio.gather(*(stream(client, body) for body in bodies))

    streams = asyncio.run(all_at_once())
    with requests.Session() as session:
        for body, events in zip(bodies, streams, strict=True):
            alone = session.post(f"{system.service.url}/generate", json=body, timeout=30).json()
            assert text_of(events) == alone["answer"]
            last = events[-1]
            assert last["finish_reason"] == alone["finish_reason"] in ("stop", "length")
            assert last["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
            for one, expected in zip(last["documents"], alone["documents"], strict=True):
                assert (one["id"], one["position"]) == (expected["id"], expected["position"])
                assert one["attention"] == pytest.approx(expected["attention"], rel=1e-3)
                assert (one["relevance"] is None) == (expected["relevance"] is None)
                assert (one["relevance"] or 0.0) == pytest.approx(expected["relevance"] or 0.0, rel=1e-3, abs=1e-6)
    # answers that differ, and are right often enough to be answers
    assert len({text_of(events) for events in streams}) > NUM_STREAMS / 2
    right = [
        best_subspan_em(text_of(events), example.answers) for events, example in zip(streams, QUESTIONS, strict=True)
    ]
    assert sum(right) > NUM_STREAMS / 2


def test_an_answer_among_sixteen_is_the_answer_alone_to_its_probabilities(system: System) -> None:
    def body(example: Example) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": example.question}],
            "documents": asked(example)["documents"],
            "calibration": CALIBRATED,
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
        }

    async def all_at_once() -> list[Any]:
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{system.gateway.url}/v1/chat/completions"
            return await asyncio.gather(*(client.post(url, json=body(example)) for example in QUESTIONS[:16]))

    for example, response in zip(QUESTIONS, asyncio.run(all_at_once()), strict=False):
        alone = requests.post(f"{system.service.url}/v1/chat/completions", json=body(example), timeout=30).json()
        (choice,), (expected,) = response.json()["choices"], alone["choices"]
        assert choice["message"] == expected["message"]
        tokens, expected_tokens = choice["logprobs"]["content"], expected["logprobs"]["content"]
        assert [token["token"] for token in tokens] == [token["token"] for token in expected_tokens]
        assert [token["logprob"] for token in tokens] == pytest.approx(
            [token["logprob"] for token in expected_tokens], abs=1e-3
        )


# --- nobody waits any more ---


def long_prompt(word: str) -> str:
    return " ".join([word] * NUM_WORDS)


def begin_long(system: System) -> "subprocess.Popen[bytes]":
    """curl in the middle of a stream that leaves no room for any other answer."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    prompt = long_prompt("question")
    body = {"prompt": prompt, "max_tokens": LONG, "temperature": 0, "ignore_eos": True, "stream": True}
    reader = subprocess.Popen(
        ["curl", "--silent", "--no-buffer", "--json", json.dumps(body), f"{system.gateway.url}/v1/completions"],
        stdout=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline().startswith(b"data: {")
    return reader


def test_a_client_that_leaves_in_mid_stream_makes_room_for_the_next_at_once(system: System) -> None:
    made = system.metric("fovea_generated_tokens_total")
    left = system.metric('fovea_cancelled_total{reason="disconnect"}')
    with begin_long(system) as reader:
        reader.kill()
    answer = requests.post(f"{system.gateway.url}/generate", json=asked(QUESTIONS[0]), timeout=60)

    assert answer.status_code == 200, answer.text
    assert system.metric('fovea_cancelled_total{reason="disconnect"}') == left + 1
    assert system.metric("fovea_running_items") == 0
    assert system.metric("fovea_generated_tokens_total") - made < LONG  # it was not written to its end


def test_a_task_that_is_cancelled_frees_its_place_running_or_waiting(system: System) -> None:
    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=f"{system.gateway.url}/v1", api_key="none", max_retries=0) as client:
            running, waiting = (
                asyncio.create_task(
                    client.completions.create(
                        model=MODEL, prompt=prompt, max_tokens=LONG, temperature=0, extra_body={"ignore_eos": True}
                    )
                )
                for prompt in (long_prompt("question"), long_prompt("answer"))
            )
            await asyncio.to_thread(
                wait_until,
                lambda: (system.metric("fovea_running_items"), system.metric("fovea_queue_depth")) == (1, 1),
            )
            for task in (waiting, running):
                task.cancel()
            results = await asyncio.gather(waiting, running, return_exceptions=True)
            assert [type(result) for result in results] == [asyncio.CancelledError] * 2

    made = system.metric("fovea_generated_tokens_total")
    asyncio.run(leave())
    wait_until(lambda: (system.metric("fovea_running_items"), system.metric("fovea_queue_depth")) == (0, 0))

    assert system.metric("fovea_generated_tokens_total") - made < LONG
