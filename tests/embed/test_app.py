"""The embed service over HTTP: every form of a request, its answer, and everything that is refused."""

import base64
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.app import create_embed
from services.embed.model.focallens_engine import FOCALLENS_WEIGHTS, FocalLensEngine
from services.embed.model.items import Embeddings
from services.embed.outputs import quantised
from services.embed.settings import EmbedSettings
from services.nn.clip_texts import Text
from services.nn.devices import DeviceOptions
from tests.core.image_files import encode, scene
from tests.core.trace_collector import gen_ai_told
from tests.embed.tiny import CONTEXT_LENGTH, EMBEDDING_WIDTH, wait_until_ready, write_tiny_checkpoint

MODEL = "tiny"
COLOR = "What is the color of the object?"
SHAPE = "Which shape?"
TOO_LONG = "red " * CONTEXT_LENGTH
PHOTO = encode(scene(), "PNG")
OTHER = encode(scene().rotate(90, expand=True), "PNG")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> FocalLensEngine:
    """The engine with whose answers the service must answer."""
    return FocalLensEngine.load(checkpoint, DeviceOptions(device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def settings(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbedSettings:
    folder = tmp_path_factory.mktemp("embed")
    store_url = (folder / "store").as_uri()
    Store.open(store_url).publish(MODEL, checkpoint, CheckpointInfo(kind="focallens-clip"))
    return EmbedSettings(
        store_url=store_url,
        checkpoint_cache_dir=folder / "checkpoints",
        collections_dir=folder / "collections",
        models=(MODEL,),
        device="cpu",
        max_body_bytes=2**20,
    )


@pytest.fixture(scope="module")
def client(settings: EmbedSettings) -> Iterator[TestClient]:
    with TestClient(create_embed(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client


def data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def of_images(engine: FocalLensEngine, images: Sequence[bytes], conditions: Sequence[str | None]) -> Embeddings:
    """Return the engine's own answers for each image under each condition."""
    texts: list[Text | None] = [None if c is None else engine.prepare_text(c) for c in conditions]
    pictures = {PHOTO: scene(), OTHER: scene().rotate(90, expand=True)}
    items = [item for data in images for item in engine.prepare_image(pictures[data], str(hash(data)), texts)]
    return np.concatenate([reading.rows for reading in engine.run_batch(items)])


def of_texts(engine: FocalLensEngine, texts: Sequence[str]) -> Embeddings:
    readings = engine.run_batch([engine.prepare_text(text) for text in texts])
    return np.concatenate([reading.rows for reading in readings])


def rows_of(response: Any) -> Embeddings:
    assert response.status_code == 200, response.text
    return np.array([entry["embedding"] for entry in response.json()["data"]], dtype=np.float32)


def assert_same(actual: Embeddings, expected: Embeddings) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < 1e-5


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- /embed ---


@pytest.mark.slow
def test_an_image_as_the_body_is_embedded_under_the_condition_of_the_query(
    client: TestClient, engine: FocalLensEngine
) -> None:
    response = client.post("/embed", params={"condition": COLOR}, content=PHOTO, headers={"content-type": "image/png"})
    assert_same(rows_of(response), of_images(engine, [PHOTO], [COLOR]))
    body = response.json()
    num_tokens = engine.prepare_text(COLOR).num_tokens
    assert re.fullmatch(rf"{MODEL}@[0-9a-f]{{12}}", body["model"])
    assert body["object"] == "list"
    assert body["usage"] == {"images": 1, "prompt_tokens": num_tokens, "total_tokens": num_tokens}
    entry = body["data"][0]
    assert (entry["object"], entry["index"], entry["condition"]) == ("embedding", 0, COLOR)


def test_a_large_jpeg_is_embedded_as_decoding_made_it_smaller(client: TestClient, engine: FocalLensEngine) -> None:
    photograph = Image.fromarray(skimage.data.coffee()).resize((1600, 1200))  # type: ignore[no-untyped-call]
    file = encode(photograph, "JPEG")
    response = client.post("/embed", content=file, headers={"content-type": "image/jpeg"})
    smaller, whole = (
        engine.run_batch(engine.prepare_image(decode_image(file, ImageLimits(), side=side), str(side), [None]))[0].rows
        for side in (engine.image_side, None)
    )
    assert_same(rows_of(response), smaller)
    assert np.abs(smaller - whole).max() > 1e-4
    assert (smaller * whole).sum() > 0.999


def test_the_response_names_its_checkpoint_its_request_and_its_times(client: TestClient) -> None:
    image = encode(scene((33, 44)), "PNG")
    response = client.post("/embed", content=image, headers={"content-type": "image/png", "x-request-id": "mine"})
    assert response.headers["x-fovea-model"] == response.json()["model"]
    assert response.headers["x-request-id"] == "mine"
    timing = response.headers["server-timing"]
    assert re.search(r"queue;dur=\d+\.\d+", timing)
    assert re.search(r"infer;dur=\d+\.\d+", timing)


def test_no_condition_gives_the_unconditional_embedding(client: TestClient, engine: FocalLensEngine) -> None:
    response = client.post("/embed", content=PHOTO, headers={"content-type": "image/png"})
    assert_same(rows_of(response), of_images(engine, [PHOTO], [None]))
    assert response.json()["data"][0]["condition"] is None


def test_several_files_under_several_conditions_come_back_image_by_image(
    client: TestClient, engine: FocalLensEngine
) -> None:
    response = client.post(
        "/embed",
        params={"condition": [COLOR, SHAPE]},
        files=[("file", ("a.png", PHOTO, "image/png")), ("file", ("b.png", OTHER, "image/png"))],
    )
    assert_same(rows_of(response), of_images(engine, [PHOTO, OTHER], [COLOR, SHAPE]))
    data = response.json()["data"]
    assert [entry["condition"] for entry in data] == [COLOR, SHAPE, COLOR, SHAPE]
    assert [entry["index"] for entry in data] == [0, 1, 2, 3]
    assert response.json()["usage"]["images"] == 2


def test_a_form_may_carry_condition_and_format_as_fields(client: TestClient, engine: FocalLensEngine) -> None:
    response = client.post(
        "/embed",
        data={"condition": [COLOR, SHAPE], "encoding_format": "base64"},
        files=[("file", ("a.png", PHOTO, "image/png"))],
    )
    rows = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in response.json()["data"]]
    assert_same(np.stack(rows), of_images(engine, [PHOTO], [COLOR, SHAPE]))


def test_json_images_come_before_texts_and_no_condition_touches_a_text(
    client: TestClient, engine: FocalLensEngine
) -> None:
    body: dict[str, Any] = {
        "texts": ["a red square", "a blue circle"],
        "images": [data_uri(PHOTO), base64.b64encode(OTHER).decode()],
        "condition": [COLOR, SHAPE],
    }
    response = client.post("/embed", json=body)
    images = of_images(engine, [PHOTO, OTHER], [COLOR, SHAPE])
    assert_same(rows_of(response), np.concatenate([images, of_texts(engine, body["texts"])]))
    conditions = [entry["condition"] for entry in response.json()["data"]]
    assert conditions == [COLOR, SHAPE, COLOR, SHAPE, None, None]


@pytest.mark.parametrize(
    "options",
    [
        {"json": {"texts": ["a red square"], "conditon": COLOR}},
        {"data": {"conditon": COLOR}, "files": {"file": PHOTO}},
        {"params": {"conditon": COLOR}, "files": {"file": PHOTO}},
        {"params": {"conditon": COLOR}, "content": PHOTO, "headers": {"content-type": "image/png"}},
    ],
)
def test_a_misspelt_condition_is_refused_in_every_form(client: TestClient, options: dict[str, Any]) -> None:
    error = error_of(client.post("/embed", **options), 422)
    assert error["param"] == "conditon"
    assert error["message"] == "conditon: Unknown field; the nearest that is known is condition."


@pytest.mark.parametrize(
    ("path", "field", "nearest"),
    [
        ("/v1/embeddings", "output_dtyp", "output_dtype"),
        ("/v1/embeddings", "dimension", "dimensions"),
        ("/v1/embeddings", "embedding_types", "embedding_type"),
        ("/v1/embeddings", "encoding_formt", "encoding_format"),
        ("/v2/embed", "embedding_type", "embedding_types"),
        ("/v2/embed", "output_dimensions", "output_dimension"),
        ("/v2/embed", "dimensions", "output_dimension"),
        ("/v2/embed", "output_dtype", "embedding_types"),
        ("/v2/embed", "truncat", "truncate"),
    ],
)
def test_a_field_spelt_nearly_right_is_refused_on_the_routes_of_others(
    client: TestClient, path: str, field: str, nearest: str
) -> None:
    body = {"input": "ok"} if path == "/v1/embeddings" else {"texts": ["ok"]}
    for value in (8, None):
        error = error_of(client.post(path, json={**body, field: value}), 422)
        assert (error["param"], error["message"].partition("nearest that is known is ")[2]) == (field, f"{nearest}.")


def test_fields_that_clients_of_others_send_are_ignored(client: TestClient) -> None:
    ignored = {"input_type": "document", "task": "retrieval.query", "priority": 0, "request_id": "a", "dtype": "x"}
    harmless = {"embed_dtype": "float32", "endianness": "native", "truncate": False, "late_chunking": False}
    assert client.post("/v1/embeddings", json={"input": "ok", **ignored, **harmless}).status_code == 200
    assert client.post("/v2/embed", json={"texts": ["ok"], "input_type": "x", "priority": 1}).status_code == 200


def test_teis_fields_spelt_nearly_right_are_refused_in_its_own_form(client: TestClient) -> None:
    response = client.post("/embed", json={"inputs": "ok", "dimension": 8})
    assert response.status_code == 422
    assert response.json()["error"] == "dimension: Unknown field; the nearest that is known is dimensions."


def test_openais_and_teis_requests_may_have_fields_that_nobody_knows(client: TestClient) -> None:
    unknown = {"user": "somebody", "a field that nobody knows": 1, "normalized": True, "truncate_prompt_tokens": None}
    assert client.post("/v1/embeddings", json={"input": "ok", **unknown}).status_code == 200
    assert client.post("/embed", json={"inputs": "ok", "a field that nobody knows": 1}).status_code == 200


def test_base64_is_the_little_endian_float32_of_the_same_numbers(client: TestClient) -> None:
    body = {"images": [data_uri(PHOTO)], "condition": COLOR}
    as_floats = rows_of(client.post("/embed", json=body))
    response = client.post("/embed", params={"encoding_format": "base64"}, json=body)
    decoded = np.frombuffer(base64.b64decode(response.json()["data"][0]["embedding"]), dtype="<f4")
    assert (decoded == as_floats[0]).all()


def part(content: bytes | str) -> dict[str, Any]:
    """Write a part of one of Cohere's inputs: a text, or an image."""
    if isinstance(content, str):
        return {"type": "text", "text": content}
    return {"type": "image_url", "image_url": {"url": data_uri(content)}}


def of_inputs(client: TestClient, *inputs: Sequence[bytes | str], **fields: Any) -> Any:
    """Ask Cohere's route for inputs of these parts."""
    contents = [{"content": [part(one) for one in parts]} for parts in inputs]
    return client.post("/v2/embed", json={"inputs": contents, "input_type": "search_document", **fields})


def test_a_text_beside_an_image_of_coheres_inputs_is_that_images_own_condition(
    client: TestClient, engine: FocalLensEngine
) -> None:
    answer = of_inputs(client, [COLOR, PHOTO], ["round"], [PHOTO], [OTHER, SHAPE], [PHOTO, SHAPE]).json()
    expected = [
        of_images(engine, [PHOTO], [COLOR]),
        of_texts(engine, ["round"]),
        of_images(engine, [PHOTO], [None]),
        of_images(engine, [OTHER], [SHAPE]),
        of_images(engine, [PHOTO], [SHAPE]),
    ]
    assert_same(np.array(answer["embeddings"]["float"], np.float32), np.concatenate(expected))
    num_tokens = sum(engine.prepare_text(text).num_tokens for text in (COLOR, "round", SHAPE, SHAPE))
    assert answer["meta"]["billed_units"] == {"images": 4, "input_tokens": num_tokens}
    assert answer["texts"] == ["round"]


@pytest.mark.parametrize("parts", [[PHOTO, OTHER], ["round", "red"], [PHOTO, "round", "red"], [PHOTO, OTHER, "red"]])
def test_several_images_or_texts_in_one_of_coheres_inputs_are_refused_by_name(client: TestClient, parts: Any) -> None:
    error = error_of(of_inputs(client, ["ok"], parts), 400)
    assert error["param"] == "inputs.1.content"
    assert "One embedding is of one text, one image, or one image and one text" in error["message"]


def test_errors_of_coheres_inputs_name_the_part(client: TestClient) -> None:
    assert error_of(of_inputs(client, [PHOTO, TOO_LONG]), 413)["param"] == "inputs.0.content.1.text"
    assert of_inputs(client, [PHOTO, TOO_LONG], truncate="END").status_code == 200
    assert error_of(of_inputs(client, ["ok"], [b"no image", "red"]), 400)["param"] == "inputs.1.content.0"
    assert error_of(of_inputs(client, [PHOTO, "\u200b"]), 422)["param"] == "inputs.0.content.1.text"
    error = error_of(of_inputs(client, [PHOTO], [COLOR, OTHER], condition=SHAPE), 400)
    assert error["param"] == "inputs.1.content.0.text"
    assert "takes the place of a condition" in error["message"]
    video = {"inputs": [{"content": [{"type": "video_url"}]}], "input_type": "search_document"}
    assert error_of(client.post("/v2/embed", json=video), 422)["param"] == "inputs.0.content.0"


@pytest.mark.parametrize("form", ["int8", "uint8", "binary", "ubinary"])
def test_every_route_and_client_names_integers_its_own_way_and_gets_the_same(client: TestClient, form: Any) -> None:
    texts = ["a red square", "round"]
    expected = quantised(rows_of(client.post("/embed", json={"texts": texts})), form).tolist()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/embed", {"texts": texts, "encoding_format": form}),
        (f"/embed?encoding_format={form}", {"texts": texts}),
        ("/v1/embeddings", {"input": texts, "encoding_format": form}),
        ("/v1/embeddings", {"input": texts, "output_dtype": form}),
        ("/v1/embeddings", {"input": texts, "output_dtype": form, "encoding_format": "base64"}),
        ("/v1/embeddings", {"input": texts, "embedding_type": form}),
        ("/v1/embeddings", {"input": texts, "embedding_type": [form], "encoding_format": form}),
    ]
    for path, body in asked:
        assert [one["embedding"] for one in client.post(path, json=body).json()["data"]] == expected, (path, body)
    for path in ("/embed", "/v2/embed"):
        answer = client.post(path, json={"texts": texts, "input_type": "x", "embedding_types": [form, "float"]}).json()
        assert answer["embeddings"][form] == expected
        assert quantised(np.array(answer["embeddings"]["float"], np.float32), form).tolist() == expected


def test_a_result_computed_before_is_answered_without_computing(client: TestClient) -> None:
    image = encode(scene((55, 66)), "PNG")
    send: dict[str, Any] = {"content": image, "headers": {"content-type": "image/png"}}
    first = client.post("/embed", params={"condition": [COLOR, SHAPE]}, **send)
    again = client.post("/embed", params={"condition": [SHAPE]}, **send)
    assert (rows_of(again)[0] == rows_of(first)[1]).all()
    assert "infer" in first.headers["server-timing"]
    assert "infer" not in again.headers.get("server-timing", "")
    only_the_new_condition = client.post("/embed", params={"condition": [COLOR, "How large?", SHAPE]}, **send)
    assert_same(rows_of(only_the_new_condition)[[0, 2]], rows_of(first))


def test_equal_inputs_of_one_call_get_equal_answers(client: TestClient) -> None:
    rows = rows_of(client.post("/embed", json={"texts": ["one", "two", "one"], "images": [data_uri(PHOTO)] * 2}))
    assert (rows[0] == rows[1]).all()
    assert (rows[2] == rows[4]).all()
    assert not (rows[2] == rows[3]).all()


@pytest.mark.parametrize(
    ("content_type", "content", "hint"),
    [
        ("application/x-www-form-urlencoded", PHOTO, "looks like an image"),
        ("application/octet-stream", PHOTO, "looks like an image"),
        ("", PHOTO, "has no content type"),
        ("text/plain", b"hello", "not text/plain"),
        ("application/xml", b"<a/>", "not application/xml"),
    ],
)
def test_other_content_types_are_refused_saying_what_to_send(
    client: TestClient, content_type: str, content: bytes, hint: str
) -> None:
    error = error_of(client.post("/embed", content=content, headers={"content-type": content_type}), 415)
    assert error["type"] == "unsupported_media_type"
    assert hint in error["message"]
    assert "image/*" in error["message"]


def test_the_charset_of_a_content_type_is_ignored(client: TestClient) -> None:
    response = client.post(
        "/embed", content=b'{"texts": ["ok"]}', headers={"content-type": "Application/JSON; charset=klingon"}
    )
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "images"),
        ({"images": [], "texts": []}, "images"),
        ({"texts": "one"}, "texts"),
        ({"texts": ["ok", 3]}, "texts.1"),
        ({"images": [3]}, "images.0"),
        ({"images": [{"what": "ever"}]}, "images.0"),
        ({"texts": ["ok"], "condition": 3}, "condition"),
        ({"texts": ["ok"], "encoding_format": "float16"}, "encoding_format"),
        ({"texts": None}, "texts"),
    ],
)
def test_a_json_body_that_does_not_fit_names_the_field(client: TestClient, body: Any, param: str) -> None:
    error = error_of(client.post("/embed", json=body), 422)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"texts": ["ok", TOO_LONG]}, 413, "texts.1"),
        ({"texts": ["ok", " "]}, 422, "texts.1"),
        ({"texts": ["ok", "\u00a0\u200b"]}, 422, "texts.1"),
        ({"images": [data_uri(PHOTO)], "condition": TOO_LONG}, 413, "condition"),
        ({"images": [data_uri(PHOTO)], "condition": ["ok", ""]}, 422, "condition.1"),
        ({"images": [data_uri(PHOTO)], "condition": ["ok", "\u200b"]}, 422, "condition.1"),
        ({"images": [data_uri(PHOTO), data_uri(b"no image")]}, 400, "images.1"),
        ({"images": ["http://127.0.0.1/a.png"]}, 400, "images.0"),
        ({"images": [{"id": "birds/1"}]}, 404, "images.0"),
        ({"texts": ["ok"], "model": "another"}, 404, "model"),
    ],
)
def test_an_input_that_cannot_be_embedded_names_itself(client: TestClient, body: Any, status: int, param: str) -> None:
    assert error_of(client.post("/embed", json=body), status)["param"] == param


