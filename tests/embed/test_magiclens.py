"""MagicLens as published is imported, equals its arithmetic in numpy, and answers behind the same conditions."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from services.cli.store_import import write_reference
from services.core.errors import InvalidRequest
from services.core.refusals import Refused
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.evaluation.embedders import NoTextSide, load_embedder
from services.embed.imports.magiclens import convert_magiclens
from services.embed.model.items import ImageItem
from services.embed.model.magiclens_engine import MAGICLENS_KIND, MagicLensEngine
from services.jobs.released_weights import read_pickled_bytes
from services.nn.devices import DeviceOptions
from tests.core.image_files import scene
from tests.embed.magiclens_reference import embedding
from tests.embed.serving import as_base64, embed_client
from tests.published_magiclens import CONTEXT, SIDE, WIDTH, random_parameters, write_magiclens

CPU = DeviceOptions("cpu", "float32", num_threads=1)
INSTRUCTIONS = ("find the same animal in a drawing", "what else is there?", "")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("magiclens")
    convert_magiclens(write_magiclens(folder / "magic_lens_clip_base.pkl"), folder / "checkpoint")
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> MagicLensEngine:
    return MagicLensEngine.load(checkpoint, CPU)


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def test_embeddings_equal_the_published_arithmetic_in_numpy(checkpoint: Path) -> None:
    loaded = MagicLensEngine.read(checkpoint, torch.device("cpu"), torch.float32)
    images = np.stack([pixels(seed) for seed in range(3)])
    normalised = loaded.transform.normalise(torch.from_numpy(images))
    input_ids = loaded.tokenizer(INSTRUCTIONS)
    assert input_ids.shape == (3, CONTEXT)
    found = loaded.model(normalised, input_ids).numpy()
    expected = [
        embedding(random_parameters(), image, ids)
        for image, ids in zip(normalised.permute(0, 2, 3, 1).double().numpy(), input_ids.numpy(), strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_the_engine_embeds_each_image_under_each_instruction_and_under_none(
    engine: MagicLensEngine, checkpoint: Path
) -> None:
    loaded = MagicLensEngine.read(checkpoint, torch.device("cpu"), torch.float32)
    conditions = [engine.prepare_condition(text) for text in INSTRUCTIONS[:2]]
    items = [ImageItem(str(seed), pixels(seed), (*conditions, None), keeps_state=True) for seed in range(2)]
    readings = engine.run_batch([*items, items[0]])
    for item, reading in zip(items, readings, strict=False):
        image = loaded.transform.normalise(torch.from_numpy(item.pixels)[None])
        expected = loaded.model(image.expand(3, -1, -1, -1), loaded.tokenizer(INSTRUCTIONS)).numpy()
        np.testing.assert_allclose(reading.rows, expected, atol=1e-5)
        assert reading.state is not None
        assert len(reading.state) == engine.state_bytes == 4 * WIDTH
    again = engine.run_batch(list(engine._from_states(items, readings[:2]).values()))
    np.testing.assert_allclose(again[1].rows, readings[1].rows, atol=1e-6)
    engine.warm_up()
    engine.self_check()


def test_texts_by_themselves_are_refused(engine: MagicLensEngine) -> None:
    with pytest.raises(InvalidRequest, match="a text by itself has no embedding"):
        engine.prepare_text("a red circle")


def test_images_are_squashed_as_in_the_authors_inference(engine: MagicLensEngine) -> None:
    wide = Image.fromarray(np.repeat(pixels(0), 3, axis=1))
    np.testing.assert_array_equal(engine.transform(wide), wide.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


@pytest.fixture(scope="module")
def client(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("served")
    write_reference(MAGICLENS_KIND, checkpoint)
    store_url = (folder / "store").as_uri()
    Store.open(store_url).publish("magiclens", checkpoint, CheckpointInfo(kind=MAGICLENS_KIND))
    with embed_client(folder, store_url, "magiclens") as client:
        yield client


def test_the_service_answers_behind_the_same_condition(client: TestClient, engine: MagicLensEngine) -> None:
    body = {"images": [as_base64(scene())], "condition": list(INSTRUCTIONS[:2])}
    answered = client.post("/embed", json=body).json()
    wanted = [engine.prepare_condition(text) for text in INSTRUCTIONS[:2]]
    (expected,) = engine.run_batch(engine.prepare_image(scene(), "", wanted))
    np.testing.assert_allclose([row["embedding"] for row in answered["data"]], expected.rows, atol=1e-5)
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["kind"], model["dimensions"]) == (MAGICLENS_KIND, WIDTH)
    refused = client.post("/embed", json={"texts": ["a red circle"]})
    assert refused.status_code == 400
    assert "MagicLens" in refused.json()["error"]["message"]


def test_a_collection_is_searched_by_an_image_under_an_instruction(client: TestClient) -> None:
    images = {"photo": scene(), "turned": scene().rotate(90, expand=True)}
    assert client.put("/collections/things", json={"conditions": [INSTRUCTIONS[0]]}).status_code == 201
    rows = [{"id": name, "image": as_base64(image)} for name, image in images.items()]
    client.post("/collections/things/images", params={"wait": True}, json={"images": rows})
    body = {"image": as_base64(images["turned"]), "condition": INSTRUCTIONS[0]}
    found: Any = client.post("/collections/things/search", json=body).json()
    assert [hit["id"] for hit in found["results"]] == ["turned", "photo"]
    assert found["results"][0]["score"] == pytest.approx(1, abs=1e-5)


def test_a_pickle_of_something_else_is_refused(tmp_path: Path) -> None:

    for content, told in (
        (pickle.dumps(Path("a")), "it names pathlib"),
        (pickle.dumps([1]), "holds a list"),
        (b"", ""),
    ):
        (tmp_path / "a.pkl").write_bytes(content)
        with pytest.raises(Refused, match=told or "can't be read as a pickle"):
            read_pickled_bytes(tmp_path / "a.pkl")


def test_the_protocols_embed_images_under_their_instructions(checkpoint: Path, engine: MagicLensEngine) -> None:
    embedder = load_embedder(str(checkpoint))
    images = [Image.fromarray(pixels(seed)) for seed in range(3)]
    found = embedder.embed_images(iter(images), [INSTRUCTIONS[0], None])
    wanted = (engine.prepare_condition(INSTRUCTIONS[0]), None)
    for place, image in enumerate(images):
        (expected,) = engine.run_batch(engine.prepare_image(image, str(place), wanted))
        np.testing.assert_allclose(found[:, place], expected.rows, atol=1e-5)
    with pytest.raises(NoTextSide, match="not texts by themselves"):
        embedder.embed_texts(["a"])
    with pytest.raises(ValueError, match="no inputs"):
        embedder.embed_images([], [None])
