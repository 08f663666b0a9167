"""The score service over HTTP: every form of a request, its answer, and everything that is refused."""

import base64
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
from PIL import Image
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient

from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.nn.clip_model import OPEN_CLIP_WEIGHTS
from services.nn.devices import DeviceOptions
from services.score.engine import ScoreEngine
from services.score.model.pairing import PairItem
from services.score.settings import ScoreSettings
from tests.core.image_files import encode, scene
from tests.embed.tiny import wait_until_ready
from tests.score.served_tiny import LOCAL_WEIGHT, MODEL, publish, publish_tiny, served_tiny
from tests.score.tiny import CONTEXT_LENGTH, IMAGE_SIZE, write_tiny_checkpoint

CAPTIONS = ["a red square left of a blue circle", "a blue square left of a red circle", "a dog"]
TOO_LONG = "red " * CONTEXT_LENGTH
PHOTO = encode(scene(), "PNG")
BASE64 = base64.b64encode(PHOTO).decode()
URI = f"data:image/png;base64,{BASE64}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("score")


@pytest.fixture(scope="module")
def store_url(folder: Path) -> str:
    return publish_tiny(folder)


@pytest.fixture(scope="module")
def engine(store_url: str, folder: Path) -> ScoreEngine:
    """The engine with whose answers the service must answer."""
    return ScoreEngine.load(folder / "checkpoint", DeviceOptions(device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def client(store_url: str, folder: Path) -> Iterator[TestClient]:
    with served_tiny(store_url, folder, max_body_bytes=2**20) as client:
        yield client


def expected(engine: ScoreEngine, captions: Sequence[str]) -> dict[str, list[float]]:
    """Return the engine's own answer about the photo."""
    image, *texts = engine.run_batch([engine.prepare_image(scene(), "photo"), *map(engine.prepare_caption, captions)])
    (similarities,) = engine.pairing.run_batch([PairItem(image, texts)])
    scores = engine.mix(similarities)
    weights = np.exp(engine.logit_scale * (scores.astype(np.float64) - scores.max()))
    columns = (similarities.global_cosines, similarities.local_cosines, scores, weights / weights.sum())
    return {name: column.tolist() for name, column in zip(COLUMNS, columns, strict=True)}


COLUMNS = ("global", "local", "score", "probability")


def assert_answered(response: Any, engine: ScoreEngine, captions: Sequence[str]) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    assert [one["caption"] for one in body["scores"]] == list(captions)
    assert [one["index"] for one in body["scores"]] == list(range(len(captions)))
    wanted = expected(engine, captions)
    for name in COLUMNS:
        assert [one[name] for one in body["scores"]] == pytest.approx(wanted[name], abs=2e-3)
    assert body["best"] == int(np.argmax(wanted["score"]))
    return body


def test_a_large_jpeg_is_scored_as_decoding_made_it_smaller(client: TestClient, engine: ScoreEngine) -> None:
    photograph = Image.fromarray(skimage.data.coffee()).resize((1600, 1200))  # type: ignore[no-untyped-call]
    file = encode(photograph, "JPEG")
    image = f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"
    answer = client.post("/score", json={"image": image, "captions": CAPTIONS}).json()
    texts = engine.run_batch([engine.prepare_caption(caption) for caption in CAPTIONS])
    cosines = []
    for side in (engine.image_side, None):
        item = engine.prepare_image(decode_image(file, ImageLimits(), side=side), str(side))
        (similarities,) = engine.pairing.run_batch([PairItem(engine.run_batch([item])[0], texts)])
        cosines.append(similarities.global_cosines)
    smaller, whole = cosines
    assert [one["global"] for one in answer["scores"]] == pytest.approx(smaller.tolist(), abs=1e-6)
    assert np.abs(smaller - whole).max() > 1e-5


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- /score ---


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("image", [URI, BASE64, {"url": URI}])
@pytest.mark.slow
def test_a_json_request_is_answered_with_every_similarity(
    client: TestClient, engine: ScoreEngine, path: str, image: Any
) -> None:
    body = {"image": image, "captions": CAPTIONS}
    answer = assert_answered(client.post(path, json=body), engine, CAPTIONS)
    num_tokens = sum(engine.prepare_caption(caption).num_tokens for caption in CAPTIONS)
    assert answer["object"] == "list"
    assert re.fullmatch(rf"{MODEL}@[0-9a-f]{{12}}", answer["model"])
    assert answer["explain"] is None
    assert answer["usage"] == {"images": 1, "prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert sum(one["probability"] for one in answer["scores"]) == pytest.approx(1, abs=1e-5)


def test_a_form_carries_the_image_as_a_file_and_each_caption_as_a_part(client: TestClient, engine: ScoreEngine) -> None:
    files = {"file": ("a.png", PHOTO, "image/png")}
    answer = assert_answered(client.post("/score", files=files, data={"captions": CAPTIONS}), engine, CAPTIONS)
    assert answer["explain"] is None
    explained = client.post("/score", files=files, data={"captions": CAPTIONS, "explain": "true", "model": MODEL})
    assert len(explained.json()["explain"]) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"json": {"image": URI, "captions": CAPTIONS, "explian": True}},
        {"files": {"file": PHOTO}, "data": {"captions": CAPTIONS, "explian": "true"}},
        {"files": {"file": PHOTO}, "data": {"captions": CAPTIONS}, "params": {"explian": "true"}},
    ],
)
def test_a_misspelt_option_is_refused_in_every_form(client: TestClient, options: dict[str, Any]) -> None:
    error = error_of(client.post("/score", **options), 422)
    assert error["param"] == "explian"
    assert error["message"] == "explian: Unknown field; the nearest that is known is explain."