def test_a_text_over_the_context_length_names_limit_and_value(client: TestClient) -> None:
    message = error_of(client.post("/embed", json={"texts": [TOO_LONG]}), 413)["message"]
    assert f"{CONTEXT_LENGTH + 2} tokens" in message
    assert f"at most {CONTEXT_LENGTH}" in message


def test_a_broken_file_among_others_is_named(client: TestClient) -> None:
    files = [("file", ("a.png", PHOTO)), ("file", ("b.png", PHOTO[:100])), ("file", ("c.png", PHOTO))]
    assert error_of(client.post("/embed", files=files), 400)["param"] == "file.1"


def test_more_conditions_than_the_limit_are_refused(client: TestClient) -> None:
    conditions = [f"condition {number}" for number in range(65)]
    error = error_of(client.post("/embed", params={"condition": conditions}, files={"file": PHOTO}), 413)
    assert error["param"] == "condition"
    assert "65 conditions; the limit is 64" in error["message"]


def test_more_inputs_than_the_limit_are_refused(client: TestClient) -> None:
    error = error_of(client.post("/embed", json={"texts": ["a"] * 4097}), 413)
    assert error["param"] == "texts"
    assert "4097 inputs; the limit is 4096" in error["message"]


def test_a_form_without_a_file_part_is_refused(client: TestClient) -> None:
    assert error_of(client.post("/embed", files={"image": PHOTO}), 422)["param"] == "file"
    assert error_of(client.post("/embed", files={"file": (None, "text")}), 422)["param"] == "file.0"


