"""A model that was trained to be cut says so when it is imported, and then gives shorter embeddings on every route."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from services.cli.main import app
from tests.core.image_files import encode, scene
from tests.embed.serving import embed_client, imported_client
from tests.embed.tiny import write_tiny_checkpoint
from tests.published_clips import write_laion
from tests.published_models import publish
from tests.published_qwen3_vl import write_qwen3_vl_embedding

WIDTH = 32
TEXTS = ["a red circle", "two blue squares"]
PHOTO = encode(scene(), "PNG")
COHERE = {"input_type": "search_document"}

Rows = np.ndarray[Any, np.dtype[np.float64]]


def said(source: Path, file: str, **settings: Any) -> Path:
    """Add settings to a file of a source, which may not have it yet."""
    path = source / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **settings}))
    return source


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A CLIP whose configuration lists 8 and 16 of its 32 dimensions."""
    folder = tmp_path_factory.mktemp("published")
    source = said(write_laion(folder / "clip"), "config.json", matryoshka_dimensions=[8, 16, WIDTH])
    with imported_client(tmp_path_factory.mktemp("served"), source, "nested") as client:
        yield client


def rows_of(response: Any) -> Rows:
    assert response.status_code == 200, response.text
    return np.array([one["embedding"] for one in response.json()["data"]])


def cut(rows: Rows, dimensions: int) -> Rows:
    shorter: Rows = rows[:, :dimensions] / np.linalg.norm(rows[:, :dimensions], axis=1, keepdims=True)
    return shorter


@pytest.mark.parametrize("dimensions", [8, 16])
def test_every_route_gives_the_first_numbers_with_norm_1(client: TestClient, dimensions: int) -> None:
    expected = cut(rows_of(client.post("/v1/embeddings", json={"input": TEXTS})), dimensions)
    asked: dict[str, Any] = {"dimensions": dimensions}
    for body in ({"input": TEXTS, **asked}, {"input": TEXTS, "output_dimension": dimensions}):
        np.testing.assert_allclose(rows_of(client.post("/v1/embeddings", json=body)), expected, atol=1e-6)
    found = client.post("/embed", json={"inputs": TEXTS, **asked}).json()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    found = client.post("/v2/embed", json={"texts": TEXTS, **COHERE, "output_dimension": dimensions}).json()
    np.testing.assert_allclose(found["embeddings"]["float"], expected, atol=1e-6)
    np.testing.assert_allclose(rows_of(client.post("/embed", json={"texts": TEXTS, **asked})), expected, atol=1e-6)
    post: dict[str, Any] = {"content": PHOTO, "headers": {"content-type": "image/png"}}
    image = cut(rows_of(client.post("/embed", **post)), dimensions)
    np.testing.assert_allclose(rows_of(client.post("/embed", params=asked, **post)), image, atol=1e-6)
    form = client.post("/embed", data=asked, files={"file": PHOTO})
    np.testing.assert_allclose(rows_of(form), image, atol=1e-6)


def test_integers_and_bits_are_those_of_the_shorter_embedding(client: TestClient) -> None:
    rows = rows_of(client.post("/embed", json={"texts": TEXTS, "dimensions": 8}))
    body = {"texts": TEXTS, **COHERE, "output_dimension": 8, "embedding_types": ["int8", "ubinary"]}
    found = client.post("/v2/embed", json=body).json()["embeddings"]
    assert found["int8"] == np.rint(127 * rows).tolist()
    assert found["ubinary"] == np.packbits(rows > 0, axis=1).tolist()


@pytest.mark.parametrize("dimensions", [7, 12, 33, -8])
def test_a_width_that_it_was_not_trained_for_is_refused_with_those_that_it_was(
    client: TestClient, dimensions: int
) -> None:
    response = client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": dimensions})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == (
        f"dimensions: nested was trained for 8,16,32 numbers, at most 32, not for {dimensions}."
    )


def test_url_and_body_must_agree_on_the_width(client: TestClient) -> None:
    response = client.post("/embed", params={"dimensions": 8}, json={"texts": TEXTS, "dimensions": 16})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "dimensions"