def test_vllms_fields_are_refused_where_they_have_no_effect_here(client: TestClient) -> None:
    pair = {"data_1": {"image": URI}, "data_2": CAPTIONS}
    harmless = {"use_activation": True, "mm_processor_kwargs": {}, "a field that nobody knows": 1}
    assert client.post("/v1/score", json={**pair, **harmless}).status_code == 200
    error = error_of(client.post("/v1/score", json={**pair, "use_activation": False}), 400)
    assert error["message"] == "use_activation: Not supported here; leave the field out."


def test_an_image_as_the_body_is_scored_with_the_captions_of_the_query(client: TestClient, engine: ScoreEngine) -> None:
    send: dict[str, Any] = {"content": PHOTO, "headers": {"content-type": "image/png"}}
    assert_answered(client.post("/score", params={"captions": CAPTIONS}, **send), engine, CAPTIONS)
    explained = client.post("/score", params={"captions": CAPTIONS, "explain": True}, **send)
    assert len(explained.json()["explain"]) == 3


def test_a_single_caption_has_all_the_probability(client: TestClient, engine: ScoreEngine) -> None:
    answer = assert_answered(client.post("/score", json={"image": URI, "captions": CAPTIONS[:1]}), engine, CAPTIONS[:1])
    assert answer["scores"][0]["probability"] == 1
    assert answer["best"] == 0


def test_of_equal_scores_the_first_is_the_best(client: TestClient) -> None:
    ranked = client.post("/score", json={"image": URI, "captions": CAPTIONS}).json()
    best = CAPTIONS[ranked["best"]]
    others = [caption for caption in CAPTIONS if caption != best]
    answer = client.post("/score", json={"image": URI, "captions": [others[0], best, others[1], best, best]}).json()
    assert answer["best"] == 1
    scores = answer["scores"]
    for name in COLUMNS:
        assert scores[1][name] == scores[3][name] == scores[4][name]


def test_the_score_is_the_mix_that_the_model_states(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["local_weight"], model["decides"]) == (LOCAL_WEIGHT, True)
    for one in client.post("/score", json={"image": URI, "captions": CAPTIONS}).json()["scores"]:
        assert one["score"] == pytest.approx(0.75 * one["global"] + 0.25 * one["local"], abs=1e-6)


@pytest.mark.slow
def test_a_thousand_and_twenty_four_captions_are_scored_in_one_call(client: TestClient, engine: ScoreEngine) -> None:
    captions = [f"an object of number {number}" for number in range(1024)]
    assert_answered(client.post("/score", json={"image": URI, "captions": captions}), engine, captions)
    form: dict[str, Any] = {"files": {"file": PHOTO}, "data": {"captions": captions}}
    assert_answered(client.post("/score", **form), engine, captions)
    form["data"]["captions"].append("one more")
    assert "1025 captions; the limit is 1024" in error_of(client.post("/score", **form), 413)["message"]


