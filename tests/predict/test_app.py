"""`/predict` and `/tasks` over HTTP: what they answer, in both dialects, and everything that is refused."""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from services.core.batching import compute_thread
from services.core.fair_threads import FairThreads
from services.core.serving.model_settings import cure_of_absence
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.nn.devices import DeviceOptions
from services.predict.app import create_predict
from services.predict.engine import PredictEngine, Prediction
from services.predict.model.student import held_bytes
from services.predict.settings import PredictSettings
from services.predict.tasks import CQA, ESNLI, SVAMP
from tests.embed.tiny import wait_until_ready
from tests.predict.served_tiny import (
    MAX_INPUT_TOKENS,
    METRICS,
    PAIR,
    PROBLEM,
    QUESTION,
    REVIEWS,
    STATEMENT,
    publish,
    publish_tiny,
    save_task,
    served_tiny,
)

MAX_INPUTS = 300
LABELS = ["entailment", "neutral", "contradiction"]
CPU = DeviceOptions(device="cpu", num_threads=1)


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return publish_tiny(tmp_path_factory.mktemp("students"))


@pytest.fixture(scope="module")
def client(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("predict")
    with served_tiny(store_url, folder, max_inputs=MAX_INPUTS, max_body_bytes=2**20) as client:
        yield client


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PredictEngine]:
    """The engines with whose answers the service must answer."""
    folder = tmp_path_factory.mktemp("engines")
    return {
        task.name: PredictEngine.load(save_task(folder / task.name, task), CPU) for task in (ESNLI, CQA, SVAMP, REVIEWS)
    }


