"""Predictions as the clients that people really use get them, through the gateway."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import requests

from services.nn.devices import DeviceOptions
from services.predict.model.student import held_bytes
from services.predict.tasks import ESNLI
from tests.contract.curl import curl
from tests.contract.predict_processes import running_predict
from tests.contract.served_system import System, wait_until
from tests.predict.served_tiny import PAIR, PROBLEM, QUESTION, save_task

LABELS = {"entailment", "neutral", "contradiction"}
ASKED = {"esnli": PAIR, "cqa": QUESTION, "svamp": PROBLEM, "reviews": {"text": "what a film"}}


@pytest.fixture
def client(predict_system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{predict_system.gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_curl_asks_for_a_label_with_its_reasons(predict_system: System) -> None:
    body = (
        '{"task": "esnli", "rationale": true, "probabilities": true, "inputs": [{"premise": "A man is walking a dog.",'
        ' "hypothesis": "A person is outside."}]}'
    )
    answer = curl(f"{predict_system.gateway.url}/predict", "-H", "Content-Type: application/json", "-d", body)
    assert answer.status == 200
    [prediction] = answer.json["predictions"]
    assert prediction["label"] in LABELS
    assert set(prediction["probabilities"]) == LABELS
    assert isinstance(prediction["rationale"], str)
    assert answer.json["usage"]["total_tokens"] > 0


def test_curl_lists_the_tasks(predict_system: System) -> None:
    answer = curl(f"{predict_system.gateway.url}/tasks")
    assert [one["id"] for one in answer.json["data"]] == ["esnli", "cqa", "svamp", "reviews"]


@pytest.mark.parametrize("path", ["/tasks", "/v1/tasks", "/v1/models/tiny-cqa"])
def test_the_gateway_passes_on_what_the_service_answers(predict_system: System, path: str) -> None:
    first, second = (
        requests.get(f"{process.url}{path}", timeout=30) for process in (predict_system.service, predict_system.gateway)
    )
    assert first.json() == second.json()


def test_the_gateway_lists_the_models_and_documents_the_routes(predict_system: System, client: openai.OpenAI) -> None:
    assert {one.id for one in client.models.list()} >= {"tiny-esnli", "tiny-cqa", "tiny-svamp", "tiny-reviews"}
    assert client.models.retrieve("tiny-esnli").owned_by == "fovea"
    document = requests.get(f"{predict_system.gateway.url}/openapi.json", timeout=30).json()
    assert {"/predict", "/tasks"} <= document["paths"].keys()


# --- openai ---


def test_openais_client_raises_its_own_errors_with_our_fields(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        return client.post("/predict", body={"task": "esnli", "inputs": [PAIR], **fields}, cast_to=httpx.Response)

    assert ask().json()["predictions"][0]["label"] in LABELS
    with pytest.raises(openai.NotFoundError) as missing:
        ask(task="translation")
    assert (missing.value.param, missing.value.code) == ("task", "task_not_found")
    assert missing.value.type == "not_found_error"
    with pytest.raises(openai.UnprocessableEntityError) as wrong:
        ask(inputs=[PAIR, {"premise": "x"}])
    assert wrong.value.param == "inputs.1.hypothesis"
    assert wrong.value.request_id
    with pytest.raises(openai.APIStatusError) as large:
        ask(inputs=[PAIR] * 2049)
    assert large.value.status_code == 413
    assert "2049" in large.value.message
    assert "2048" in large.value.message


def test_the_clients_own_timeout_is_the_deadline(predict_system: System, client: openai.OpenAI) -> None:
    inputs = [{"text": f"word {number} " * 10} for number in range(2048)]
    ends = ['fovea_cancelled_total{reason="deadline"}', 'fovea_cancelled_total{reason="disconnect"}']
    before = sum(map(predict_system.metric, ends))
    body = {"task": "reviews", "inputs": inputs}
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(client.with_options(timeout=5).post, "/predict", body=body, cast_to=httpx.Response)
        # on a busy machine the time is over before the queue is seen
        wait_until(lambda: predict_system.metric("fovea_queue_depth") > 0 or asked.done())
        with predict_system.standing_still(), pytest.raises((openai.APITimeoutError, openai.APIStatusError)):
            asked.result()
    wait_until(lambda: sum(map(predict_system.metric, ends)) > before)
    wait_until(lambda: predict_system.metric("fovea_queue_depth") == 0)


# --- text-embeddings-inference ---


def test_the_hubs_client_classifies_a_text(predict_system: System) -> None:
    from huggingface_hub import InferenceClient

    direct = requests.post(f"{predict_system.service.url}/predict", json={"inputs": "what a film"}, timeout=30).json()
    client = InferenceClient(model=f"{predict_system.gateway.url}/predict", timeout=30)
    best: Any = client.text_classification("what a film")
    # of TEI's flat answer to one text the client keeps the first entry, which is the best label
    assert (best.label, best.score) == (direct[0]["label"], direct[0]["score"])


def test_teis_requests_are_answered_and_refused_in_its_form(predict_system: System) -> None:
    url = f"{predict_system.gateway.url}/predict"
    pair = requests.post(url, json={"inputs": ["A man walks.", "A man moves."]}, timeout=30)
    assert {one["label"] for one in pair.json()} == LABELS
    assert [one["score"] for one in pair.json()] == sorted((one["score"] for one in pair.json()), reverse=True)
    batch = requests.post(url, json={"inputs": [["good"], ["bad"]], "raw_scores": True}, timeout=30)
    assert [len(some) for some in batch.json()] == [2, 2]
    refused = requests.post(url, json={"inputs": ["a", "b", "c"]}, timeout=30)
    assert (refused.status_code, set(refused.json())) == (422, {"error", "error_type"})


# --- under load ---


def test_two_thousand_and_forty_eight_inputs_leave_room_for_small_requests(predict_system: System) -> None:
    inputs = [{"text": f"word {number}"} for number in range(2048)]

    async def at_once() -> tuple[Any, list[float], list[Any]]:
        async with httpx.AsyncClient(base_url=predict_system.gateway.url, timeout=120) as client:
            large = asyncio.create_task(client.post("/predict", json={"task": "reviews", "inputs": inputs}))
            seconds, small = [], []
            while not large.done():
                began = time.perf_counter()
                small.append(await client.post("/predict", json={"task": "esnli", "inputs": [PAIR]}))
                seconds.append(time.perf_counter() - began)
            return (await large).json(), seconds, small

    answer, seconds, small = asyncio.run(at_once())
    assert [one["index"] for one in answer["predictions"]] == list(range(2048))
    assert {response.status_code for response in small} == {200}
    assert len(seconds) > 3, "small requests are answered while the large one is"


def test_who_hangs_up_leaves_nothing_in_the_queue(predict_system: System) -> None:
    inputs = [{"text": f"word {number} " * 10} for number in range(2048)]
    num_batches = predict_system.hang_up_in_the_middle_of("/predict", {"task": "reviews", "inputs": inputs})
    assert num_batches < 2048 / 64
    assert predict_system.metric("fovea_queue_depth") == 0


def test_requests_of_all_tasks_at_once_get_what_they_get_alone(predict_system: System) -> None:
    def body(number: int) -> dict[str, Any]:
        task = list(ASKED)[number % 4]
        return {"task": task, "inputs": [ASKED[task]], "rationale": number % 3 == 0 and task in ("esnli", "cqa")}

    async def all_at_once() -> list[Any]:
        async with httpx.AsyncClient(base_url=predict_system.gateway.url, timeout=120) as client:
            return await asyncio.gather(*(client.post("/predict", json=body(number)) for number in range(96)))

    answers = [response.json() for response in asyncio.run(all_at_once())]
    for number in range(12):
        alone = requests.post(f"{predict_system.service.url}/predict", json=body(number), timeout=30).json()
        for answer in answers[number::12]:
            assert answer["model"] == alone["model"]
            for one, expected in zip(answer["predictions"], alone["predictions"], strict=True):
                assert (one["label"], one["rationale"]) == (expected["label"], expected["rationale"])
                assert one["probability"] == pytest.approx(expected["probability"], rel=1e-3)


def test_tasks_that_have_room_for_one_only_are_answered_together(tmp_path: Path) -> None:
    budget = held_bytes(save_task(tmp_path / "one", ESNLI), DeviceOptions(device="cpu"))

    async def all_at_once(system: System) -> list[Any]:
        bodies = [{"task": task, "inputs": [one]} for _ in range(6) for task, one in ASKED.items()]
        sent = 'fovea_gateway_inflight_requests{service="predict"}'
        async with httpx.AsyncClient(base_url=system.gateway.url, timeout=120) as client:
            with system.standing_still():  # so that all are there before the first is answered
                asked = [asyncio.create_task(client.post("/predict", json=body)) for body in bodies]
                await asyncio.to_thread(wait_until, lambda: system.metric(sent, of=system.gateway) == len(bodies))
            return await asyncio.gather(*asked)

    # for the last who waits for a model on a slow machine
    limits = {"FOVEA_PREDICT_MEMORY_BYTES": str(budget), "FOVEA_REQUEST_TIMEOUT_S": "600"}
    with running_predict(tmp_path, **limits) as system:
        answers = asyncio.run(all_at_once(system))
        assert {response.status_code for response in answers} == {200}
        assert [response.json()["task"] for response in answers] == [task for _ in range(6) for task in ASKED]
        loads = sum(system.metric(f'fovea_model_loads_total{{name="tiny-{task}"}}') for task in ASKED)
        # each at the start, and three of them at least once again; those who wait for a model share a load
        assert 7 <= loads <= 12
        held = [system.metric(f'fovea_model_resident_bytes{{name="tiny-{task}"}}') for task in ASKED]
        assert sum(held) == budget