def test_the_response_names_its_checkpoint_its_request_and_its_times(client: TestClient) -> None:
    image = base64.b64encode(encode(scene((33, 44)), "PNG")).decode()
    body = {"image": image, "captions": ["one that nobody has asked about"]}
    response = client.post("/score", json=body, headers={"x-request-id": "mine"})
    assert response.headers["x-fovea-model"] == response.json()["model"]
    assert response.headers["x-request-id"] == "mine"
    stages = dict(re.findall(r"(\w+);dur=(\d+\.\d+)", response.headers["server-timing"]))
    assert set(stages) == {"tokenize", "decode", "queue", "infer"}
    again = client.post("/score", json=body)
    assert "decode" not in again.headers["server-timing"]


def test_captions_that_recur_are_taken_from_the_cache(client: TestClient) -> None:
    def num_hits() -> float:
        found = re.search(r'fovea_cache_requests_total{result="hit"} (\S+)', client.get("/metrics").text)
        assert found
        return float(found[1])

    client.post("/score", json={"image": URI, "captions": CAPTIONS})
    before = num_hits()
    other = base64.b64encode(encode(scene((50, 20)), "PNG")).decode()
    client.post("/score", json={"image": other, "captions": CAPTIONS})
    assert num_hits() == before + 3


def test_heatmaps_show_for_each_token_where_the_image_is_most_like_it(client: TestClient) -> None:
    answer = client.post("/score", json={"image": URI, "captions": CAPTIONS, "explain": True}).json()
    assert [one["index"] for one in answer["explain"]] == [0, 1, 2]
    assert answer["explain"][2]["tokens"] == ["a", "dog", "<end_of_text>"]
    for one in answer["explain"]:
        heatmaps = np.array(one["heatmaps"])
        assert heatmaps.shape == (len(one["tokens"]), IMAGE_SIZE // 8, IMAGE_SIZE // 8)
        assert (heatmaps.max(axis=(1, 2)) == 1).all()
        assert (heatmaps.min(axis=(1, 2)) == 0).all()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "image"),
        ({"captions": CAPTIONS}, "image"),
        ({"image": URI}, "captions"),
        ({"image": URI, "captions": []}, "captions"),
        ({"image": URI, "captions": "a dog"}, "captions"),
        ({"image": URI, "captions": ["a dog", 3]}, "captions.1"),
        ({"image": URI, "captions": ["a", "b", "c", " \t"]}, "captions.3"),
        ({"image": URI, "captions": ["a", None]}, "captions.1"),
        ({"image": 3, "captions": CAPTIONS}, "image"),
        ({"image": {"what": "ever"}, "captions": CAPTIONS}, "image"),
        ({"image": URI, "captions": CAPTIONS, "explain": "perhaps"}, "explain"),
        ({"image": URI, "captions": CAPTIONS, "truncate": 3}, "truncate"),
    ],
)
def test_a_json_body_that_does_not_fit_names_the_field(client: TestClient, body: Any, param: str) -> None:
    error = error_of(client.post("/score", json=body), 422)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_what_follows_the_end_of_text_that_a_caption_spells_out_is_read(client: TestClient) -> None:
    captions = ["a <end_of_text> dog", "a"]
    answer = client.post("/score", json={"image": URI, "captions": captions, "explain": True}).json()
    spelled, plain = (one["tokens"] for one in answer["explain"])
    assert plain == ["a", "<end_of_text>"]
    assert spelled[-2:] == ["dog", "<end_of_text>"]
    assert spelled.count("<end_of_text>") == 1
    assert [len(one["heatmaps"]) for one in answer["explain"]] == [len(spelled), 2]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"image": URI, "captions": ["ok", TOO_LONG]}, 413, "captions.1"),
        ({"image": base64.b64encode(b"no image").decode(), "captions": CAPTIONS}, 400, "image"),
        ({"image": "?", "captions": CAPTIONS}, 400, "image"),
        ({"image": "http://127.0.0.1/a.png", "captions": CAPTIONS}, 400, "image"),
        ({"image": "data:text/plain;base64,aGk=", "captions": CAPTIONS}, 415, "image"),
        ({"image": URI, "captions": CAPTIONS, "model": "another"}, 404, "model"),
        ({"image": URI, "captions": ["a dog"] * 1025}, 413, "captions"),
        ({"image": URI, "captions": ["a dog"] * 65, "explain": True}, 413, "explain"),
    ],
)
def test_an_input_that_cannot_be_scored_names_itself(client: TestClient, body: Any, status: int, param: str) -> None:
    assert error_of(client.post("/score", json=body), status)["param"] == param