def test_contradictions_between_query_and_body_are_refused(client: TestClient) -> None:
    body = {"images": [data_uri(PHOTO)], "condition": COLOR}
    assert error_of(client.post("/embed", params={"condition": SHAPE}, json=body), 400)["param"] == "condition"
    assert client.post("/embed", params={"condition": COLOR}, json=body).status_code == 200


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}@latest", "latest"])
def test_the_model_may_be_named_in_every_way_that_means_it(client: TestClient, name: str) -> None:
    assert client.post("/embed", params={"model": name}, json={"texts": ["ok"]}).status_code == 200
    version = client.get("/v1/models").json()["data"][0]["version"]
    assert client.post("/embed", json={"texts": ["ok"], "model": f"{MODEL}@{version}"}).status_code == 200


# --- TEI's /embed ---


def test_tei_requests_are_answered_with_nothing_but_numbers(client: TestClient, engine: FocalLensEngine) -> None:
    texts = ["a red square", "a blue circle"]
    response = client.post("/embed", json={"inputs": texts, "truncate": True, "normalize": True})
    assert_same(np.array(response.json(), dtype=np.float32), of_texts(engine, texts))
    single = client.post("/embed", json={"inputs": texts[0]}).json()
    assert_same(np.array(single, dtype=np.float32), of_texts(engine, texts[:1]))