def answer_to(client: TestClient, task: str | None, *inputs: Any, **fields: Any) -> dict[str, Any]:
    response = client.post("/predict", json={"task": task, "inputs": inputs, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def shown(index: int, prediction: Prediction) -> dict[str, Any]:
    """A prediction of an engine as the service shows it."""
    probabilities = prediction.probabilities
    return {
        "index": index,
        "label": prediction.label,
        "probability": pytest.approx(prediction.probability, rel=1e-3),
        "probabilities": None if probabilities is None else pytest.approx(probabilities, rel=1e-3),
        "rationale": prediction.rationale,
        "value": prediction.value,
        "confidence": prediction.confidence,
        "unused_numbers": None if prediction.unused_numbers is None else list(prediction.unused_numbers),
        "unread_numbers": None if prediction.unread_numbers is None else list(prediction.unread_numbers),
    }


# --- tasks ---


@pytest.mark.parametrize("path", ["/tasks", "/v1/tasks"])
@pytest.mark.slow
def test_tasks_are_listed_with_their_fields_labels_and_checkpoints(client: TestClient, path: str) -> None:
    body = client.get(path).json()
    assert body["object"] == "list"
    for task in body["data"]:
        assert re.fullmatch(rf"tiny-{task['id']}@[0-9a-f]{{12}}", task.pop("model"))
        assert task.pop("metrics") == METRICS
        assert task.pop("statement") == STATEMENT
    assert body["data"] == [
        {"id": "esnli", "fields": ["premise", "hypothesis"], "labels": LABELS, "choices": None, "rationales": True},
        {"id": "cqa", "fields": ["question", "choices"], "labels": None, "choices": "choices", "rationales": True},
        {"id": "svamp", "fields": ["body", "question"], "labels": None, "choices": None, "rationales": False},
        {"id": "reviews", "fields": ["text"], "labels": ["good", "bad"], "choices": None, "rationales": False},
    ]


# --- predictions ---


@pytest.mark.parametrize("path", ["/predict", "/v1/predict"])
@pytest.mark.slow
def test_inputs_are_labelled_as_the_engine_labels_them_in_their_order(
    client: TestClient, engines: dict[str, PredictEngine], path: str
) -> None:
    other = {**PAIR, "premise": "Nobody is anywhere."}
    response = client.post(path, json={"task": "esnli", "inputs": [PAIR, other]})
    body = response.json()
    engine = engines["esnli"]
    expected = engine.run_batch([engine.prepare(one) for one in (PAIR, other)])

    assert set(body) == {"object", "model", "task", "predictions", "usage"}
    assert (body["object"], body["task"]) == ("list", "esnli")
    assert body["model"] == response.headers["x-fovea-model"]
    assert re.fullmatch(r"tiny-esnli@[0-9a-f]{12}", body["model"])
    assert body["predictions"] == [{**shown(index, one), "probabilities": None} for index, one in enumerate(expected)]
    prompt_tokens = sum(one.prompt_tokens for one in expected)
    completion_tokens = sum(one.completion_tokens for one in expected)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def test_probabilities_of_all_labels_come_where_they_are_asked_for(client: TestClient) -> None:
    [prediction] = answer_to(client, "esnli", PAIR, probabilities=True)["predictions"]
    assert list(prediction["probabilities"]) == LABELS
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)
    assert prediction["probabilities"][prediction["label"]] == prediction["probability"]


def test_rationales_come_where_they_are_asked_for(client: TestClient, engines: dict[str, PredictEngine]) -> None:
    engine = engines["esnli"]
    [expected] = engine.run_batch([engine.prepare(PAIR, rationale=True)])
    [prediction] = answer_to(client, "esnli", PAIR, rationale=True)["predictions"]
    assert isinstance(expected.rationale, str)
    assert prediction["rationale"] == expected.rationale
    [plain] = answer_to(client, "esnli", PAIR)["predictions"]
    assert plain["rationale"] is None


def test_a_task_may_have_choices_of_each_input(client: TestClient, engines: dict[str, PredictEngine]) -> None:
    other = {"question": "Which?", "choices": ["this one", "that one"]}
    engine = engines["cqa"]
    expected = engine.run_batch([engine.prepare(one) for one in (QUESTION, other)])
    answer = answer_to(client, "cqa", QUESTION, other, probabilities=True)
    assert answer["predictions"] == [shown(index, one) for index, one in enumerate(expected)]
    assert list(answer["predictions"][1]["probabilities"]) == other["choices"]


def test_a_free_answer_has_a_value_only_where_it_is_an_equation(
    client: TestClient, engines: dict[str, PredictEngine]
) -> None:
    engine = engines["svamp"]
    [expected] = engine.run_batch([engine.prepare(PROBLEM)])
    [prediction] = answer_to(client, "svamp", PROBLEM, probabilities=True)["predictions"]
    assert prediction == shown(0, expected)
    assert prediction["value"] is None, "random weights write no equation"


def test_as_many_inputs_as_the_limit_are_answered_one_by_one_in_their_order(
    client: TestClient, engines: dict[str, PredictEngine]
) -> None:
    inputs = [{"text": "word " * (number % 7) + str(number % 5)} for number in range(MAX_INPUTS)]
    engine = engines["reviews"]
    texts = sorted({one["text"] for one in inputs})
    distinct = dict(zip(texts, engine.run_batch([engine.prepare({"text": text}) for text in texts]), strict=True))
    answer = answer_to(client, "reviews", *inputs)
    assert [one["index"] for one in answer["predictions"]] == list(range(MAX_INPUTS))
    for one, prediction in zip(inputs, answer["predictions"], strict=True):
        expected = distinct[one["text"]]
        assert prediction["label"] == expected.label
        assert prediction["probability"] == pytest.approx(expected.probability, rel=1e-3)
    assert answer["usage"]["prompt_tokens"] == sum(distinct[one["text"]].prompt_tokens for one in inputs)


def test_long_texts_are_prepared_whole_for_a_client_that_is_alone_and_in_turns_for_several(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []
    run = FairThreads.run

    async def counted(threads: FairThreads, work: Any, amount: int = 1) -> Any:
        found = await run(threads, work, amount)
        pieces.append(len(found))
        return found

    monkeypatch.setattr(FairThreads, "run", counted)
    monkeypatch.setattr(compute_thread, "SHARED_S", 60.0)  # on a busy machine a request takes longer than usual
    body = {"task": "esnli", "inputs": [{**PAIR, "premise": f"{number} {'so ' * 20}"} for number in range(40)]}
    with served_tiny(store_url, tmp_path) as client:
        for name, expected in (("one", [40]), ("one", [40]), ("other", [40]), ("one", [16, 16, 8])):
            pieces.clear()
            assert client.post("/predict", json=body, headers={"X-Fovea-Client": name}).status_code == 200
            assert pieces == expected


def test_the_response_names_its_request_and_its_times(client: TestClient) -> None:
    response = client.post("/predict", json={"task": "esnli", "inputs": [PAIR]}, headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    stages = dict(re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"]))
    assert set(stages) == {"tokenize", "queue", "infer"}
    assert float(stages["infer"]) > 0


@pytest.mark.parametrize("task", ["esnli", "tiny-esnli", "tiny-esnli@latest"])
def test_a_task_may_be_called_by_its_model(client: TestClient, task: str) -> None:
    assert answer_to(client, task, PAIR)["task"] == "esnli"


@pytest.mark.parametrize("form", ["{name}", "{name}@latest", "{name}@{version}"])
def test_a_model_alone_says_which_task(client: TestClient, form: str) -> None:
    model = client.get("/v1/models/tiny-cqa").json()
    asked = form.format(name=model["id"], version=model["version"])
    answer = answer_to(client, None, QUESTION, model=asked)
    assert (answer["task"], answer["model"]) == ("cqa", f"tiny-cqa@{model['version']}")


# --- what is refused ---


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"task": "translation"}, 404, "task"),
        ({"task": None}, 422, "task"),
        ({"model": "tiny-gpt"}, 404, "model"),
        ({"model": "tiny-esnli@000000000000"}, 404, "model"),
        ({"model": "tiny-cqa"}, 400, "task"),
        ({"rationales": True}, 422, "rationales"),
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": PAIR}, 422, "inputs"),
        ({"inputs": None}, 422, "inputs"),
        ({"inputs": [PAIR, {"premise": "x"}]}, 422, "inputs.1.hypothesis"),
        ({"inputs": [PAIR, {**PAIR, "premise": 3}]}, 422, "inputs.1.premise"),
        ({"inputs": [PAIR, {**PAIR, "premise": ["x"]}]}, 422, "inputs.1.premise"),
        ({"inputs": [{**PAIR, "conclusion": "x"}]}, 422, "inputs.0.conclusion"),
        ({"inputs": [PAIR, "x"]}, 422, "inputs.1"),
        ({"inputs": [PAIR, {**PAIR, "premise": "x " * 200}]}, 413, "inputs.1"),
        ({"inputs": [PAIR, {"premise": " ", "hypothesis": "\u200b"}]}, 422, "inputs.1"),
        ({"inputs": [PAIR, {**PAIR, "premise": ""}]}, 422, "inputs.1.premise"),
        ({"inputs": [PAIR, {**PAIR, "hypothesis": "\u200b"}]}, 422, "inputs.1.hypothesis"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["a", ""]}]}, 422, "inputs.0.choices"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["a", "\u200b"]}]}, 422, "inputs.0.choices"),
        ({"task": "cqa", "inputs": [{**QUESTION, "question": ""}]}, 422, "inputs.0"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["one"]}]}, 422, "inputs.0.choices"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": "ab"}]}, 422, "inputs.0.choices"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["a", 1]}]}, 422, "inputs.0.choices.1"),
        ({"task": "cqa", "inputs": [QUESTION, {**QUESTION, "choices": ["a", "b", "a"]}]}, 422, "inputs.1.choices"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["a b", "c", "a\u00a0 b"]}]}, 422, "inputs.0.choices"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["fine", "\ufb01ne"]}]}, 422, "inputs.0.choices"),
        ({"task": "reviews", "inputs": [{"text": "x"}], "rationale": True}, 422, "rationale"),
        ({"rationale": "perhaps"}, 422, "rationale"),
        ({"task": "x" * 10_000}, 422, "task"),
        ({"inputs": [{f"field {number}": number for number in range(10_000)}]}, 422, "inputs.0"),
        ({"task": "cqa", "inputs": [{**QUESTION, "choices": ["x"] * 10_000}]}, 422, "inputs.0.choices"),
        ({"inputs": [PAIR] * (MAX_INPUTS + 1)}, 413, "inputs"),
        ({"inputs": [0] * (MAX_INPUTS + 1)}, 413, "inputs"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(
    client: TestClient, fields: dict[str, Any], status: int, param: str
) -> None:
    error = error_of(client.post("/predict", json={"task": "esnli", "inputs": [PAIR], **fields}), status)
    assert error["param"] == param


def test_a_misspelt_field_is_refused_with_the_nearest_name(client: TestClient) -> None:
    error = error_of(client.post("/predict", json={"task": "esnli", "inputs": [PAIR], "rationales": True}), 422)
    assert error["message"] == "rationales: Unknown field; the nearest that is known is rationale."


@pytest.mark.parametrize("value", [1, None, "x", ["x"], {}])
def test_a_field_that_the_task_has_not_is_refused_whatever_its_value(client: TestClient, value: object) -> None:
    near = error_of(client.post("/predict", json={"task": "esnli", "inputs": [PAIR, {**PAIR, "premiss": value}]}), 422)
    assert near["message"] == "inputs.1.premiss: Unknown field; the nearest that is known is premise."
    far = error_of(client.post("/predict", json={"task": "esnli", "inputs": [{**PAIR, "x": value}]}), 422)
    assert far["message"] == "inputs.0.x: Unknown field; known are premise, hypothesis."


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("a text", "inputs: Must be a list of objects with the fields premise, hypothesis."),
        (PAIR, "inputs: Must be a list of objects with the fields premise, hypothesis."),
        (["a text"], "inputs.0: Must be an object with the fields premise, hypothesis."),
        ([PAIR, list(PAIR.values())], "inputs.1: Must be an object with the fields premise, hypothesis."),
    ],
)
def test_inputs_of_another_form_are_told_the_tasks_fields(client: TestClient, inputs: object, message: str) -> None:
    error = error_of(client.post("/predict", json={"task": "esnli", "inputs": inputs}), 422)
    assert error["message"] == message
    assert error["param"] == message.partition(":")[0]


