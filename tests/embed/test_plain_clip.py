"""A published CLIP in the embed service: images and texts without conditions, collections, the way to conditions."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from services.cli.store_import import write_reference
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.app import create_embed
from services.embed.model.plain_engine import PlainEngine
from services.embed.settings import EmbedSettings
from services.jobs.imports.clip_weights import convert_openai_clip
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.nn.reference_outputs import REFERENCE_FILE
from services.score.engine import ScoreEngine
from tests.core.image_files import encode, scene
from tests.embed.tiny import wait_until_ready, write_tiny_checkpoint
from tests.published_clips import convert_folder, write_laion, write_openai, write_siglip

CPU = DeviceOptions("cpu", "float32", num_threads=1)
PHOTO = encode(scene(), "PNG")
OTHER = encode(scene().rotate(90, expand=True), "PNG")
CONDITION = "What is the color of the object?"


@contextmanager
def served(checkpoint: Path | None, folder: Path) -> Iterator[TestClient]:
    """Serve what the store below `folder` holds, after publishing a checkpoint if one is given."""
    store_url = (folder / "store").as_uri()
    if checkpoint is not None:
        Store.open(store_url).publish("clip", checkpoint, CheckpointInfo(kind="open-clip"))
    settings = EmbedSettings(
        store_url=store_url,
        checkpoint_cache_dir=folder / "checkpoints",
        collections_dir=folder / "collections",
        models=("clip",),
        device="cpu",
        num_threads=1,
    )
    with TestClient(create_embed(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenAI's ResNet."""
    folder = tmp_path_factory.mktemp("resnet")
    convert_openai_clip(write_openai(folder / "RN50.pt", is_resnet=True), folder / "checkpoint")
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def client(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served(checkpoint, tmp_path_factory.mktemp("embed")) as client:
        yield client


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refusal(response: Any) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_images_and_texts_are_embedded_without_a_condition(client: TestClient, checkpoint: Path) -> None:
    body = {"images": [as_base64(PHOTO)], "texts": ["a red circle"]}
    answered = client.post("/embed", json=body).json()
    engine = PlainEngine.load(checkpoint, CPU)
    expected = engine.run_batch([*engine.prepare_image(scene(), "", [None]), engine.prepare_text("a red circle")])
    for ours, theirs in zip(answered["data"], expected, strict=True):
        assert ours["condition"] is None
        np.testing.assert_allclose(ours["embedding"], theirs.rows[0], atol=1e-5)
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["kind"], model["dimensions"]) == ("open-clip", engine.embedding_width)


def test_a_condition_is_refused_with_the_way_to_one(client: TestClient) -> None:
    image = as_base64(PHOTO)
    headers = {"content-type": "image/png"}
    for response in (
        client.post("/embed", params={"condition": CONDITION}, content=PHOTO, headers=headers),
        client.post("/embed", json={"images": [image], "condition": CONDITION}),
        client.post("/v1/embeddings", json={"input": [{"image": image}], "condition": CONDITION}),
    ):
        error = refusal(response)
        assert error["param"] == "condition"
        assert "ModifiedResNet" in error["message"]
        assert "`fovea train focallens` with --base and the name of a CLIP with a plain ViT" in error["message"]


def test_a_collection_is_searched_by_image_and_by_text(client: TestClient) -> None:
    assert client.put("/collections/things").status_code == 201
    images = [{"id": "photo", "image": as_base64(PHOTO)}, {"id": "other", "image": as_base64(OTHER)}]
    assert client.post("/collections/things/images", params={"wait": True}, json={"images": images}).status_code == 201
    found = client.post("/collections/things/search", json={"image": as_base64(OTHER)}).json()["results"]
    assert [hit["id"] for hit in found] == ["other", "photo"]
    assert found[0]["score"] == pytest.approx(1, abs=1e-5)
    (image, text) = (
        client.post("/embed", json=body).json()["data"][0]["embedding"]
        for body in ({"images": [as_base64(PHOTO)]}, {"texts": ["red"]})
    )
    hits = client.post("/collections/things/search", json={"text": "red"}).json()["results"]
    scores = {hit["id"]: hit["score"] for hit in hits}
    assert scores["photo"] == pytest.approx(float(np.dot(image, text)), abs=1e-5)
    searched = client.post("/collections/things/search", json={"text": "red", "condition": CONDITION})
    assert refusal(searched)["param"] == "condition"
    created = client.put("/collections/others", json={"conditions": [CONDITION]})
    assert refusal(created)["param"] == "conditions.0"
    assert "fovea train focallens" in refusal(created)["message"]


def test_a_collection_keeps_its_conditions_while_a_plain_clip_is_served(tmp_path: Path) -> None:
    store_url = (tmp_path / "store").as_uri()
    store = Store.open(store_url)
    focallens = store.publish("clip", write_tiny_checkpoint(tmp_path / "tiny"), CheckpointInfo(kind="focallens-clip"))
    convert_folder(write_laion(tmp_path / "source"), tmp_path / "plain")
    with served(None, tmp_path) as client:
        assert client.put("/collections/things", json={"conditions": [CONDITION]}).status_code == 201
        images = [{"id": "photo", "image": as_base64(PHOTO)}]
        client.post("/collections/things/images", params={"wait": True}, json={"images": images})
    with served(tmp_path / "plain", tmp_path) as client:
        (hit,) = client.post("/collections/things/search", json={"text": "red"}).json()["results"]
        assert hit["id"] == "photo"
    store.promote("clip", focallens.id, "latest")
    with served(None, tmp_path) as client:
        found = client.post("/collections/things/search", json={"text": "red", "condition": CONDITION}).json()
        assert found["index"]["condition"] == CONDITION
        assert found["index"]["state"] == "ready"


def test_both_services_check_the_reference_of_a_version(checkpoint: Path, tmp_path: Path) -> None:
    convert_folder(write_siglip(tmp_path / "source"), tmp_path / "siglip")
    for directory in (checkpoint, tmp_path / "siglip"):
        write_reference("open-clip", directory)
        PlainEngine.load(directory, CPU).self_check()
        ScoreEngine.load_plain(directory, CPU).self_check()
    (tmp_path / "siglip" / REFERENCE_FILE).write_bytes((checkpoint / REFERENCE_FILE).read_bytes())
    for engine in (PlainEngine.load(tmp_path / "siglip", CPU), ScoreEngine.load_plain(tmp_path / "siglip", CPU)):
        with pytest.raises(BrokenModel, match="reference"):
            engine.self_check()
