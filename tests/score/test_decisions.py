"""`/v1/decisions` of the score service: decisions about images, whose options are captions."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.http.decisions import concentration
from tests.core.image_files import encode, scene
from tests.published_clips import write_siglip
from tests.score.served_tiny import MODEL, publish_tiny, served_tiny
from tests.score.test_plain_clip import client_of
from tests.score.tiny import CONTEXT_LENGTH

CAPTIONS = ["a red square left of a blue circle", "a blue square left of a red circle", "a dog"]
URI = "data:image/png;base64," + base64.b64encode(encode(scene(), "PNG")).decode()
IMAGE = {"type": "input_image", "image_url": URI}
INPUT = [{"role": "user", "content": [IMAGE]}]
CHOICE = {"type": "choice", "instructions": "What is it?", "choices": [{"value": one} for one in CAPTIONS]}
PREDICATE = {"type": "predicate", "instructions": "a dog"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("score-decisions")
    with served_tiny(publish_tiny(folder), folder, max_body_bytes=2**20, max_captions=20) as client:
        yield client


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("siglip-decisions")
    yield from client_of(write_siglip(folder / "source"), folder)


def ask(client: TestClient, given: Any, *questions: Any, **fields: Any) -> Any:
    (model,) = client.get("/v1/models").json()["data"]
    return client.post("/v1/decisions", json={"model": model["id"], "input": given, "questions": questions, **fields})


def scored(client: TestClient, captions: list[str]) -> list[dict[str, Any]]:
    """The service's own scores of the same captions."""
    scores: list[dict[str, Any]] = client.post("/score", json={"image": URI, "captions": captions}).json()["scores"]
    return scores


def shares_of(answer: dict[str, Any]) -> list[float]:
    return [one["probability"] for one in answer["probabilities"]]


def test_captions_are_decided_about_without_documents(client: TestClient) -> None:
    refused = ask(client, INPUT, CHOICE, documents=["a dog"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "documents")
    assert "Only language models of generate decide over documents" in refused.json()["error"]["message"]


def test_the_options_of_a_choice_are_captions_of_the_image(client: TestClient) -> None:
    response = ask(client, INPUT, CHOICE)
    assert response.status_code == 200, response.text
    (answer,) = response.json()["answers"]
    own = [one["probability"] for one in scored(client, CAPTIONS)]
    assert shares_of(answer) == pytest.approx(own, abs=1e-6)
    assert sum(shares_of(answer)) == pytest.approx(1)
    assert answer["choice"] == CAPTIONS[own.index(max(own))]
    assert answer["confidence"] == pytest.approx(concentration(own), abs=1e-5)
    assert response.json()["model"] == response.headers["x-fovea-model"]
    assert response.json()["model"].startswith(f"{MODEL}@")
    assert response.json()["usage"]["input_tokens"] > 0


def test_each_question_has_its_own_captions_and_a_description_is_one(client: TestClient) -> None:
    pair = {
        "type": "choice",
        "name": "is it",
        "instructions": "Is it a dog?",
        "choices": [{"value": True, "description": CAPTIONS[2]}, {"value": False, "description": CAPTIONS[0]}],
    }
    levels = [{"label": "low", "description": CAPTIONS[0]}, {"label": CAPTIONS[1]}, {"label": CAPTIONS[2]}]
    response = ask(client, INPUT, pair, {"type": "score", "instructions": "How much?", "levels": levels})
    choice, score = response.json()["answers"]
    assert [one["value"] for one in choice["probabilities"]] == [True, False]
    own = [one["probability"] for one in scored(client, [CAPTIONS[2], CAPTIONS[0]])]
    assert shares_of(choice) == pytest.approx(own, abs=1e-6)
    every = [one["probability"] for one in scored(client, CAPTIONS)]
    assert shares_of(score) == pytest.approx(every, abs=1e-6)
    assert score["score"] == pytest.approx(every[1] + 2 * every[2], abs=1e-5)
    assert [one["label"] for one in score["probabilities"]] == ["low", *CAPTIONS[1:]]


def test_a_predicate_is_a_caption_whose_probability_a_sigmoid_gives(siglip: TestClient) -> None:
    by_text, choice = ask(siglip, INPUT, PREDICATE, CHOICE).json()["answers"]
    own = scored(siglip, CAPTIONS)
    assert by_text["probability"] == pytest.approx(own[2]["match"], rel=1e-4)
    assert shares_of(choice) == pytest.approx([one["probability"] for one in own], abs=1e-5)


TEXT = {"type": "input_text", "text": "What is it?"}


@pytest.mark.parametrize(
    ("given", "questions", "status", "param", "said"),
    [
        ("a dog", [CHOICE], 422, "input", "reads an image"),
        ([{"role": "user", "content": "a dog"}], [CHOICE], 422, "input.0.content", "reads an image"),
        ([{"role": "user", "content": [IMAGE, TEXT]}], [CHOICE], 422, "input.0.content.1", "no text"),
        ([{"role": "user", "content": []}], [CHOICE], 422, "input", "it has 0"),
        ([{"role": "user", "content": [IMAGE, IMAGE]}], [CHOICE], 422, "input.0.content.1", "it has 2"),
        ([{"role": "system", "content": "Look."}, *INPUT], [CHOICE], 422, "input.0", "role user"),
        (INPUT, [CHOICE, PREDICATE], 422, "questions.1", "ask a choice"),
        (
            INPUT,
            [{**CHOICE, "choices": [{"value": "a dog"}, {"value": True}]}],
            422,
            "questions.0.choices.1",
            "description",
        ),
        (INPUT, [{**CHOICE, "choices": [{"value": "a"}, {"value": " "}]}], 422, "questions.0.choices.1", "empty"),
        (
            INPUT,
            [{**CHOICE, "choices": [{"value": "a"}, {"value": "red " * CONTEXT_LENGTH}]}],
            413,
            "questions.0.choices.1",
            "tokens",
        ),
        (INPUT, [CHOICE] * 7, 413, "questions", "21 captions; the limit is 20"),
        (
            [{"role": "user", "content": [{**IMAGE, "image_url": "https://127.0.0.1/x.png"}]}],
            [CHOICE],
            400,
            "input.0.content.0.image_url",
            "FOVEA_SCORE_IMAGE_URLS",
        ),
        (
            [{"role": "user", "content": [{**IMAGE, "image_url": "data:image/png;base64,AAAA"}]}],
            [CHOICE],
            400,
            "input.0.content.0.image_url",
            "",
        ),
    ],
)
def test_what_the_model_can_not_see_or_know_is_refused_by_its_place(
    client: TestClient, given: Any, questions: Any, status: int, param: str, said: str
) -> None:
    response = ask(client, given, *questions)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), response.text
    assert said in error["message"]
