"""Several models in one embed service: requests name one, and a collection belongs to the one that it was made for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.app import create_embed
from services.embed.settings import EmbedSettings
from services.jobs.imports.clip_weights import convert_openai_clip
from services.nn.devices import DeviceOptions, parameter_bytes
from services.nn.plain_clip import OPEN_CLIP_KIND
from tests.core.image_files import encode, scene
from tests.embed.tiny import wait_until_ready, write_tiny_checkpoint
from tests.published_clips import write_openai

PHOTOS = {f"{turn}.png": encode(scene().rotate(90 * turn, expand=True), "PNG") for turn in range(4)}
CONDITION = "What is the color of the object?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a FocalLens model and a plain CLIP."""
    folder = tmp_path_factory.mktemp("models")
    store = Store.open((folder / "store").as_uri())
    store.publish("lens", write_tiny_checkpoint(folder / "lens"), CheckpointInfo(kind="focallens-clip"))
    convert_openai_clip(write_openai(folder / "RN50.pt", is_resnet=True), folder / "clip")
    store.publish("clip", folder / "clip", CheckpointInfo(kind=OPEN_CLIP_KIND))
    return folder


def serving(folder: Path, collections: Path, **settings: Any) -> TestClient:
    served = EmbedSettings(
        store_url=(folder / "store").as_uri(),
        checkpoint_cache_dir=folder / "copies",
        collections_dir=collections,
        device="cpu",
        num_threads=1,
        store_poll_s=0.1,
        **{"models": ("lens", "clip"), **settings},
    )
    return TestClient(create_embed(served), raise_server_exceptions=False, base_url="http://localhost")


@pytest.fixture
def client(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """Limited to the memory of one model where the test is parametrised with True."""
    sizes = [parameter_bytes(folder / name, DeviceOptions("cpu", "float32")) for name in ("lens", "clip")]
    memory_bytes = max(sizes) if getattr(request, "param", False) else 0
    with serving(folder, tmp_path, memory_bytes=memory_bytes) as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        wait_until_ready(lambda: client.get("/collections").status_code == 200)
        yield client


def fill(client: TestClient, name: str) -> None:
    files = [("file", (image_id, data, "image/png")) for image_id, data in PHOTOS.items()]
    added = client.post(f"/collections/{name}/images", files=files, params={"wait": "true"})
    assert added.status_code == 201, added.text


def found(client: TestClient, name: str) -> dict[str, float]:
    answer = client.post(f"/collections/{name}/search", content=PHOTOS["1.png"], headers={"content-type": "image/png"})
    assert answer.status_code == 200, answer.text
    return {hit["id"]: hit["score"] for hit in answer.json()["results"]}


def cosines(client: TestClient, model: str) -> dict[str, float]:
    files = [("file", (image_id, data, "image/png")) for image_id, data in PHOTOS.items()]
    answer = client.post("/embed", files=files, data={"model": model})
    assert answer.json()["model"].startswith(f"{model}@")
    rows = np.array([one["embedding"] for one in answer.json()["data"]])
    return dict(zip(PHOTOS, (rows @ rows[1]).tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("client", [False, True], indirect=True, ids=["all have room", "one has room"])
def test_a_collection_is_searched_with_the_model_that_it_was_made_for(client: TestClient) -> None:
    assert client.put("/collections/by-default", json={}).json()["model"] == "lens"
    assert client.put("/collections/of-clip", json={"model": "clip"}).json()["model"] == "clip"
    for name, model in (("by-default", "lens"), ("of-clip", "clip"), ("by-default", "lens")):
        fill(client, name)
        assert found(client, name) == pytest.approx(cosines(client, model), abs=1e-4)


@pytest.mark.slow
def test_a_collection_refuses_another_model_than_its_own(client: TestClient) -> None:
    client.put("/collections/pictures", json={"model": "clip"})
    fill(client, "pictures")
    refused = [
        client.put("/collections/pictures", json={"model": "lens"}),
        client.post("/collections/pictures/search", json={"text": "a hat", "model": "lens"}),
    ]
    for response in refused:
        assert response.status_code == 409, response.text
        assert response.json()["error"]["message"] == "The collection 'pictures' was made for the model 'clip'."
    assert client.put("/collections/pictures", json={}).json()["model"] == "clip"
    conditioned = client.put("/collections/pictures", json={"conditions": [CONDITION]})
    assert conditioned.status_code == 400
    assert "plain CLIP" in conditioned.json()["error"]["message"]


@pytest.mark.slow
def test_a_collection_whose_model_is_not_served_any_more_says_so_and_keeps_its_images(
    folder: Path, tmp_path: Path
) -> None:
    with serving(folder, tmp_path) as client:
        wait_until_ready(lambda: client.get("/collections").status_code == 200)
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        client.put("/collections/pictures", json={"model": "clip"})
        fill(client, "pictures")
    with serving(folder, tmp_path, models=("lens",)) as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        wait_until_ready(lambda: client.get("/collections").status_code == 200)
        response = client.post("/collections/pictures/search", json={"text": "a hat"})
        assert response.status_code == 409
        assert "was made for the model 'clip'; this service serves 'lens'" in response.text
        assert client.get("/collections/pictures/images/1.png").content == PHOTOS["1.png"]