def test_tei_answers_carry_its_measurements(client: TestClient) -> None:
    headers = client.post("/embed", json={"inputs": ["ab", "cde"]}).headers
    assert headers["x-compute-characters"] == "5"
    assert int(headers["x-compute-tokens"]) >= 6
    for name in ("x-total-time", "x-compute-time", "x-queue-time", "x-inference-time", "x-tokenization-time"):
        assert headers[name].isdecimal()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"inputs": TOO_LONG}, 413),
        ({"inputs": TOO_LONG, "truncate": False}, 413),
        ({"inputs": []}, 400),
        ({"inputs": [""]}, 422),
        ({"inputs": ["ok", "\u200b"]}, 422),
        ({"inputs": [1, 2, 3]}, 400),
        ({"inputs": "ok", "normalize": False}, 422),
        ({"inputs": "ok", "dimensions": 8}, 422),
        ({"inputs": "ok", "prompt_name": "query"}, 422),
        ({"inputs": TOO_LONG, "truncate": True, "truncation_direction": "Left"}, 422),
        ({"inputs": None}, 422),
    ],
)
def test_tei_errors_have_the_shape_of_tei(client: TestClient, fields: Any, status: int) -> None:
    response = client.post("/embed", json=fields)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "error_type"}
    assert response.json()["error_type"] == "Validation"