def test_an_unknown_task_is_told_which_there_are(client: TestClient) -> None:
    error = error_of(client.post("/predict", json={"task": "x", "inputs": [PAIR]}), 404)
    assert error["message"] == "There is no task 'x'; available: 'esnli', 'cqa', 'svamp', 'reviews'."
    assert (error["type"], error["code"]) == ("not_found_error", "task_not_found")


def test_limits_are_named_with_what_was_asked(client: TestClient) -> None:
    error = error_of(client.post("/predict", json={"task": "esnli", "inputs": [PAIR] * (MAX_INPUTS + 1)}), 413)
    assert error["message"] == f"inputs: The request asks for {MAX_INPUTS + 1} inputs; the limit is {MAX_INPUTS}."
    long = {**PAIR, "hypothesis": "dog " * 200}
    error = error_of(client.post("/predict", json={"task": "esnli", "inputs": [long]}), 413)
    assert re.search(rf"has \d+ tokens; the limit is {MAX_INPUT_TOKENS}", error["message"])


@pytest.mark.parametrize("content", [b"{", b'{"task": NaN}', b'{"task": "\xff"}', b""])
def test_what_is_no_json_is_a_400(client: TestClient, content: bytes) -> None:
    response = client.post("/predict", content=content, headers={"content-type": "application/json"})
    assert response.status_code in {400, 422}
    assert "error" in response.json()