def test_an_image_of_a_collection_is_refused_because_this_service_keeps_none(client: TestClient) -> None:
    stored = {"id": "birds/1"}
    for body, param in (
        ({"image": stored, "captions": CAPTIONS}, "image"),
        ({"data_1": {"image": stored}, "data_2": CAPTIONS}, "data_1.image"),
    ):
        error = error_of(client.post("/v1/score", json=body), 422)
        assert error["param"] == param
        assert "has no collections" in error["message"]
    routes = client.get("/openapi.json").json()["paths"]
    assert "collection" not in str(routes["/score"])


def test_limits_are_named_with_what_was_asked(client: TestClient) -> None:
    too_long = error_of(client.post("/score", json={"image": URI, "captions": [TOO_LONG]}), 413)["message"]
    assert f"{CONTEXT_LENGTH + 2} tokens" in too_long
    assert f"at most {CONTEXT_LENGTH}" in too_long
    too_many = error_of(client.post("/score", json={"image": URI, "captions": ["a"] * 1025}), 413)["message"]
    assert "1025 captions; the limit is 1024" in too_many


def test_a_caption_is_cut_only_where_that_is_asked_for(client: TestClient) -> None:
    whole = "red " * (CONTEXT_LENGTH - 2)
    answer = client.post("/score", json={"image": URI, "captions": [TOO_LONG, whole], "truncate": True}).json()
    first, second = answer["scores"]
    assert first["score"] == second["score"]
    assert first["caption"] == TOO_LONG


def test_a_form_that_does_not_fit_names_the_part(client: TestClient) -> None:
    files = [("file", ("a.png", PHOTO))]
    assert error_of(client.post("/score", data={"captions": CAPTIONS}, files={"image": PHOTO}), 422)["param"] == "file"
    assert error_of(client.post("/score", files=files), 422)["param"] == "captions"
    assert error_of(client.post("/score", files=files * 2, data={"captions": CAPTIONS}), 413)["param"] == "file"
    captions = [("captions", ("a.txt", b"a dog"))]
    assert error_of(client.post("/score", files=files + captions), 422)["param"] == "captions.0"
    blank = client.post("/score", files=files, data={"captions": ["a dog", ""]})
    assert error_of(blank, 422)["param"] == "captions.1"
    broken = client.post("/score", files={"file": ("a.png", PHOTO[:100])}, data={"captions": CAPTIONS})
    assert error_of(broken, 400)["param"] == "file"
    unclear = client.post("/score", files=files, data={"captions": CAPTIONS, "explain": "perhaps"})
    assert error_of(unclear, 422)["param"] == "explain"


def test_captions_of_query_and_body_must_not_contradict_each_other(client: TestClient) -> None:
    body = {"image": URI, "captions": CAPTIONS}
    assert error_of(client.post("/score", params={"captions": ["a"]}, json=body), 400)["param"] == "captions"
    assert client.post("/score", params={"captions": CAPTIONS}, json=body).status_code == 200


def test_other_content_types_are_refused_saying_what_to_send(client: TestClient) -> None:
    response = client.post("/score", content=PHOTO, headers={"content-type": "application/octet-stream"})
    message = error_of(response, 415)["message"]
    assert "image/*, multipart/form-data or application/json" in message
    assert "looks like an image" in message


@pytest.mark.parametrize(
    "content",
    [b" ", b"{", b'{"captions": ["\\ud800"]}', b'{"image": NaN}', b"[" * 100_000, b'{"a":' * 100_000],
    ids=["blank", "open", "lone surrogate", "nan", "deep", "deep object"],
)
@pytest.mark.parametrize("path", ["/score", "/hard-negatives"])
def test_what_is_no_json_is_a_400(client: TestClient, path: str, content: bytes) -> None:
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert "not valid JSON" in error_of(response, 400)["message"]


def test_a_body_over_the_limit_is_refused_by_its_announced_length(client: TestClient) -> None:
    response = client.post("/score", content=b"", headers={"content-type": "image/png", "content-length": str(10**18)})
    assert error_of(response, 413)["code"] == "body_too_large"


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}@latest", "latest"])
def test_the_model_may_be_named_in_every_way_that_means_it(client: TestClient, name: str) -> None:
    body = {"image": URI, "captions": ["a dog"], "model": name}
    assert client.post("/score", json=body).status_code == 200