def test_tei_truncates_only_where_it_is_asked_to(client: TestClient, engine: FocalLensEngine) -> None:
    response = client.post("/embed", json={"inputs": TOO_LONG, "truncate": True, "dimensions": EMBEDDING_WIDTH})
    whole = "red " * (CONTEXT_LENGTH - 2)
    assert_same(np.array(response.json(), dtype=np.float32), of_texts(engine, [whole]))


# --- /v1/embeddings ---


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_openai_requests_embed_texts_with_and_without_the_version_prefix(
    client: TestClient, engine: FocalLensEngine, path: str
) -> None:
    texts = ["a red square", "a blue circle"]
    response = client.post(path, json={"model": MODEL, "input": texts, "user": "me"})
    assert_same(rows_of(response), of_texts(engine, texts))
    num_tokens = sum(engine.prepare_text(text).num_tokens for text in texts)
    assert response.json()["usage"] == {"images": 0, "prompt_tokens": num_tokens, "total_tokens": num_tokens}


def test_openai_inputs_may_be_images_under_a_condition(client: TestClient, engine: FocalLensEngine) -> None:
    response = client.post(
        "/v1/embeddings",
        json={"input": [{"image": data_uri(PHOTO)}, "a red square", {"text": "round"}], "condition": COLOR},
    )
    expected = [of_images(engine, [PHOTO], [COLOR]), of_texts(engine, ["a red square", "round"])]
    assert_same(rows_of(response), np.concatenate(expected))


@pytest.mark.parametrize("tokens", [[57668, 53901], [[57668, 53901], [1]]])
def test_token_ids_are_refused_naming_the_option_that_stops_them(client: TestClient, tokens: Any) -> None:
    error = error_of(client.post("/v1/embeddings", json={"model": MODEL, "input": tokens}), 400)
    assert "check_embedding_ctx_length=False" in error["message"]
    assert error["param"] == "input"