def test_other_content_types_are_refused(client: TestClient) -> None:
    response = client.post("/predict", content=b"x", headers={"content-type": "text/plain"})
    assert error_of(response, 415)["type"] == "unsupported_media_type"


def test_a_deadline_that_has_passed_is_a_504(client: TestClient) -> None:
    inputs = [{"text": f"word {number} " * 10} for number in range(MAX_INPUTS)]  # each within the limit of tokens
    response = client.post(
        "/predict", json={"task": "reviews", "inputs": inputs}, headers={"x-request-timeout": "0.001"}
    )
    assert error_of(response, 504)["type"] == "timeout_error"


def test_a_text_never_becomes_a_control_token(client: TestClient) -> None:
    hostile = {"premise": "x</s><pad>", "hypothesis": "</s>" * 5}
    assert answer_to(client, "esnli", hostile)["predictions"][0]["label"] in LABELS


# --- text-embeddings-inference ---


def test_teis_pair_is_answered_by_the_first_task_of_two_texts_best_label_first(client: TestClient) -> None:
    [prediction] = answer_to(client, "esnli", PAIR, probabilities=True)["predictions"]
    response = client.post("/predict", json={"inputs": list(PAIR.values())})
    ranked = response.json()
    assert [one["label"] for one in ranked] == sorted(LABELS, key=lambda x: -prediction["probabilities"][x])
    for one in ranked:
        assert set(one) == {"score", "label"}
        assert one["score"] == pytest.approx(prediction["probabilities"][one["label"]])
    assert response.headers["x-fovea-model"].startswith("tiny-esnli@")
    headers = {"x-compute-tokens": prediction_tokens(client), "x-compute-characters": sum(map(len, PAIR.values()))}
    for name, value in headers.items():
        assert response.headers[name] == str(value)
    assert {"x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"} <= set(response.headers)


def prediction_tokens(client: TestClient) -> int:
    tokens: int = answer_to(client, "esnli", PAIR)["usage"]["prompt_tokens"]
    return tokens


def test_teis_single_text_is_answered_by_the_first_task_of_one_text(client: TestClient) -> None:
    alone = client.post("/predict", json={"inputs": "what a film"}).json()
    assert {one["label"] for one in alone} == {"good", "bad"}
    assert client.post("/predict", json={"inputs": ["what a film"]}).json() == alone


def test_teis_batch_is_answered_with_a_list_for_each(client: TestClient) -> None:
    batch = client.post("/predict", json={"inputs": [["what a film"], ["what"], ["what a film"]]}).json()
    alone = [client.post("/predict", json={"inputs": text}).json() for text in ("what a film", "what")]
    for some, expected in zip(batch, [alone[0], alone[1], alone[0]], strict=True):
        assert [one["label"] for one in some] == [one["label"] for one in expected]
        assert [one["score"] for one in some] == pytest.approx([one["score"] for one in expected], rel=1e-3)


def test_teis_raw_scores_are_logarithms_of_the_scores(client: TestClient) -> None:
    asked = {"inputs": list(PAIR.values())}
    scores, raw = (client.post("/predict", json={**asked, "raw_scores": is_raw}).json() for is_raw in (False, True))
    assert [one["label"] for one in raw] == [one["label"] for one in scores]
    assert [math.exp(one["score"]) for one in raw] == pytest.approx([one["score"] for one in scores])


def test_tei_may_name_a_model(client: TestClient) -> None:
    response = client.post("/predict", json={"inputs": ["a", "b"], "model": "tiny-esnli"})
    assert response.headers["x-fovea-model"].startswith("tiny-esnli@")


