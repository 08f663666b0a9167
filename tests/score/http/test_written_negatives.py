"""`POST /hard-negatives` with the method `llm`, and a teacher that may misbehave."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.score.negatives.prompting.checks import WRITTEN_KINDS, problem_of
from services.score.settings import ScoreSettings
from tests.curate.scripted_model import ScriptedModel
from tests.score.served_tiny import publish_tiny, served_tiny

CAPTIONS = ["a red circle left of a blue square", "two green stars above a yellow ring", "a cyan heart"]


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return publish_tiny(tmp_path_factory.mktemp("store"))


@pytest.fixture
def teacher() -> Iterator[ScriptedModel]:
    with ScriptedModel().beside() as teacher:
        yield teacher


@pytest.fixture
def client(store_url: str, teacher: ScriptedModel, tmp_path: Path) -> Iterator[TestClient]:
    settings: dict[str, Any] = {"teacher_url": teacher.url, "teacher_model": "big", "max_negative_captions": 8}
    with served_tiny(store_url, tmp_path, teacher_timeout_s=2.0, **settings) as client:
        yield client


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/hard-negatives", json={"method": "llm", **body})


def test_a_batch_of_captions_gets_checked_negatives_of_the_seven_types(client: TestClient) -> None:
    answer = post(client, captions=CAPTIONS)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert answer.json()["object"] == "list" and [one["caption"] for one in data] == CAPTIONS
    for one in data:
        kinds = [negative["kind"] for negative in one["negatives"]] + [other["kind"] for other in one["rejected"]]
        assert sorted(kinds) == sorted(WRITTEN_KINDS)
        for negative in one["negatives"]:
            assert problem_of(negative["kind"], one["caption"], negative["text"]) is None
    assert {other["reason"] for other in data[2]["rejected"]} == {"nothing_to_change"}
    assert "teacher;dur=" in answer.headers["server-timing"]


def test_one_caption_gets_one_answer_in_the_form_of_the_rules(client: TestClient) -> None:
    answer = post(client, caption=CAPTIONS[0], kinds=["swap_att", "swap_att"]).json()
    swapped = "a blue circle left of a red square"
    assert answer == {"caption": CAPTIONS[0], "negatives": [{"kind": "swap_att", "text": swapped}], "rejected": []}


def test_a_seed_chooses_the_word_to_change(client: TestClient) -> None:
    answers = [post(client, caption=CAPTIONS[0], kinds=["replace_obj"], seed=seed).json() for seed in (0, 1)]
    assert len({answer["negatives"][0]["text"] for answer in answers}) == 2


def test_what_a_misbehaving_teacher_spoils_is_told_with_its_reason(client: TestClient, teacher: ScriptedModel) -> None:
    teacher.misbehaves = 40
    data = post(client, captions=[*CAPTIONS, "a pink cross right of a gray diamond"]).json()["data"]
    reasons = {other["reason"] for one in data for other in one["rejected"]}
    assert reasons - {"nothing_to_change"} and any(one["negatives"] for one in data)


def test_a_teacher_that_does_not_answer_is_a_503_without_its_address(store_url: str, tmp_path: Path) -> None:
    teacher = ScriptedModel(key="sk-another")
    with teacher.beside(), served_tiny(store_url, tmp_path, teacher_url=teacher.url, teacher_model="big") as client:
        answer = post(client, caption="a red circle")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "teacher_failed"
    assert "127.0.0.1" not in answer.text and "retry-after" in answer.headers


def test_rules_take_several_captions_too(client: TestClient) -> None:
    answer = client.post("/hard-negatives", json={"captions": CAPTIONS[:2], "kinds": ["replace"]}).json()
    assert [one["caption"] for one in answer["data"]] == CAPTIONS[:2]
    assert all("rejected" not in one and len(one["negatives"]) == 1 for one in answer["data"])


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "caption"),
        ({"caption": "a", "captions": ["b"]}, 422, "caption"),
        ({"captions": []}, 422, "captions"),
        ({"captions": ["a", " "]}, 422, "captions.1"),
        ({"captions": ["a"] * 9}, 413, "captions"),
        ({"captions": ["a", "x" * 1001]}, 413, "captions.1"),
        ({"caption": "a", "kinds": ["swap_obj", "negclip"]}, 422, "kinds.1"),
        ({"caption": "a", "kinds": ["add_obj"], "method": "rules"}, 422, "kinds.0"),
        ({"caption": "a", "method": "gpt"}, 422, "method"),
    ],
)
def test_what_cant_be_asked_for_is_named(client: TestClient, body: dict[str, Any], status: int, param: str) -> None:
    answer = post(client, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_without_a_teacher_the_method_is_refused_with_the_way_out(store_url: str, tmp_path: Path) -> None:
    with served_tiny(store_url, tmp_path) as client:
        told = post(client, caption="a red circle").json()["error"]
        (model,) = client.get("/v1/models").json()["data"]
    assert told["param"] == "method" and "Set FOVEA_SCORE_TEACHER_URL and FOVEA_SCORE_TEACHER_MODEL" in told["message"]
    assert model["hard_negatives"]["teacher"] is None


def test_models_names_the_teacher_and_its_kinds(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["hard_negatives"]["teacher"] == "big"
    assert set(WRITTEN_KINDS) < set(model["hard_negatives"]["kinds"])
    assert model["limits"]["max_negative_captions"] == 8


def test_the_settings_name_address_and_model_together_and_hide_the_key() -> None:
    with pytest.raises(ValueError, match="FOVEA_SCORE_TEACHER_URL and FOVEA_SCORE_TEACHER_MODEL belong together"):
        ScoreSettings(teacher_url="http://127.0.0.1:1/v1")
    assert "sk-secret" not in repr(ScoreSettings(teacher_key="sk-secret"))