def test_a_plain_clip_refuses_a_text_beside_an_image_with_the_way_to_a_model_that_reads_it(client: TestClient) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PHOTO).decode()}"}}
    body = {**COHERE, "inputs": [{"content": [image, {"type": "text", "text": "red"}]}]}
    error = client.post("/v2/embed", json=body).json()["error"]
    assert error["param"] == "inputs.0.content.1.text"
    assert "This model is a plain CLIP, which embeds images without a condition. `fovea train" in error["message"]


def test_the_list_of_models_tells_the_widths(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["dimensions"], model["matryoshka_dimensions"]) == (WIDTH, "8,16,32")


def test_a_user_says_what_a_source_does_not(tmp_path: Path) -> None:
    with imported_client(tmp_path / "served", write_laion(tmp_path / "clip"), "mine", "--dimensions", "6+") as client:
        assert rows_of(client.post("/embed", json={"texts": TEXTS, "dimensions": 6})).shape == (2, 6)
        refused = client.post("/embed", json={"texts": TEXTS, "dimensions": 5})
        assert "mine was trained for 6+ numbers, at most 32, not for 5" in refused.json()["error"]["message"]


def planned(source: Path, *options: str) -> Any:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["store", "import", str(source), "--dry-run", *options])


def widths(source: Path, *options: str) -> Any:
    return json.loads(planned(source, "--json", *options).stdout)["source"].get("matryoshka_dimensions")


def test_published_settings_and_qwens_template_tell_the_widths(tmp_path: Path) -> None:
    clip = write_laion(tmp_path / "clip")
    assert widths(clip) is None
    assert widths(clip, "--dimensions", "8, 16") == "8,16"
    assert widths(said(clip, "config_sentence_transformers.json", truncate_dim=None)) is None
    assert widths(said(clip, "config_sentence_transformers.json", truncate_dim=16)) == "16"
    assert widths(said(clip, "config.json", is_matryoshka=False)) == "16"
    assert widths(said(clip, "config.json", is_matryoshka=True)) == "1+"
    assert widths(said(clip, "config.json", matryoshka_dims=[4, 8])) == "4,8"
    qwen = write_qwen3_vl_embedding(tmp_path / "Qwen3-VL-Embedding-2B")
    assert widths(qwen) == "64+"
    assert widths(qwen, "--embed-by", "one-word") is None
    assert widths(said(qwen, "config.json", matryoshka_dimensions=[8])) == "8"


def test_widths_in_another_form_are_refused_with_their_place(tmp_path: Path) -> None:
    clip = write_laion(tmp_path / "clip")
    for wrong in ("0", "64-128", "all", "8,,16"):
        assert (
            f"--dimensions is {wrong}: it lists numbers such as 64,128,256"
            in planned(clip, f"--dimensions={wrong}").output
        )
    said(clip, "config.json", matryoshka_dimensions=[8.5])
    assert "config.json: matryoshka_dimensions is [8.5]: it lists numbers" in planned(clip).output
    refused = planned(publish(tmp_path, "tulu-2-7b"), "--dimensions", "64")
    assert "--dimensions does not apply to" in refused.output


def test_a_folder_that_is_published_says_it_in_its_checkpoint_json(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "focallens")
    source = {"matryoshka_dimensions": [8, 16]}
    (folder / "checkpoint.json").write_text(json.dumps({"name": "mine", "kind": "focallens-clip", "source": source}))
    store_url = (tmp_path / "store").as_uri()
    environment = {"FOVEA_STORE_URL": store_url, "HOME": str(tmp_path)}
    published = CliRunner(env=environment).invoke(app, ["store", "publish", str(folder), "--no-reference"])
    assert published.exit_code == 0, published.output
    with embed_client(tmp_path, store_url, "mine") as client:
        assert rows_of(client.post("/embed", json={"texts": TEXTS, "dimensions": 16})).shape == (2, 16)
        assert client.get("/v1/models").json()["data"][0]["matryoshka_dimensions"] == "8,16"