@pytest.mark.parametrize("direction", ["right", "Left"])
def test_tei_cuts_texts_only_where_it_is_asked_to(
    client: TestClient, engines: dict[str, PredictEngine], direction: str
) -> None:
    long = " ".join(f"w{number}" for number in range(400))
    refused = client.post("/predict", json={"inputs": [long, "a dog"]})
    assert refused.status_code == 413
    assert f"the limit is {MAX_INPUT_TOKENS}" in refused.json()["error"]

    asked = {"inputs": [long, "a dog"], "truncate": True, "truncation_direction": direction}
    cut = client.post("/predict", json=asked)
    assert cut.status_code == 200
    assert MAX_INPUT_TOKENS - 8 <= int(cut.headers["x-compute-tokens"]) <= MAX_INPUT_TOKENS
    # the same as the end or the beginning alone that is left
    engine = engines["esnli"]
    num_fitting = bisect_left(range(len(long)), 1, key=lambda num: not fits(engine, cut_to(long, num + 1, direction)))
    fitting = cut_to(long, num_fitting, direction)
    expected = client.post("/predict", json={"inputs": [fitting, "a dog"]}).json()
    for one, other in zip(cut.json(), expected, strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], rel=0.2)


def cut_to(text: str, num_characters: int, direction: str) -> str:
    return text[:num_characters] if direction == "right" else text[-num_characters:]


def fits(engine: PredictEngine, premise: str) -> bool:
    num_tokens = len(engine.tokenizer(f"predict: {premise}</s>a dog").input_ids)
    return num_tokens <= MAX_INPUT_TOKENS


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"inputs": ["a", "b", "c"]}, 422),
        ({"inputs": [["a", "b", "c"]]}, 422),
        ({"inputs": [["a"], ["a", "b"]]}, 422),
        ({"inputs": [["a", "b"], ["a"]]}, 422),
        ({"inputs": ""}, 422),
        ({"inputs": ["", " "], "truncate": True}, 422),
        ({"inputs": [["a"], "b"]}, 422),
        ({"inputs": "a", "raw_scores": "perhaps"}, 422),
        ({"inputs": "a", "model": "tiny-svamp"}, 422),
        ({"inputs": "a", "model": "tiny-esnli"}, 422),
        ({"inputs": "a", "model": "other"}, 404),
        ({"inputs": [["a"]] * (MAX_INPUTS + 1)}, 413),
    ],
)
def test_teis_errors_have_its_shape(client: TestClient, body: dict[str, Any], status: int) -> None:
    response = client.post("/predict", json=body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "error_type"}
    assert response.json()["error_type"] == "Validation"


# --- models, probes, settings ---


def test_models_are_listed_with_their_limits(client: TestClient) -> None:
    models = client.get("/v1/models").json()["data"]
    assert [one["id"] for one in models] == ["tiny-esnli", "tiny-cqa", "tiny-svamp", "tiny-reviews"]
    model = client.get(f"/v1/models/tiny-cqa@{models[1]['version']}").json()
    assert model == models[1]
    assert model["object"] == "model"
    assert (model["kind"], model["task"], model["loaded"]) == ("t5-student", "cqa", True)
    assert model["max_model_len"] == MAX_INPUT_TOKENS
    assert model["limits"] == {"max_inputs": MAX_INPUTS}
    assert model["revision"].startswith(model["version"])
    assert model["statement"] == STATEMENT
    assert [one["decides"] for one in models] == [True, True, False, True]
    assert error_of(client.get("/v1/models/gpt"), 404)["code"] == "model_not_found"


def test_versions_tell_their_aliases_which_one_serves_and_why_a_newer_one_does_not(tmp_path: Path) -> None:
    url = publish_tiny(tmp_path / "students")
    store = Store.open(url)
    old = store.resolve("tiny-reviews")
    store.promote("tiny-reviews", old, "stable")
    with served_tiny(url, tmp_path, models="tiny-reviews", store_poll_s=0.01) as client:
        address = "/v1/models/tiny-reviews/versions"
        (only,) = client.get(address).json()["data"]
        assert (only["version"], only["aliases"], only["serving"]) == (old, ["latest", "stable"], True)
        assert only["created"] == int(store.versions("tiny-reviews")[0].published.timestamp())
        new = store.publish("tiny-reviews", save_task(tmp_path / "other", ESNLI), CheckpointInfo(kind="another")).id
        wait_until_ready(lambda: any(one["refusal"] for one in client.get(address).json()["data"]))
        listed = client.get(address).json()
        assert listed["followed"] == "latest"
        newer, older = listed["data"]
        assert (newer["version"], newer["aliases"], newer["serving"]) == (new, ["latest"], False)
        assert "another" in newer["refusal"]
        assert (older["aliases"], older["serving"], older["refusal"]) == (["stable"], True, None)
        assert error_of(client.get("/v1/models/gpt/versions"), 404)["code"] == "model_not_found"


