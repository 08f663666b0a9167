"""Scores and hard negatives as the clients that people really use get them, through the gateway."""

import asyncio
import base64
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import requests

from tests.contract.curl import curl
from tests.contract.score_processes import running_score
from tests.contract.served_system import System, wait_until
from tests.core.image_files import encode, scene
from tests.score.tiny import CONTEXT_LENGTH

CAPTIONS = ["a red square left of a blue circle", "a blue square left of a red circle", "a dog"]
CAPTION = "A small red circle is left of two blue squares."
PHOTO = encode(scene(), "JPEG")
URI = f"data:image/jpeg;base64,{base64.b64encode(PHOTO).decode()}"
TOO_LONG = "red " * CONTEXT_LENGTH


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_score(tmp_path_factory.mktemp("score")) as system:
        yield system


@pytest.fixture
def client(system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{system.gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(PHOTO)
    return path


# --- curl ---


def test_curl_scores_captions_of_a_photo_in_every_form(system: System, photo: Path) -> None:
    url = f"{system.gateway.url}/score"
    parts = [argument for caption in CAPTIONS for argument in ("-F", f"captions={caption}")]
    query = "&".join(f"captions={caption.replace(' ', '+')}" for caption in CAPTIONS)
    answers = [
        curl(url, "-F", f"file=@{photo}", *parts),
        curl(url, "--json", json.dumps({"image": URI, "captions": CAPTIONS})),
        curl(f"{url}?{query}", "-H", "Content-Type: image/jpeg", "--data-binary", f"@{photo}"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200]
    first, *others = (answer.json for answer in answers)
    assert all(other == first for other in others)
    assert [one["caption"] for one in first["scores"]] == CAPTIONS
    assert first["scores"][first["best"]]["score"] == max(one["score"] for one in first["scores"])


def test_curl_makes_a_caption_false(system: System) -> None:
    answer = curl(f"{system.gateway.url}/hard-negatives", "--json", json.dumps({"caption": CAPTION, "seed": 1}))
    assert answer.status == 200
    assert {one["kind"] for one in answer.json["negatives"]} <= {"negclip", "replace", "bigram_shuffle"}
    assert answer.json["negatives"]


def test_curl_without_a_content_type_is_told_what_to_add(system: System, photo: Path) -> None:
    answer = curl(f"{system.gateway.url}/score?captions=a+dog", "--data-binary", f"@{photo}")
    assert answer.status == 415
    assert "Content-Type: image/jpeg" in answer.json["error"]["message"]


# --- openai ---


def test_openais_client_posts_to_every_route_and_lists_the_model(client: openai.OpenAI) -> None:
    def post(path: str, **body: Any) -> Any:
        return client.post(path, body=body, cast_to=httpx.Response).json()

    scored = post("/score", image=URI, captions=CAPTIONS, explain=True)
    assert len(scored["explain"]) == 3
    assert post("/hard-negatives", caption=CAPTION, kinds=["relation"])["negatives"][0]["kind"] == "relation"
    (model,) = client.models.list().data
    assert scored["model"].startswith(f"{model.id}@")
    assert client.models.retrieve(model.id).created == model.created


def test_openais_client_raises_its_own_errors_with_our_fields(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        body = {"image": URI, "captions": CAPTIONS, **fields}
        return client.post("/score", body=body, cast_to=httpx.Response)

    assert ask().status_code == 200
    with pytest.raises(openai.UnprocessableEntityError) as empty:
        ask(captions=[])
    assert (empty.value.param, empty.value.type) == ("captions", "invalid_request_error")
    with pytest.raises(openai.UnprocessableEntityError) as blank:
        ask(captions=["a", "b", "c", " "])
    assert blank.value.param == "captions.3"
    assert blank.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="clip")
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as broken:
        ask(image=base64.b64encode(b"no image").decode())
    assert broken.value.param == "image"
    for fields, param in (({"captions": ["a"] * 1025}, "captions"), ({"captions": ["a", TOO_LONG]}, "captions.1")):
        with pytest.raises(openai.APIStatusError) as large:
            ask(**fields)
        assert (large.value.status_code, large.value.param) == (413, param)


def test_the_clients_own_timeout_is_the_deadline(system: System, client: openai.OpenAI) -> None:
    ends = ['fovea_cancelled_total{reason="deadline"}', 'fovea_cancelled_total{reason="disconnect"}']
    before = sum(map(system.metric, ends))
    late = (error_of_a_long_wait(system, client, f"late for the {number}. time") for number in range(20))
    error = next((one for one in late if one is not None), None)  # a fast machine answers some before it stands still
    assert isinstance(error, openai.APITimeoutError | openai.APIStatusError)
    wait_until(lambda: sum(map(system.metric, ends)) > before)
    wait_until(lambda: system.metric("fovea_queue_depth") == 0)


def error_of_a_long_wait(system: System, client: openai.OpenAI, caption: str) -> BaseException | None:
    """Ask with a timeout while the service stands still, once the request waits; None if it was answered before."""
    body = {"image": URI, "captions": [f"{caption}, number {number}" for number in range(1024)]}
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(client.with_options(timeout=5).post, "/score", body=body, cast_to=httpx.Response)
        wait_until(lambda: system.metric("fovea_queue_depth") > 0 or asked.done())
        with system.standing_still():
            return asked.exception()


# --- vLLM ---


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_a_request_as_vllms_own_examples_write_it_is_answered_as_vllm_does(system: System, path: str) -> None:
    part = {"type": "image_url", "image_url": {"url": URI}}
    body = {"model": "tiny", "text_1": "a red square left of a blue circle", "text_2": {"content": [part, part]}}
    response = requests.post(
        f"{system.gateway.url}{path}", headers={"User-Agent": "Test Client"}, json=body, timeout=30
    )
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["id"].startswith("score-")
    assert [(one["index"], one["object"]) for one in answer["data"]] == [(0, "score"), (1, "score")]
    direct = {"image": URI, "captions": ["a red square left of a blue circle"]}
    score = requests.post(f"{system.service.url}/score", json=direct, timeout=30).json()["scores"][0]["score"]
    assert [one["score"] for one in answer["data"]] == pytest.approx([score, score], abs=1e-6)


def test_two_texts_are_refused_saying_what_is_missing(system: System) -> None:
    body = {"data_1": "a dog", "data_2": ["a cat", "a bird"]}
    response = requests.post(f"{system.gateway.url}/v1/score", json=body, timeout=30)
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "data_2.0"
    assert "two texts" in response.json()["error"]["message"]


# --- the gateway ---


@pytest.mark.parametrize("path", ["/v1/models/tiny", "/v1/models"])
def test_the_gateway_passes_on_what_the_service_answers(system: System, path: str) -> None:
    first, second = (requests.get(f"{one.url}{path}", timeout=30) for one in (system.service, system.gateway))
    assert first.json() == second.json()


def test_the_gateway_documents_the_routes(system: System) -> None:
    document = requests.get(f"{system.gateway.url}/openapi.json", timeout=30).json()
    assert {"/score", "/hard-negatives"} <= set(document["paths"])


def test_what_the_checkpoint_and_the_caption_are_made_of_is_told(system: System) -> None:
    (model,) = requests.get(f"{system.gateway.url}/v1/models", timeout=30).json()["data"]
    assert 0 <= model["local_weight"] <= 1
    assert set(model["hard_negatives"]["sources"]) == {"tagger", "wordnet"}


# --- under load ---


def test_many_requests_at_once_get_what_they_get_alone(system: System) -> None:
    photos = [base64.b64encode(encode(scene((20 + number, 30)), "PNG")).decode() for number in range(8)]

    def body(number: int) -> dict[str, Any]:
        captions = [CAPTIONS[number % 3], f"a caption of request {number % 12}", CAPTIONS[(number + 1) % 3]]
        return {"image": photos[number % 8], "captions": captions, "explain": number % 5 == 0}

    async def all_at_once() -> list[Any]:
        async with httpx.AsyncClient(base_url=system.gateway.url, timeout=120) as client:
            return await asyncio.gather(*(client.post("/score", json=body(number)) for number in range(96)))

    answers = [response.json() for response in asyncio.run(all_at_once())]
    for number, answer in enumerate(answers):
        alone = requests.post(f"{system.service.url}/score", json=body(number), timeout=30).json()
        assert (answer["explain"] is None) == (alone["explain"] is None)
        for one, expected in zip(answer["scores"], alone["scores"], strict=True):
            assert one["caption"] == expected["caption"]
            assert one["score"] == pytest.approx(expected["score"], abs=1e-5)


def test_large_requests_leave_room_for_small_ones(system: System) -> None:
    small = {"image": URI, "captions": CAPTIONS}
    large = {"image": URI, "captions": [f"a caption of many, number {number}" for number in range(1024)]}
    bodies = {"large": large, **{f"small-{number}": small for number in range(4)}}
    under_way = 'fovea_gateway_inflight_requests{service="score"}'

    async def one_after_the_other() -> list[httpx.Response]:
        asked: list[asyncio.Task[httpx.Response]] = []
        async with httpx.AsyncClient(base_url=system.gateway.url, timeout=120) as client:
            with system.standing_still():  # so that all have come before one is answered
                for name, body in bodies.items():
                    asked.append(asyncio.create_task(client.post("/score", json=body, headers={"x-request-id": name})))
                    await asyncio.to_thread(
                        wait_until, lambda: system.metric(under_way, of=system.gateway) == len(asked)
                    )
            return await asyncio.gather(*asked)

    answer, *others = asyncio.run(one_after_the_other())
    assert {response.status_code for response in others} == {200}
    assert [one["index"] for one in answer.json()["scores"]] == list(range(1024))
    wait_until(lambda: len(answered_in_order(system, bodies)) == len(bodies))
    assert answered_in_order(system, bodies)[-1] == "large"


def answered_in_order(system: System, names: Iterable[str]) -> list[str]:
    """Return the named requests that the service has answered, in the order of its answers."""
    lines = [json.loads(line) for line in system.service.log.read_text().splitlines()]
    return [line["request_id"] for line in lines if line.get("request_id") in names]


def test_who_hangs_up_leaves_nothing_in_the_queue(system: System) -> None:
    captions = [f"a caption that nobody waits for, number {number}" for number in range(1024)]
    system.hang_up_in_the_middle_of("/score", {"image": URI, "captions": captions})
    assert system.metric("fovea_queue_depth") == 0