# --- vLLM's /v1/score ---


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_vllms_request_is_answered_in_vllms_form(client: TestClient, engine: ScoreEngine, path: str) -> None:
    response = client.post(path, json={"data_1": {"image": BASE64}, "data_2": CAPTIONS, "model": MODEL})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert set(answer) == {"id", "object", "created", "model", "data", "usage"}
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    assert {one["object"] for one in answer["data"]} == {"score"}
    scores = [one["score"] for one in answer["data"]]
    assert scores == pytest.approx(expected(engine, CAPTIONS)["score"], abs=2e-3)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    assert answer["model"] == response.headers["x-fovea-model"]


def test_vllms_other_names_and_directions_give_the_same_scores(client: TestClient) -> None:
    def scores(**body: Any) -> list[float]:
        response = client.post("/v1/score", json=body)
        assert response.status_code == 200, response.text
        return [one["score"] for one in response.json()["data"]]

    plain = pytest.approx(scores(data_1=URI, data_2=CAPTIONS), abs=1e-6)
    first = pytest.approx(scores(data_1=URI, data_2=CAPTIONS[0]) * 2, abs=1e-6)
    part = {"type": "image_url", "image_url": {"url": URI}}
    assert scores(queries={"content": [part]}, documents=CAPTIONS) == plain
    assert scores(text_1=[part] * 3, text_2=CAPTIONS) == plain
    assert scores(queries=CAPTIONS[0], items=[URI, URI]) == first


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"data_1": "a dog", "data_2": ["a cat"]}, 422, "data_2.0"),
        ({"data_1": URI, "data_2": []}, 422, "data_2"),
        ({"data_1": URI, "data_2": ["a", " "]}, 422, "data_2.1"),
        ({"data_1": URI, "data_2": ["a", "\u00a0\u200b"]}, 422, "data_2.1"),
        ({"data_1": URI, "data_2": ["a", TOO_LONG]}, 413, "data_2.1"),
        ({"data_1": URI, "data_2": ["a"] * 1025}, 413, "data_2"),
        ({"data_1": "a", "data_2": [URI] * 65}, 413, "data_2"),
        ({"data_1": {"image": "aGk="}, "data_2": ["a"]}, 400, "data_1.image"),
        ({"data_1": URI, "data_2": ["a"], "truncate_prompt_tokens": 5}, 422, "truncate_prompt_tokens"),
        ({"data_1": URI, "data_2": ["a"], "model": "another"}, 404, "model"),
    ],
)
def test_vllms_errors_name_the_field(client: TestClient, body: Any, status: int, param: str) -> None:
    assert error_of(client.post("/v1/score", json=body), status)["param"] == param


def test_vllms_truncation_cuts_at_the_context_length(client: TestClient) -> None:
    body = {"data_1": URI, "data_2": [TOO_LONG], "truncate_prompt_tokens": -1}
    assert client.post("/v1/score", json=body).status_code == 200


# --- /hard-negatives ---

CAPTION = "A small red circle is left of two blue squares."
KINDS = ["negclip", "replace", "bigram_shuffle", "relation", "negate"]


@pytest.mark.parametrize("path", ["/hard-negatives", "/v1/hard-negatives"])
def test_a_caption_is_made_false_in_each_way_that_is_asked_for(client: TestClient, path: str) -> None:
    response = client.post(path, json={"caption": CAPTION, "kinds": KINDS, "seed": 3})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["caption"] == CAPTION
    assert [one["kind"] for one in answer["negatives"]] == KINDS
    texts = [one["text"] for one in answer["negatives"]]
    assert CAPTION not in texts
    assert sorted(texts[2].lower().strip(".").split()) == sorted(CAPTION.lower().strip(".").split())
    assert "negatives;dur=" in response.headers["server-timing"]


def test_the_papers_three_kinds_are_made_where_none_is_named(client: TestClient) -> None:
    answer = client.post("/hard-negatives", json={"caption": CAPTION}).json()
    assert [one["kind"] for one in answer["negatives"]] == KINDS[:3]


