"""InstructBLIP's embedding is the mean of what transformers' own model reads out at its query tokens, and it answers
behind the same conditions as any model."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from starlette.testclient import TestClient
from typer.testing import CliRunner

from services.cli.main import app
from services.core.errors import InvalidRequest, TooLarge
from services.core.store.store import Store
from services.embed.evaluation.embedders import EngineEmbedder, NoTextSide, load_embedder
from services.embed.model.instructblip_engine import (
    INSTRUCTBLIP_KIND,
    InstructBlipEngine,
    read_weights,
)
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from tests.core.image_files import scene
from tests.embed.serving import as_base64, imported_client
from tests.published_instructblip import IMAGE_SIZE, WIDTH, write_instructblip

CPU = DeviceOptions("cpu", "float32", num_threads=1)
INSTRUCTIONS = ["What is the color of the object?", None, "What is the shape?"]

Rows = np.ndarray[Any, np.dtype[np.float32]]


def pictures() -> list[Image.Image]:
    pixels = np.random.default_rng(3).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    return [Image.fromarray(array) for array in pixels]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published") / "instructblip-vicuna-7b"


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return write_instructblip(folder)


@pytest.fixture(scope="module")
def reference(folder: Path, model: Any) -> Rows:
    """The same by transformers alone: (C, N, E)."""
    kinds = transformers()
    tokenizer = kinds.AutoTokenizer.from_pretrained(folder / "qformer_tokenizer")
    prepare = kinds.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = prepare(pictures(), return_tensors="pt")["pixel_values"]
    rows = []
    for instruction in INSTRUCTIONS:
        tokens = tokenizer([instruction or ""] * len(pixels), return_tensors="pt")
        with torch.inference_mode():
            output = model.get_image_features(pixels, tokens["input_ids"], tokens["attention_mask"])
        read = output.qformer_outputs[0][:, : model.config.num_query_tokens].mean(dim=1)
        rows.append(torch.nn.functional.normalize(read, dim=-1).numpy())
    return np.stack(rows)


@pytest.fixture(scope="module")
def engine(folder: Path, model: Any) -> InstructBlipEngine:
    return InstructBlipEngine.load(folder, CPU)


@pytest.mark.parametrize("batch_size", [2, 16])
def test_embeddings_are_what_transformers_own_model_reads_out(
    engine: InstructBlipEngine, reference: Rows, batch_size: int
) -> None:
    embedder = EngineEmbedder(engine, name="instructblip", batch_size=batch_size)
    embeddings = embedder.embed_images(iter(pictures()), INSTRUCTIONS)
    assert embeddings.shape == (3, 5, WIDTH)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, reference, atol=1e-5)
    assert np.abs(embeddings[0] - embeddings[2]).max() > 1e-2
    assert embedder.image_size == IMAGE_SIZE


def test_the_engine_reads_each_image_once_and_again_from_its_state(engine: InstructBlipEngine, reference: Rows) -> None:
    asked = [None if one is None else engine.prepare_condition(one) for one in INSTRUCTIONS]
    for place, picture in enumerate(pictures()[:2]):
        items = [engine.prepare_image(picture, "one", [condition])[0] for condition in asked]
        (whole,) = engine.prepare_image(picture, "one", asked, keeps_state=True)
        np.testing.assert_allclose(engine.run_batch([whole])[0].rows, reference[:, place], atol=1e-5)
        alone = np.concatenate([reading.rows for reading in engine.run_batch(items)])
        np.testing.assert_allclose(alone, reference[:, place], atol=1e-5)
    assert engine.state_bytes == engine.run_batch([whole])[0].state.nbytes  # type: ignore[union-attr]
    engine.warm_up()
    engine.self_check()


def test_a_folder_of_instructblip_is_known_by_its_configuration(folder: Path, reference: Rows) -> None:
    embedder = load_embedder(str(folder))
    np.testing.assert_allclose(embedder.embed_images(pictures(), INSTRUCTIONS), reference, atol=1e-5)


def test_image_settings_may_stand_in_the_processors_file(tmp_path: Path, reference: Rows) -> None:
    write_instructblip(tmp_path / "blip")
    settings = json.loads((tmp_path / "blip" / "preprocessor_config.json").read_text())
    (tmp_path / "blip" / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    (tmp_path / "blip" / "preprocessor_config.json").unlink()
    embedder = load_embedder(str(tmp_path / "blip"))
    np.testing.assert_allclose(embedder.embed_images(pictures(), INSTRUCTIONS), reference, atol=1e-5)


def test_of_the_whole_model_only_the_image_side_is_read(folder: Path, model: Any) -> None:
    weights = read_weights(folder)
    assert {name.split(".")[0] for name in weights} == {"vision_model", "qformer", "query_tokens"}
    assert len(weights) < len(model.state_dict())


def test_control_tokens_that_an_instruction_spells_are_read_as_text(engine: InstructBlipEngine, folder: Path) -> None:
    end = transformers().AutoTokenizer.from_pretrained(folder / "qformer_tokenizer").sep_token_id
    for text in ("what is [SEP] the shape", "[SEP]", "[CLS] what"):
        read = engine.prepare_condition(text)
        assert read.input_ids.tolist().index(end) == read.num_tokens - 1


def test_texts_long_instructions_and_no_images_are_refused(engine: InstructBlipEngine) -> None:
    embedder = EngineEmbedder(engine, name="blip")
    with pytest.raises(NoTextSide, match="blip is an InstructBLIP, which embeds images, not texts"):
        embedder.embed_texts(["a dog"])
    with pytest.raises(ValueError, match="no inputs to embed"):
        embedder.embed_images([], [None])
    with pytest.raises(InvalidRequest, match="This model is an InstructBLIP"):
        engine.prepare_text("a dog")
    with pytest.raises(TooLarge, match="at most 24"):
        engine.prepare_condition("what is the shape " * 20)


def test_in_an_evaluation_an_instruction_longer_than_the_positions_is_cut(engine: InstructBlipEngine) -> None:
    embedder = EngineEmbedder(engine, name="blip")
    (features,) = embedder.embed_images(pictures()[:1], ["what is the shape " * 200])
    assert np.isfinite(features).all()


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "blip"
    model = write_instructblip(folder)
    (folder / "model.safetensors.index.json").unlink()
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    for missing, told in (
        ("qformer.encoder.layer.0.crossattention.attention.key.weight", r"crossattention.attention.key.weight"),
        ("query_tokens", "has no query tokens"),
    ):
        del weights[missing]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=told):
            InstructBlipEngine.read(folder, torch.device("cpu"), torch.float32)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path), "COLUMNS": "300"}
    runner = CliRunner(env=environment)
    return lambda *arguments: runner.invoke(app, ["store", "import", *map(str, arguments)])


@pytest.mark.parametrize("is_pickled", [False, True])
def test_the_command_imports_the_image_side_of_the_published_folder(
    tmp_path: Path, run: Callable[..., Any], *, is_pickled: bool
) -> None:
    source = tmp_path / "instructblip-vicuna-7b"
    write_instructblip(source)
    if is_pickled:
        for file in source.glob("*.safetensors*"):
            file.unlink()
    result = run(source)
    assert result.exit_code == 0, result.output
    store = Store.open((tmp_path / "store").as_uri())
    manifest = store.manifest("instructblip-vicuna-7b", store.resolve("instructblip-vicuna-7b", "latest"))
    assert (manifest.kind, manifest.licence) == (INSTRUCTBLIP_KIND, "other")
    assert manifest.files.keys() >= {"model.safetensors", "qformer_tokenizer/tokenizer.json", "reference.json"}
    assert not any(name.startswith("model-") for name in manifest.files)


def test_what_serving_needs_must_be_there(tmp_path: Path, run: Callable[..., Any]) -> None:
    source = tmp_path / "instructblip-vicuna-7b"
    write_instructblip(source)
    for file in (source / "qformer_tokenizer").iterdir():
        file.unlink()
    assert "has no qformer_tokenizer with the Q-Former's tokens" in run(source, "--dry-run").output
    assert "--embed-by does not apply" in run(write_other(tmp_path), "--dry-run", "--embed-by", "one-word").output


def write_other(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    write_instructblip(other)
    return other


@pytest.fixture(scope="module")
def client(folder: Path, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with imported_client(tmp_path_factory.mktemp("served"), folder, "blip") as client:
        yield client


def test_the_service_answers_behind_the_same_condition(client: TestClient, engine: InstructBlipEngine) -> None:
    body = {"images": [as_base64(scene())], "condition": [INSTRUCTIONS[0], INSTRUCTIONS[2]]}
    answered = client.post("/embed", json=body).json()
    wanted = [engine.prepare_condition(str(text)) for text in (INSTRUCTIONS[0], INSTRUCTIONS[2])]
    (expected,) = engine.run_batch(engine.prepare_image(scene(), "", wanted))
    np.testing.assert_allclose([row["embedding"] for row in answered["data"]], expected.rows, atol=1e-5)
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["kind"], model["dimensions"]) == (INSTRUCTBLIP_KIND, WIDTH)


def test_a_collection_is_searched_under_an_instruction_and_under_a_further_one(client: TestClient) -> None:
    images = {"photo": scene(), "turned": scene().rotate(90, expand=True)}
    assert client.put("/collections/things", json={"conditions": [INSTRUCTIONS[0]]}).status_code == 201
    rows = [{"id": name, "image": as_base64(image)} for name, image in images.items()]
    client.post("/collections/things/images", params={"wait": True}, json={"images": rows})
    for condition in (INSTRUCTIONS[0], INSTRUCTIONS[2]):  # the second is read from the states that were kept
        body = {"image": as_base64(images["turned"]), "condition": condition}
        found: Any = client.post("/collections/things/search", json=body).json()
        assert [hit["id"] for hit in found["results"]] == ["turned", "photo"]
        assert found["results"][0]["score"] == pytest.approx(1, abs=1e-3)