def test_infinitys_modality_makes_images_of_strings(client: TestClient, engine: FocalLensEngine) -> None:
    body = {"input": [data_uri(PHOTO), base64.b64encode(OTHER).decode()], "modality": "image", "condition": COLOR}
    response = client.post("/v1/embeddings", json=body)
    assert_same(rows_of(response), of_images(engine, [PHOTO, OTHER], [COLOR]))
    one = client.post("/v1/embeddings", json={"input": data_uri(PHOTO), "modality": "image"})
    assert_same(rows_of(one), of_images(engine, [PHOTO], [None]))


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": "ok", "modality": "image"}, 400, "input"),
        ({"input": "ok", "modality": "audio"}, 422, "modality"),
        ({}, 422, "input"),
        ({"input": []}, 422, "input"),
        ({"input": ""}, 422, "input"),
        ({"input": ["ok", "\u200b"]}, 422, "input.1"),
        ({"input": ["ok", TOO_LONG]}, 413, "input.1"),
        ({"input": ["ok", None]}, 422, "input.1"),
        ({"input": [{"text": "a", "image": "b"}]}, 422, "input.0"),
        ({"input": [{}]}, 422, "input.0"),
        ({"input": [{"image": "?"}]}, 400, "input.0.image"),
        ({"input": "ok", "dimensions": 8}, 422, "dimensions"),
        ({"input": "ok", "output_dimension": 8}, 422, "output_dimension"),
        ({"input": "ok", "output_dtype": "int4"}, 422, "output_dtype"),
        ({"input": "ok", "output_dtype": "int8", "encoding_format": "binary"}, 400, "output_dtype"),
        ({"input": "ok", "output_dtype": "float", "encoding_format": "binary"}, 400, "output_dtype"),
        ({"input": "ok", "embedding_type": ["float", "int8"]}, 422, "embedding_type"),
        ({"input": "ok", "encoding_format": "float16"}, 422, "encoding_format"),
        ({"input": "ok", "dimensions": 0}, 422, "dimensions"),
        ({"input": "ok", "conditions": COLOR}, 422, "conditions"),
        ({"input": "ok", "truncate_prompt_tokens": 5}, 400, "truncate_prompt_tokens"),
        ({"input": "ok", "normalized": False}, 400, "normalized"),
        ({"input": "ok", "encoding_format": "base64", "embed_dtype": "float16"}, 400, "embed_dtype"),
        ({"input": "ok", "encoding_format": "base64", "endianness": "big"}, 400, "endianness"),
        ({"input": "ok", "model": "text-embedding-3-small"}, 404, "model"),
    ],
)
def test_openai_errors_name_the_field(client: TestClient, body: Any, status: int, param: str) -> None:
    assert error_of(client.post("/v1/embeddings", json=body), status)["param"] == param


def test_fewer_dimensions_than_a_model_was_trained_for_are_refused_with_what_can_be_done(client: TestClient) -> None:
    told = (
        f": tiny gives {EMBEDDING_WIDTH} numbers: its checkpoint does not say that it was trained for fewer "
        "(Matryoshka). If it was, import it with --dimensions; embeddings as int8 or binary are smaller, too."
    )
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/embed", {"texts": ["ok"], "dimensions": 8}),
        ("/v1/embeddings", {"input": "ok", "dimensions": 8}),
        ("/v1/embeddings", {"input": "ok", "output_dimension": 8}),
        ("/v2/embed", {"texts": ["ok"], "output_dimension": 8}),
    ]
    for path, body in asked:
        error, field = error_of(client.post(path, json=body), 422), list(body)[-1]
        assert (error["param"], error["message"]) == (field, field + told)
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["matryoshka_dimensions"], model["decides"]) == (None, False)


def test_dimensions_equal_to_the_models_own_are_accepted(client: TestClient) -> None:
    body = {"input": "ok", "dimensions": EMBEDDING_WIDTH}
    assert client.post("/v1/embeddings", json=body).status_code == 200


@pytest.mark.slow
def test_two_thousand_and_forty_eight_inputs_fit_into_one_call(client: TestClient, engine: FocalLensEngine) -> None:
    texts = [f"object number {number}" for number in range(2048)]
    rows = rows_of(client.post("/v1/embeddings", json={"input": texts, "encoding_format": "float"}))
    assert len(rows) == 2048
    for index in (0, 63, 64, 1000, 2047):
        assert_same(rows[[index]], of_texts(engine, [texts[index]]))


def test_openai_route_takes_json_only(client: TestClient) -> None:
    response = client.post("/v1/embeddings", content=PHOTO, headers={"content-type": "image/png"})
    assert "application/json" in error_of(response, 415)["message"]


# --- hostile bodies ---


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"input": "\xff"}',
        b'{"input": "\\ud800"}',
        b'{"input": "ok", "dimensions": NaN}',
        b'{"input": Infinity}',
        b"[" * 100_000,
        b'{"input": ' + b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=["empty", "open", "bom", "not utf-8", "lone surrogate", "nan", "infinity", "deep", "deep field", "deep object"],
)
def test_what_is_no_json_is_a_400(client: TestClient, path: str, content: bytes) -> None:
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert "not valid JSON" in error_of(response, 400)["message"]


@pytest.mark.parametrize("content", [b"null", b"3", b'"text"', b"[]"])
def test_json_that_is_no_object_is_a_422(client: TestClient, content: bytes) -> None:
    response = client.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    assert "JSON object" in error_of(response, 422)["message"]


def test_of_a_field_given_twice_the_last_counts(client: TestClient, engine: FocalLensEngine) -> None:
    response = client.post(
        "/v1/embeddings",
        content=b'{"input": "first", "input": "second"}',
        headers={"content-type": "application/json"},
    )
    assert_same(rows_of(response), of_texts(engine, ["second"]))


def multipart(content: bytes, boundary: str = "b") -> dict[str, Any]:
    return {"content": content, "headers": {"content-type": f"multipart/form-data; boundary={boundary}"}}


PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + PHOTO


@pytest.mark.parametrize(
    "content",
    [
        b"",
        PART,
        PART + b"\r\n" + PART,
        PART + b"\r\n--b\r\n" + PART,
        b"--c\r\n\r\n--c--",
        b"--b\r\nno colon\r\n\r\n--b--",
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--",
    ],
    ids=["empty", "one open part", "second part open", "nested", "other boundary", "bad header", "no name"],
)
def test_a_truncated_or_malformed_form_is_a_400(client: TestClient, content: bytes) -> None:
    error_of(client.post("/embed", **multipart(content)), 400)