def test_equal_seeds_make_equal_negatives_and_others_make_others(client: TestClient) -> None:
    def texts(seed: int, kinds: Sequence[str] = KINDS) -> dict[str, str]:
        answer = client.post("/hard-negatives", json={"caption": CAPTION, "kinds": kinds, "seed": seed}).json()
        return {one["kind"]: one["text"] for one in answer["negatives"]}

    assert texts(1) == texts(1)
    assert texts(1)["replace"] == texts(1, ["replace"])["replace"]
    assert len({str(texts(seed)) for seed in range(8)}) > 1


def test_a_kind_without_a_counterpart_is_left_out_and_a_kind_named_twice_is_answered_once(client: TestClient) -> None:
    answer = client.post("/hard-negatives", json={"caption": "dog", "kinds": ["relation", "bigram_shuffle"]}).json()
    assert answer == {"caption": "dog", "negatives": []}
    answer = client.post("/hard-negatives", json={"caption": CAPTION, "kinds": ["relation", "relation"]}).json()
    assert len(answer["negatives"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "caption"),
        ({"caption": 3}, 422, "caption"),
        ({"caption": " "}, 422, "caption"),
        ({"caption": "\u200b"}, 422, "caption"),
        ({"captions": [CAPTION, "\u3164"]}, 422, "captions.1"),
        ({"caption": "x" * 1001}, 413, "caption"),
        ({"caption": CAPTION, "kinds": []}, 422, "kinds"),
        ({"caption": CAPTION, "kinds": "negclip"}, 422, "kinds"),
        ({"caption": CAPTION, "kinds": ["negclip", "rot13"]}, 422, "kinds.1"),
        ({"caption": CAPTION, "seed": -1}, 422, "seed"),
        ({"caption": CAPTION, "seed": 2**63}, 422, "seed"),
        ({"caption": CAPTION, "seed": 0.5}, 422, "seed"),
    ],
)
def test_what_makes_no_negatives_is_named(client: TestClient, body: Any, status: int, param: str) -> None:
    assert error_of(client.post("/hard-negatives", json=body), status)["param"] == param


def test_an_unknown_kind_is_told_which_there_are(client: TestClient) -> None:
    message = error_of(client.post("/hard-negatives", json={"caption": "a", "kinds": ["rot13"]}), 422)["message"]
    assert all(kind in message for kind in KINDS)


# --- what is served ---


def test_models_lists_the_served_checkpoint_with_its_limits(client: TestClient, engine: ScoreEngine) -> None:
    listing = client.get("/v1/models").json()
    (model,) = listing["data"]
    assert (model["id"], model["kind"]) == (MODEL, "fsc-clip")
    assert model["max_model_len"] == CONTEXT_LENGTH
    assert model["image_size"] == [IMAGE_SIZE, IMAGE_SIZE]
    assert model["resize_mode"] == "shortest"
    assert model["patches"] == [4, 4]
    assert model["logit_scale"] == engine.logit_scale
    assert model["limits"]["max_captions"] == 1024
    assert model["hard_negatives"]["kinds"] == KINDS
    assert model["hard_negatives"]["sources"]["tagger"]
    for name in (MODEL, f"{MODEL}@{model['version']}", f"{MODEL}@latest"):
        assert client.get(f"/v1/models/{name}").json() == model
    assert client.get("/models").json() == listing
    error_of(client.get("/v1/models/another"), 404)


