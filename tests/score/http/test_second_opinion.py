"""`vqa_top_k`: a vision-language model is asked about the best captions, and may misbehave."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from services.score.settings import ScoreSettings
from tests.score.evaluation.endpoint.chat_server import ChatServer, error
from tests.score.served_tiny import publish_tiny, served_tiny

CAPTIONS = ["a red circle", "a blue square", "a green star", "a red circle"]
# How sure the model is of each caption.
SURE = {"a red circle": 0.25, "a blue square": 0.875, "a green star": 0.5}


def says(body: dict[str, Any]) -> dict[str, float]:
    asked = body["messages"][0]["content"][1]["text"].split('"')[1]
    return {"Yes": math.log(SURE[asked]), "No": math.log(1 - SURE[asked])}


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return publish_tiny(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def judge() -> Iterator[ChatServer]:
    with ChatServer(first_token=says).served() as judge:
        yield judge


@pytest.fixture(scope="module")
def client(store_url: str, judge: ChatServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings: dict[str, Any] = {"vqa_url": judge.url, "vqa_model": "sees-all", "vqa_image_side": 40}
    with served_tiny(store_url, tmp_path_factory.mktemp("cache"), max_vqa_captions=8, **settings) as client:
        yield client


@pytest.fixture(autouse=True)
def forget(judge: ChatServer) -> None:
    judge.bodies.clear()
    judge.faults.clear()
    judge.first_token = says


def picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(256, size=(50, 80, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def post(client: TestClient, **query: Any) -> Any:
    parts: list[Any] = [("file", ("image.png", picture())), *(("captions", (None, caption)) for caption in CAPTIONS)]
    return client.post("/score", files=parts, params=query)


def test_all_captions_get_the_models_probability_of_yes_and_its_choice_is_the_best(
    client: TestClient, judge: ChatServer
) -> None:
    answer = post(client, vqa_top_k=8)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [one["vqa"] for one in body["scores"]] == pytest.approx([SURE[caption] for caption in CAPTIONS])
    assert (body["best"], body["vqa_model"]) == (1, "sees-all")
    # equal captions are asked about once, with the image in the size that was set
    assert len(judge.bodies) == 3 and {one["model"] for one in judge.bodies} == {"sees-all"}
    assert "vqa;dur=" in answer.headers["server-timing"]


def test_only_the_captions_of_the_highest_scores_are_asked_about(client: TestClient, judge: ChatServer) -> None:
    plain = post(client).json()
    body = post(client, vqa_top_k=1).json()
    assert [one["vqa"] is not None for one in body["scores"]].index(True) == plain["best"] == body["best"]
    assert len(judge.bodies) == 1
    assert [one["score"] for one in body["scores"]] == [one["score"] for one in plain["scores"]]
    assert "vqa" not in plain["scores"][0] and "vqa_model" not in plain


def test_a_model_that_answers_neither_yes_nor_no_gives_no_opinion(client: TestClient, judge: ChatServer) -> None:
    judge.first_token = lambda _: {"The": -0.1, "This": -3.0}
    plain, body = post(client).json(), post(client, vqa_top_k=8).json()
    assert {one["vqa"] for one in body["scores"]} == {None} and body["best"] == plain["best"]


def test_a_refused_question_is_null_and_the_others_are_answered(client: TestClient, judge: ChatServer) -> None:
    judge.faults.append(error(400, "The content filter has rejected this image."))
    vqa = [one["vqa"] for one in post(client, vqa_top_k=8).json()["scores"]]
    assert None in vqa and any(vqa)


def test_a_model_without_log_probabilities_is_a_503_that_says_so(client: TestClient, judge: ChatServer) -> None:
    judge.first_token = None
    answer = post(client, vqa_top_k=2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "vqa_failed")
    assert "log-probabilities" in answer.json()["error"]["message"] and "retry-after" in answer.headers


def test_a_model_that_does_not_answer_is_a_503_without_its_address(store_url: str, tmp_path: Path) -> None:
    with served_tiny(store_url, tmp_path, vqa_url="http://127.0.0.1:9/v1", vqa_model="away") as client:
        answer, plain = post(client, vqa_top_k=2), post(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "vqa_failed")
    assert "127.0.0.1" not in answer.text and plain.status_code == 200


def test_the_field_is_taken_from_json_a_form_and_the_url(client: TestClient) -> None:
    fields = {"captions": CAPTIONS[0], "vqa_top_k": "1"}
    form = client.post("/score", files={"file": ("image.png", picture())}, data=fields)
    bare = client.post("/score", content=picture(), headers={"content-type": "image/png"}, params=fields)
    assert form.json()["scores"] == bare.json()["scores"] and form.json()["scores"][0]["vqa"] == pytest.approx(0.25)


@pytest.mark.parametrize(("top_k", "status"), [(0, 422), (-1, 422), ("two", 422), (9, 413)])
def test_an_impossible_number_is_named(client: TestClient, top_k: Any, status: int) -> None:
    answer = post(client, vqa_top_k=top_k)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, "vqa_top_k")


def test_vllms_format_has_no_second_opinion(client: TestClient) -> None:
    body = {"data_1": "a red circle", "data_2": "a blue square"}
    answer = client.post("/score", json=body, params={"vqa_top_k": 1})
    assert answer.status_code == 422


def test_without_a_model_the_field_is_refused_with_the_way_out(store_url: str, tmp_path: Path) -> None:
    with served_tiny(store_url, tmp_path) as client:
        told = post(client, vqa_top_k=1).json()["error"]
        (model,) = client.get("/v1/models").json()["data"]
    assert told["param"] == "vqa_top_k" and "Set FOVEA_SCORE_VQA_URL and FOVEA_SCORE_VQA_MODEL" in told["message"]
    assert model["vqa_model"] is None


def test_models_names_the_model_and_the_limit(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["vqa_model"], model["limits"]["max_vqa_captions"]) == ("sees-all", 8)


def test_the_settings_name_address_and_model_together_and_hide_the_key() -> None:
    with pytest.raises(ValueError, match="FOVEA_SCORE_VQA_URL and FOVEA_SCORE_VQA_MODEL belong together"):
        ScoreSettings(vqa_model="sees-all")
    assert "sk-secret" not in repr(ScoreSettings(vqa_key="sk-secret"))