def test_a_form_without_a_boundary_is_a_400(client: TestClient) -> None:
    response = client.post("/embed", content=PART, headers={"content-type": "multipart/form-data"})
    error_of(response, 400)


def test_a_form_of_another_charset_still_yields_its_file(client: TestClient) -> None:
    header = {"content-type": "multipart/form-data; boundary=b; charset=klingon"}
    assert client.post("/embed", content=PART + b"\r\n--b--\r\n", headers=header).status_code == 200


def test_a_form_with_too_many_fields_is_a_400(client: TestClient) -> None:
    field = b'--b\r\nContent-Disposition: form-data; name="condition"\r\n\r\nx\r\n'
    error_of(client.post("/embed", **multipart(field * 1000 + PART + b"\r\n--b--\r\n")), 400)


def test_a_body_over_the_limit_is_refused_by_its_announced_length(client: TestClient) -> None:
    response = client.post("/embed", content=b"", headers={"content-type": "image/png", "content-length": str(10**18)})
    assert error_of(response, 413)["code"] == "body_too_large"


@pytest.mark.parametrize("content", [b"", b"hello", PHOTO[:40], b"\x89PNG\r\n\x1a\n" + b"\0" * 100])
def test_a_body_that_is_no_image_is_a_400(client: TestClient, content: bytes) -> None:
    error_of(client.post("/embed", content=content, headers={"content-type": "image/png"}), 400)


# --- what is served ---


def test_models_lists_the_served_checkpoint_with_its_limits(client: TestClient) -> None:
    listing = client.get("/v1/models").json()
    (model,) = listing["data"]
    assert listing["object"] == "list"
    assert model["id"] == MODEL
    assert model["kind"] == "focallens-clip"
    assert model["max_model_len"] == CONTEXT_LENGTH
    assert model["dimensions"] == EMBEDDING_WIDTH
    assert model["revision"].startswith(model["version"])
    assert model["limits"]["max_inputs"] >= 2048
    for name in (MODEL, f"{MODEL}@{model['version']}", f"{MODEL}@latest"):
        assert client.get(f"/v1/models/{name}").json() == model
    assert client.get("/models").json() == listing
    error_of(client.get("/v1/models/another"), 404)


def test_info_is_teis(client: TestClient) -> None:
    info = client.get("/info").json()
    assert info["model_id"] == MODEL
    assert info["max_input_length"] == CONTEXT_LENGTH
    assert info["max_client_batch_size"] >= 2048
    assert info["model_dtype"] == "float32"