def test_the_openapi_document_describes_every_form_of_a_body(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    content = paths["/score"]["post"]["requestBody"]["content"]
    assert set(content) == {"image/*", "multipart/form-data", "application/json"}
    assert {"/score", "/hard-negatives", "/v1/models"} <= set(paths)


# --- how it starts, and what changes while it serves ---


@pytest.mark.slow
def test_a_new_version_answers_as_soon_as_it_is_published(tmp_path: Path) -> None:
    store_url = publish_tiny(tmp_path)
    ask: dict[str, Any] = {"json": {"image": URI, "captions": CAPTIONS}}
    with served_tiny(store_url, tmp_path, store_poll_s=0.05) as client:
        before = client.post("/score", **ask).json()
        version = publish(store_url, write_tiny_checkpoint(tmp_path / "other", seed=1, local_weight=1.0))
        wait_until_ready(lambda: client.get("/v1/models").json()["data"][0]["version"] == version)
        after = client.post("/score", **ask)
        other = ScoreEngine.load(tmp_path / "other", DeviceOptions(device="cpu", dtype="float32"))
        answer = assert_answered(after, other, CAPTIONS)
        assert [one["score"] for one in answer["scores"]] == [one["local"] for one in answer["scores"]]
        assert answer["scores"] != before["scores"]
        assert after.headers["x-fovea-model"] == f"{MODEL}@{version}"


@pytest.mark.slow
def test_a_checkpoint_that_answers_no_numbers_is_refused_while_negatives_are_made(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "broken")
    weights = load_file(folder / OPEN_CLIP_WEIGHTS)
    weights["visual.proj"].fill_(float("nan"))
    save_file(weights, folder / OPEN_CLIP_WEIGHTS)
    store_url = (tmp_path / "store").as_uri()
    publish(store_url, folder)
    with served_tiny(store_url, tmp_path, probe="/startupz") as client:
        report = client.get("/readyz")
        assert report.status_code == 503
        assert "BrokenModel" in report.json()["checks"][f"checkpoint {MODEL}"]["detail"]
        error = error_of(client.post("/score", json={"image": URI, "captions": CAPTIONS}), 503)
        assert error["code"] == "loading"
        assert client.get("/v1/models").status_code == 503
        assert client.post("/hard-negatives", json={"caption": CAPTION}).status_code == 200


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("another kind", "and this service runs fsc-clip and open-clip checkpoints"),
        ("no weight", "it did not load"),
        ("no vit", "it did not load"),
    ],
)
@pytest.mark.slow
def test_a_checkpoint_that_can_not_score_is_refused(tmp_path: Path, damage: str, told: str) -> None:
    folder = write_tiny_checkpoint(tmp_path / "checkpoint")
    if damage == "no weight":
        (folder / "fsc_clip.json").write_text('{"local_weight": 2}')
    if damage == "no vit":
        (folder / "open_clip_config.json").write_text("{}")
    store_url = (tmp_path / "store").as_uri()
    publish(store_url, folder, kind="focallens-clip" if damage == "another kind" else "fsc-clip")
    with served_tiny(store_url, tmp_path, probe="/startupz") as client:
        assert told in client.get("/readyz").json()["checks"][f"checkpoint {MODEL}"]["detail"]


@pytest.mark.slow
def test_limits_are_settings_and_inclusive(store_url: str, folder: Path, tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "max_captions": 4,
        "max_images": 2,
        "max_explained_captions": 2,
        "max_heatmap_numbers": 6 * 16,
        "max_negative_characters": 5,
        "max_image_pixels": 1000,
    }
    with served_tiny(store_url, tmp_path, **limits) as client:
        image = base64.b64encode(encode(scene((20, 20)), "PNG")).decode()

        def status(captions: Sequence[str], **options: Any) -> int:
            return client.post("/score", json={"image": image, "captions": captions, **options}).status_code

        assert client.get("/v1/models").json()["data"][0]["limits"]["max_captions"] == 4
        assert (status(["a"] * 4), status(["a"] * 5)) == (200, 413)
        assert (status(["a dog", "a cat"], explain=True), status(["a"] * 3, explain=True)) == (200, 413)
        assert status(["a dog", "a red cat"], explain=True) == 413
        two, three = (client.post("/score", json={"data_1": "a", "data_2": [image] * num}) for num in (2, 3))
        assert two.status_code == 200
        assert error_of(three, 413)["message"] == "data_2: The request asks for 3 images; the limit is 2."
        assert client.post("/score", json={"image": URI, "captions": ["a"]}).status_code == 413
        negatives = [client.post("/hard-negatives", json={"caption": "x" * num}) for num in (5, 6)]
        assert [response.status_code for response in negatives] == [200, 413]


@pytest.mark.slow
def test_image_urls_that_lead_to_this_machine_are_refused_where_urls_are_on(store_url: str, tmp_path: Path) -> None:
    with served_tiny(store_url, tmp_path, image_urls=True) as client:
        for url in ("http://127.0.0.1/a.png", "http://localhost/a.png"):
            error = error_of(client.post("/score", json={"image": url, "captions": ["a"]}), 400)
            assert error["code"] in ("image_url_not_allowed", "image_fetch_failed")


def test_a_process_without_settings_has_defaults_that_fit_together() -> None:
    settings = ScoreSettings()
    assert settings.port == 8104
    assert settings.max_captions == 1024
    assert settings.max_explained_captions <= settings.max_captions
    assert ScoreSettings(wordnet_dir=Path("~/wordnet")).wordnet_dir == Path.home() / "wordnet"