def test_readiness_names_every_checkpoint(client: TestClient) -> None:
    checks = client.get("/readyz").json()["checks"]
    for name in ("esnli", "cqa", "svamp", "reviews"):
        assert checks[f"checkpoint tiny-{name}"]["detail"].startswith(f"tiny-{name}@")


@pytest.mark.slow
def test_the_openapi_document_describes_both_dialects(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    predict = document["paths"]["/predict"]["post"]
    sent = predict["requestBody"]["content"]["application/json"]["schema"]
    assert {one["$ref"].rpartition("/")[2] for one in sent["oneOf"]} == {"PredictRequest", "TeiPredictRequest"}
    answered = json.dumps(predict["responses"]["200"])
    assert "PredictAnswer" in answered
    assert "TeiPrediction" in answered
    assert {"TeiError", "ErrorEnvelope"} <= set(document["components"]["schemas"])
    assert document["paths"]["/tasks"]["get"]["responses"]["200"]


def test_with_one_task_nobody_needs_to_name_it(store_url: str, tmp_path: Path) -> None:
    with served_tiny(store_url, tmp_path, models="tiny-reviews") as client:
        assert answer_to(client, None, {"text": "x"})["task"] == "reviews"


@pytest.mark.slow
def test_under_a_budget_every_task_is_listed_and_answered_in_turn(store_url: str, tmp_path: Path) -> None:
    budget = held_bytes(save_task(tmp_path / "one", ESNLI), CPU)
    with served_tiny(store_url, tmp_path, models="tiny-esnli,tiny-cqa", memory_bytes=budget) as client:
        for _ in range(2):
            assert answer_to(client, "esnli", PAIR)["model"].startswith("tiny-esnli@")
            response = client.post("/predict", json={"task": "cqa", "inputs": [QUESTION]})
            assert "load;dur=" in response.headers["server-timing"]
            assert [one["id"] for one in client.get("/tasks").json()["data"]] == ["esnli", "cqa"]
            assert [one["loaded"] for one in client.get("/v1/models").json()["data"]] == [False, True]
        assert client.get("/readyz").status_code == 200
        metrics = client.get("/metrics").text
        assert 'fovea_model_loads_total{name="tiny-cqa"} 3.0' in metrics
        assert 'fovea_model_unloads_total{name="tiny-cqa"} 2.0' in metrics
        assert f'fovea_model_resident_bytes{{name="tiny-cqa"}} {float(budget)}' in metrics
        assert 'fovea_model_resident_bytes{name="tiny-esnli"} 0.0' in metrics


@pytest.mark.slow
def test_each_alias_is_followed_on_its_own_and_a_refused_version_is_named(tmp_path: Path) -> None:
    store_url = (tmp_path / "store").as_uri()
    for task in (ESNLI, REVIEWS):
        publish(store_url, tmp_path, task)
    with served_tiny(store_url, tmp_path, models="tiny-esnli,tiny-reviews", store_poll_s=0.05) as client:
        before = answer_to(client, "reviews", {"text": "x"})["model"]
        newer = publish(store_url, tmp_path, ESNLI, seed=1)
        wait_until_ready(lambda: answer_to(client, "esnli", PAIR)["model"] == f"tiny-esnli@{newer}")
        assert answer_to(client, "reviews", {"text": "x"})["model"] == before

        info = CheckpointInfo(kind="causal-lm")
        bad = Store.open(store_url).publish("tiny-reviews", save_task(tmp_path / "bad", REVIEWS, seed=2), info).id
        named = f"refused tiny-reviews@{bad} is a causal-lm checkpoint, and this service runs t5-student checkpoints"
        wait_until_ready(lambda: named in client.get("/readyz").text)
        assert client.get("/readyz").status_code == 200
        assert answer_to(client, "reviews", {"text": "x"})["model"] == before


@pytest.mark.slow
def test_two_models_of_one_task_are_told_apart_by_name(store_url: str, tmp_path: Path) -> None:
    Store.open(store_url).publish(
        "other-esnli", save_task(tmp_path / "o", ESNLI, seed=3), CheckpointInfo(kind="t5-student")
    )
    with served_tiny(store_url, tmp_path, models="tiny-esnli,other-esnli") as client:
        error = error_of(client.post("/predict", json={"task": "esnli", "inputs": [PAIR]}), 422)
        assert error["param"] == "model"
        assert "'tiny-esnli', 'other-esnli'" in error["message"]
        assert answer_to(client, "esnli", PAIR, model="other-esnli")["model"].startswith("other-esnli@")
        in_teis_form = {"inputs": list(PAIR.values())}
        refused = client.post("/predict", json=in_teis_form)
        assert (refused.status_code, refused.json()["error"]) == (422, error["message"])
        answered = client.post("/predict", json={**in_teis_form, "model": "other-esnli"})
        assert answered.headers["x-fovea-model"].startswith("other-esnli@")


@pytest.mark.slow
def test_a_model_without_the_task_that_is_asked_for_is_refused_with_those_that_have_it(
    store_url: str, tmp_path: Path
) -> None:
    with served_tiny(store_url, tmp_path, models="tiny-esnli,tiny-reviews") as client:
        for task, told in (("reviews", "; models that have it: 'tiny-reviews'"), ("review", "")):
            asked = {"model": "tiny-esnli", "task": task, "inputs": [{"text": "x"}]}
            error = error_of(client.post("/predict", json=asked), 400)
            assert error["param"] == "task"
            assert error["message"] == f"task: The model 'tiny-esnli' has the task 'esnli', not {task!r}{told}."


@pytest.mark.slow
def test_eight_bit_integers_are_a_setting(store_url: str, tmp_path: Path) -> None:
    with served_tiny(store_url, tmp_path, models="tiny-reviews", int8=True) as client:
        folder = save_task(tmp_path / "same", REVIEWS)
        [prediction] = answer_to(client, "reviews", {"text": "what a film"})["predictions"]
        exact, rough = (PredictEngine.load(folder, CPU, is_int8=is_int8) for is_int8 in (False, True))
        by_exact, by_rough = (
            engine.run_batch([engine.prepare({"text": "what a film"})])[0].probability for engine in (exact, rough)
        )
        assert by_exact != pytest.approx(by_rough, rel=1e-4)
        assert prediction["probability"] == pytest.approx(by_rough, rel=1e-5)
        expected = float(held_bytes(folder, CPU, is_int8=True))
        assert f'fovea_model_resident_bytes{{name="tiny-reviews"}} {expected}' in client.get("/metrics").text


def test_until_a_model_is_loaded_requests_are_told_to_come_back(tmp_path: Path) -> None:
    settings = PredictSettings(
        store_url=(tmp_path / "store").as_uri(), checkpoint_cache_dir=tmp_path / "checkpoints", models=("absent",)
    )
    with TestClient(create_predict(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: "there is no model" in client.get("/readyz").text)
        for response in (client.get("/tasks"), client.post("/predict", json={"task": "x", "inputs": [PAIR]})):
            error = error_of(response, 503)
            assert error["code"] == "loading"
            assert error["message"] == "absent@latest could not be loaded: the store lacks it."
            assert int(response.headers["retry-after"]) > 0
        assert client.get("/readyz").status_code == 503
        error = error_of(client.post("/predict", json={"model": "other", "inputs": [PAIR]}), 404)
        assert error["message"] == "There is no model 'other': this service serves no model at present."


def test_a_task_that_nobody_has_does_not_exist_once_the_store_is_known_to_lack_the_rest(
    store_url: str, tmp_path: Path
) -> None:
    settings = PredictSettings(
        store_url=store_url, checkpoint_cache_dir=tmp_path, models=("tiny-reviews", "tiny-revues"), device="cpu"
    )
    with TestClient(create_predict(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        # the other one serves, once this one is known not to
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        assert answer_to(client, "reviews", {"text": "x"})["task"] == "reviews"
        error = error_of(client.post("/predict", json={"task": "revews", "inputs": [{"text": "x"}]}), 404)
        assert error["message"] == "There is no task 'revews'; available: 'reviews'; did you mean reviews?"
        for named in ({"model": "tiny-revues"}, {"task": "tiny-revues"}):
            error = error_of(client.post("/predict", json={**named, "inputs": [{"text": "x"}]}), 503)
            assert error["message"] == "tiny-revues@latest could not be loaded: the store lacks it."
        error = error_of(client.post("/predict", json={"model": "tiny-reviewz", "inputs": [{"text": "x"}]}), 404)
        assert error["message"] == (
            "There is no model 'tiny-reviewz': this service serves 'tiny-reviews'; did you mean tiny-reviews?"
        )
        missing = client.get("/readyz").json()["checks"]["checkpoint tiny-revues"]
        assert not missing["ok"]
        cure = cure_of_absence("tiny-revues", "latest", "FOVEA_PREDICT_MODELS")
        assert missing["detail"].endswith(f"; did you mean tiny-reviews?; cure: {cure}")


def test_a_task_that_nobody_has_may_be_that_of_a_model_whose_version_is_refused(tmp_path: Path) -> None:
    store_url = publish_tiny(tmp_path / "store")
    info = CheckpointInfo(kind="causal-lm")
    refused = Store.open(store_url).publish("tiny-revues", save_task(tmp_path / "bad", REVIEWS), info).id
    with served_tiny(store_url, tmp_path, models="tiny-reviews,tiny-revues") as client:
        response = client.post("/predict", json={"task": "other", "inputs": [{"text": "x"}]})
        assert error_of(response, 503)["message"] == (
            f"tiny-revues@latest could not be loaded: tiny-revues@{refused} is a causal-lm checkpoint, and this "
            "service runs t5-student checkpoints."
        )


def test_a_service_publishes_its_starter_to_a_store_that_holds_other_models(tmp_path: Path) -> None:
    store_url, models = publish_tiny(tmp_path / "store"), ("tiny-reviews", "inferences")
    settings = PredictSettings(
        store_url=store_url, checkpoint_cache_dir=tmp_path / "cache", models=models, device="cpu"
    )
    with TestClient(create_predict(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        assert [task["id"] for task in client.get("/tasks").json()["data"]] == ["reviews", "inferences"]
    assert "inferences" in Store.open(store_url).names()
    assert "word-problems" not in Store.open(store_url).names()


def test_a_service_publishes_to_an_empty_store_only_the_starters_that_it_serves(tmp_path: Path) -> None:
    store_url = (tmp_path / "store").as_uri()
    settings = PredictSettings(store_url=store_url, checkpoint_cache_dir=tmp_path / "cache", models=("inferences",))
    with TestClient(create_predict(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
    assert Store.open(store_url).names() == ["inferences"]


@pytest.fixture(scope="module")
def word_problems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a service with the packaged student of word problems."""
    folder = tmp_path_factory.mktemp("starter")
    with served_tiny((folder / "store").as_uri(), folder, models="word-problems") as client:
        yield client


@pytest.mark.parametrize(
    "number", ["1,200", "1 200", "1\u00a0200", "1\u202f200", "１２００", "١٢٠٠", "1.200,0", "1'200"]
)
def test_word_problems_are_answered_whatever_the_form_of_their_numbers(word_problems: TestClient, number: str) -> None:
    problem = {"body": f"Dora split {number} spoons evenly into 8 bags.", "question": "How many are in each bag?"}
    (found,) = answer_to(word_problems, None, problem)["predictions"]
    assert (found["value"], found["unused_numbers"], found["unread_numbers"]) == (150, [], [])


@pytest.mark.parametrize(
    ("amount", "value"),
    [("½ cup", 3.5), ("1⁄2 cup", 3.5), ("half a cup", 3.5), ("1½ cups", 4.5), ("1 1/2 cups", 4.5), ("2,5 cups", 5.5)],
)
def test_parts_of_a_whole_are_read_and_no_right_equation_lacks_them(
    word_problems: TestClient, amount: str, value: float
) -> None:
    problem = {
        "body": f"Mia has {amount} of sugar and adds 3 cups.",
        "question": "How many cups of sugar does Mia have?",
    }
    (found,) = answer_to(word_problems, None, problem)["predictions"]
    assert (found["value"], found["unused_numbers"]) == (value, [])


@pytest.mark.parametrize("share", ["25%", "25 percent", "twenty-five percent", "a quarter", "¼", "1/4"])
def test_a_share_is_taken_of_the_whole_whatever_its_form(word_problems: TestClient, share: str) -> None:
    problem = {"body": f"A shirt costs 80 dollars. It is reduced by {share}.", "question": "What does it cost now?"}
    (found,) = answer_to(word_problems, None, problem)["predictions"]
    assert (found["value"], found["unused_numbers"]) == (60, [])


def test_an_equation_without_a_value_can_not_be_right(word_problems: TestClient) -> None:
    problem = {"body": "Tom splits 10 pens among 0 friends.", "question": "How many pens does each friend get?"}
    (found,) = answer_to(word_problems, None, problem)["predictions"]
    assert (found["label"], found["value"], found["confidence"]) == ("( 10 / 0 )", None, 0)


def test_an_answer_names_what_was_not_read_as_a_number(word_problems: TestClient) -> None:
    problem = {"body": "Dora finished 3rd of 20 runners at 7:30.", "question": "How many runners were behind her?"}
    (found,) = answer_to(word_problems, None, problem)["predictions"]
    assert found["unread_numbers"] == ["3rd", "7:30"]


def test_numbers_beyond_64_bits_are_rounded(word_problems: TestClient) -> None:
    body = f"Ann has {'9' * 25} figs and gets 3 more. Bob has {'8' * 30} figs."
    (found,) = answer_to(word_problems, None, {"body": body, "question": "How many figs does Ann have?"})["predictions"]
    numbers = [found["value"], *found["unused_numbers"]]
    assert all(isinstance(number, float) for number in numbers if number > 2**63)
    assert any(number > 2**63 for number in numbers)


def test_a_process_without_settings_serves_the_starters() -> None:
    settings = PredictSettings()
    assert settings.models == ("word-problems", "inferences")
    assert settings.max_inputs >= 2048
    assert settings.memory_bytes == 0


@pytest.mark.parametrize("models", ["", "A b", "a,a", "a@x,a@y", "a@B!"])
def test_models_that_can_not_be_are_refused_as_a_setting(models: str) -> None:
    with pytest.raises(ValidationError):
        PredictSettings(models=models)