def test_the_openapi_document_describes_every_form_of_a_body(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    content = paths["/embed"]["post"]["requestBody"]["content"]
    assert set(content) == {"image/*", "multipart/form-data", "application/json"}
    assert "application/json" in paths["/v1/embeddings"]["post"]["requestBody"]["content"]


# --- how it starts, and what changes while it serves ---


@contextmanager
def serving(settings: EmbedSettings) -> Iterator[TestClient]:
    with TestClient(create_embed(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/startupz").status_code == 200)
        yield client


def own_store(folder: Path, checkpoint: Path, kind: str = "focallens-clip") -> EmbedSettings:
    settings = EmbedSettings(
        store_url=(folder / "store").as_uri(),
        checkpoint_cache_dir=folder / "checkpoints",
        collections_dir=folder / "collections",
        store_poll_s=0.05,
        models=(MODEL,),
        device="cpu",
    )
    Store.open(settings.store_url).publish(MODEL, checkpoint, CheckpointInfo(kind=kind))
    return settings


@pytest.mark.slow
def test_a_new_version_answers_as_soon_as_it_is_published(checkpoint: Path, tmp_path: Path) -> None:
    settings = own_store(tmp_path, checkpoint)
    ask: dict[str, Any] = {"json": {"texts": ["a red square"], "images": [data_uri(PHOTO)], "condition": COLOR}}
    with serving(settings) as client:
        before = client.post("/embed", **ask)
        other = write_tiny_checkpoint(tmp_path / "other", seed=1)
        version = Store.open(settings.store_url).publish(MODEL, other, CheckpointInfo(kind="focallens-clip"))
        wait_until_ready(lambda: client.get("/info").json()["served_model_name"] == f"{MODEL}@{version.id}")
        after = client.post("/embed", **ask)
        expected = FocalLensEngine.load(other, DeviceOptions(device="cpu", dtype="float32"))
        images = of_images(expected, [PHOTO], [COLOR])
        assert_same(rows_of(after), np.concatenate([images, of_texts(expected, ["a red square"])]))
        assert np.abs(rows_of(after) - rows_of(before)).max() > 1e-3
        assert after.headers["x-fovea-model"] == f"{MODEL}@{version.id}"


@pytest.mark.slow
def test_a_checkpoint_that_answers_no_numbers_is_refused_and_requests_are_told_to_wait(
    checkpoint: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    weights = load_file(broken / FOCALLENS_WEIGHTS)
    weights["clip.visual.proj"].fill_(float("nan"))
    save_file(weights, broken / FOCALLENS_WEIGHTS)
    with serving(own_store(tmp_path, broken)) as client:
        report = client.get("/readyz")
        assert report.status_code == 503
        assert "BrokenModel" in report.json()["checks"][f"checkpoint {MODEL}"]["detail"]
        assert client.get("/livez").json()["checks"]["compute"]["ok"]
        error = error_of(client.post("/embed", json={"texts": ["ok"]}), 503)
        assert error["code"] == "loading"
        assert client.get("/v1/models").status_code == 503


def test_a_checkpoint_of_another_kind_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with serving(own_store(tmp_path, checkpoint, kind="t5")) as client:
        detail = client.get("/readyz").json()["checks"][f"checkpoint {MODEL}"]["detail"]
        runs = "focallens-clip, open-clip, magiclens, focallens-mllm, vlm-embedding and instructblip"
        assert f"is a t5 checkpoint, and this service runs {runs} checkpoints" in detail


@pytest.mark.slow
def test_image_urls_that_lead_to_this_machine_are_refused_where_urls_are_on(
    settings: EmbedSettings,
) -> None:
    with serving(settings.model_copy(update={"image_urls": True})) as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        for url in ("http://127.0.0.1/a.png", "http://[::1]:80/a.png", "http://localhost/a.png"):
            error = error_of(client.post("/embed", json={"images": [url]}), 400)
            assert error["code"] in ("image_url_not_allowed", "image_fetch_failed")
            assert error["param"] == "images.0"
            assert error_of(client.get("/embed", params={"url": url}), 400)["code"] == error["code"]


@pytest.mark.slow
def test_an_image_can_be_asked_for_by_its_url_alone_or_is_told_how_to_be_sent(client: TestClient) -> None:
    by_url = client.get("/embed", params={"url": data_uri(PHOTO), "condition": ["color", "shape"]})
    sent = client.post("/embed", json={"images": [data_uri(PHOTO)], "condition": ["color", "shape"]})
    assert (by_url.status_code, by_url.json()["data"]) == (200, sent.json()["data"])
    asked: dict[str, int] = {"?url=https://example.com/a.jpg": 400, "?condition=color": 422, "": 422}
    for query, status in asked.items():
        error = error_of(client.get(f"/embed{query}"), status)
        assert "POST the image itself to /embed?condition=… with its content type" in error["message"]
    error = error_of(client.get("/embed", params={"url": "https://example.com/a.jpg"}), 400)
    assert "FOVEA_EMBED_IMAGE_URLS" in error["message"]
    assert (error["code"], error["param"]) == ("image_url_not_allowed", "url.0")
    assert error_of(client.get("/embed", params={"urls": "x"}), 422)["param"] == "urls"


@pytest.mark.slow
def test_limits_are_inclusive_and_count_embeddings_too(settings: EmbedSettings) -> None:
    with serving(settings.model_copy(update={"max_inputs": 2, "max_conditions": 8})) as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        limits = client.get("/v1/models").json()["data"][0]["limits"]
        assert (limits["max_inputs"], limits["max_conditions"], limits["max_embeddings"]) == (2, 8, 8)
        assert client.post("/embed", json={"texts": ["a", "b"]}).status_code == 200
        error_of(client.post("/embed", json={"texts": ["a", "b", "c"]}), 413)
        for num_files in (3, 258):
            message = error_of(client.post("/embed", files=[("file", PHOTO)] * num_files), 413)["message"]
            assert f"{num_files} inputs; the limit is 2" in message
        message = error_of(client.post("/embed", files=[("file", PHOTO)] * 259), 413)["message"]
        assert "259 parts; the limit is 258, 2 of them files" in message
        eight = [f"condition {number}" for number in range(8)]
        assert client.post("/embed", json={"images": [data_uri(PHOTO)], "condition": eight}).status_code == 200
        message = error_of(client.post("/embed", json={"images": [data_uri(PHOTO)] * 2, "condition": eight}), 413)
        assert "16 embeddings" in message["message"]


def test_a_process_without_settings_has_defaults_that_fit_together() -> None:
    settings = EmbedSettings()
    assert settings.port == 8103
    assert settings.max_inputs >= 2048
    assert not settings.image_urls


async def test_embeddings_and_searches_are_told_by_the_conventions_of_generative_ai(
    settings: EmbedSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Any] = []
    here = {"telemetry": True, "checkpoint_cache_dir": tmp_path / "c", "collections_dir": tmp_path / "i"}

    def ask() -> None:
        app = create_embed(settings.model_copy(update=here))
        with TestClient(app, base_url="http://localhost") as client:
            wait_until_ready(lambda: client.get("/readyz").status_code == 200)
            answered.append(client.post("/v1/embeddings", json={"input": ["a red cube"], "model": MODEL}).json())
            answered.append(
                client.post("/embed?condition=red", content=PHOTO, headers={"content-type": "image/png"}).json()
            )
            assert client.put("/collections/shapes", json={}).status_code in (200, 201)
            found = client.post("/collections/shapes/search", json={"text": "a red cube"})
            assert found.status_code == 200, found.text

    told = await gen_ai_told(monkeypatch, ask, "gen_ai_latest_experimental")
    assert [one["operation.name"] for one in told] == ["embeddings", "embeddings", "retrieval"]
    assert [one["usage.input_tokens"] for one in told[:2]] == [one["usage"]["prompt_tokens"] for one in answered]
    assert told[0]["usage.input_tokens"] > 0
    assert told[0]["response.model"] == answered[0]["model"]
    assert not any("usage.output_tokens" in one for one in told)
