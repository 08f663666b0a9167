"""Published CLIPs in the score service: global scores, heatmaps where there are tokens, and SigLIP's probabilities."""

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.core.image_files import encode, scene
from tests.published_clips import convert_folder, write_laion, write_siglip
from tests.score.served_tiny import publish, served_tiny

PHOTO = encode(scene(), "PNG")
CAPTIONS = ["a red square", "a photo of two dogs", "red"]


def client_of(source: Path, folder: Path) -> Iterator[TestClient]:
    convert_folder(source, folder / "checkpoint")
    store_url = (folder / "store").as_uri()
    publish(store_url, folder / "checkpoint", kind="open-clip")
    with served_tiny(store_url, folder) as client:
        yield client


@pytest.fixture(scope="module")
def laion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("laion")
    yield from client_of(write_laion(folder / "source"), folder)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("siglip")
    yield from client_of(write_siglip(folder / "source"), folder)


def post(client: TestClient, **options: str) -> Any:
    return client.post("/score", files={"file": PHOTO}, data={"captions": CAPTIONS, **options})


def test_a_clip_ranks_by_its_global_score(laion: TestClient) -> None:
    answer = post(laion, explain="true").json()
    assert [one["score"] for one in answer["scores"]] == [one["global"] for one in answer["scores"]]
    assert sum(one["probability"] for one in answer["scores"]) == pytest.approx(1)
    assert all("match" not in one for one in answer["scores"])
    assert np.shape(answer["explain"][0]["heatmaps"])[1:] == (2, 2)
    (model,) = laion.get("/v1/models").json()["data"]
    assert (model["kind"], model["local_weight"], model["logit_bias"]) == ("open-clip", 0, None)


def test_siglip_tells_for_each_caption_whether_it_fits(siglip: TestClient) -> None:
    (model,) = siglip.get("/v1/models").json()["data"]
    assert model["logit_scale"] > 100
    assert model["patches"] is None
    answer = post(siglip).json()
    logits = [model["logit_scale"] * one["score"] + model["logit_bias"] for one in answer["scores"]]
    for one, logit in zip(answer["scores"], logits, strict=True):
        assert one["score"] == one["global"]
        assert one["local"] is None
        assert one["match"] == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-4)
    shares = np.exp(np.array(logits) - max(logits))
    np.testing.assert_allclose([one["probability"] for one in answer["scores"]], shares / shares.sum(), rtol=1e-4)
    pairs = {"data_1": {"image": f"data:image/png;base64,{base64.b64encode(PHOTO).decode()}"}, "data_2": CAPTIONS}
    found = siglip.post("/v1/score", json=pairs).json()["data"]
    assert [one["score"] for one in found] == [one["score"] for one in answer["scores"]]


def test_a_model_without_tokens_refuses_to_explain_and_says_why(siglip: TestClient) -> None:
    response = post(siglip, explain="true")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "explain"
    assert "This model has no heatmaps: they need a plain ViT" in error["message"]
