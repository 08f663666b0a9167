"""A vision-language model as published is imported with a prompt, and then embeds behind the routes of any model."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from services.cli.main import app
from services.core.store.store import Store
from services.embed.evaluation.embedders import NoTextSide, load_embedder
from services.embed.model.vlm_engine import VLM_KIND, VlmEngine
from services.embed.model.vlm_prompts import INSTRUCTION, ONE_WORD, VLM_CONFIG, read_vlm_prompt
from services.nn.devices import DeviceOptions
from tests.core.image_files import scene
from tests.embed.serving import as_base64, imported_client
from tests.published_llava import write_llava
from tests.published_qwen3_vl import TEMPLATE, WIDTH, write_qwen3_vl_embedding

CONDITIONS = ("What is the color of the object?", "shape")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl_embedding(tmp_path_factory.mktemp("published") / "Qwen3-VL-Embedding-2B")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path), "COLUMNS": "300"}
    runner = CliRunner(env=environment)
    return lambda *arguments: runner.invoke(app, ["store", "import", *map(str, arguments)])


def test_qwen3_vl_embedding_is_known_by_the_instruction_that_its_template_names(
    published: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    result = run(published)
    assert result.exit_code == 0, result.output
    assert "embeds by: instruction" in result.output
    store = Store.open((tmp_path / "store").as_uri())
    manifest = store.manifest("qwen3-vl-embedding-2b", store.resolve("qwen3-vl-embedding-2b", "latest"))
    assert (manifest.kind, manifest.licence) == (VLM_KIND, "apache-2.0")
    assert manifest.files.keys() >= {VLM_CONFIG, "chat_template.json", "vocab.json", "reference.json"}
    assert "scripts/qwen3_vl_embedding.py" not in manifest.files


def test_a_reranker_of_images_is_an_embedder_only_by_the_option(run: Callable[..., Any], tmp_path: Path) -> None:
    other, known = (write_qwen3_vl_embedding(tmp_path / name) for name in ("other-reranker", "Qwen3-VL-Reranker-2B"))
    result = run(other)
    assert result.exit_code == 1
    assert "of rerankers of images, Qwen3-VL-Reranker is served" in result.output
    for source in (other, known):
        plan = json.loads(run(source, "--dry-run", "--json", "--embed-by", "instruction").stdout)
        assert plan["kind"] == VLM_KIND


def test_any_other_model_is_asked_for_one_word_and_an_option_or_its_own_file_says_otherwise(
    published: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    def asked(*arguments: Path | str) -> str:
        plan = json.loads(run(*arguments, "--dry-run", "--json").stdout)
        assert plan["kind"] == VLM_KIND
        return str(plan["source"]["embeds_by"])

    other = write_qwen3_vl_embedding(tmp_path / "Qwen3-VL-2B", template=TEMPLATE.replace("Represent", "Read"))
    llava = write_llava(tmp_path / "llava-1.5-7b-hf")
    assert asked(other) == "one-word"
    assert read_vlm_prompt(other) == ONE_WORD
    assert asked(other, "--embed-by", "instruction") == "instruction"
    assert asked(published, "--embed-by", "one-word") == "one-word"
    assert asked(llava, "--embed-by", "one-word") == "one-word"
    assert read_vlm_prompt(published) == INSTRUCTION
    (other / VLM_CONFIG).write_text(json.dumps({"user": "{condition}", "max_side": 64}))
    assert asked(other) == "its own prompt"
    assert "one of instruction, one-word, not 'one_word'" in run(other, "--dry-run", "--embed-by", "one_word").output


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda config: config.update(quantization_config={"bits": 4}), "quantised weights are not served"),
        (lambda config: config.update(auto_map={"AutoModel": "a.b"}), "nothing of a source is run"),
        (lambda config: config.update(model_type="qwen9_vl"), "its config.json is of a 'qwen9_vl'"),
    ],
)
def test_what_would_not_be_served_rightly_is_refused(
    tmp_path: Path, run: Callable[..., Any], change: Callable[[Any], object], told: str
) -> None:
    source = write_qwen3_vl_embedding(tmp_path / "Qwen3-VL-Embedding-2B")
    config = json.loads((source / "config.json").read_text())
    change(config)
    (source / "config.json").write_text(json.dumps(config))
    refused = run(source, "--dry-run")
    assert refused.exit_code != 0
    assert told in refused.output


def test_what_serving_needs_must_be_there(tmp_path: Path, run: Callable[..., Any]) -> None:
    source = write_qwen3_vl_embedding(tmp_path / "Qwen3-VL-Embedding-2B")
    for name in ("tokenizer.json", "preprocessor_config.json"):
        kept = (source / name).read_bytes()
        (source / name).unlink()
        assert f"has no {name}" in run(source, "--dry-run").output
        (source / name).write_bytes(kept)
    (source / VLM_CONFIG).write_text(json.dumps({"user": "What is it?", "max_side": 64}))
    failed = run(source)
    assert failed.exit_code != 0
    assert "system or user needs one {condition}" in failed.output


def test_a_folder_above_the_model_names_those_below(published: Path, run: Callable[..., Any], tmp_path: Path) -> None:
    refused = run(published.parent, "--dry-run")
    assert f"it has no config.json, but {published.name} in it has: name that folder" in refused.output
    (tmp_path / "both").mkdir()
    for name in ("magic_lens_clip_base.pkl", "magic_lens_clip_large.pkl"):
        (tmp_path / "both" / name).write_bytes(b"")
    told = "a MagicLens is one file, so name magic_lens_clip_base.pkl or magic_lens_clip_large.pkl in it"
    assert told in run(tmp_path / "both", "--dry-run").output


@pytest.fixture(scope="module")
def client(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with imported_client(tmp_path_factory.mktemp("served"), published, "qwen") as client:
        yield client


def test_the_service_answers_behind_the_same_condition(client: TestClient, published: Path) -> None:
    body = {"images": [as_base64(scene())], "texts": ["a red circle\nat the left"], "condition": list(CONDITIONS)}
    answered = client.post("/embed", json=body).json()
    engine = VlmEngine.load(published, DeviceOptions("cpu", "float32", num_threads=1))
    wanted = [engine.prepare_condition(text) for text in CONDITIONS]
    readings = engine.run_batch([*engine.prepare_image(scene(), "", wanted), engine.prepare_text(body["texts"][0])])
    expected = np.concatenate([reading.rows for reading in readings])
    np.testing.assert_allclose([row["embedding"] for row in answered["data"]], expected, atol=1e-5)
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["kind"], model["dimensions"]) == (VLM_KIND, WIDTH)
    for spelled in ({"texts": ["the <|im_end|>"]}, {"images": body["images"], "condition": "the <|image_pad|>"}):
        assert client.post("/embed", json=spelled).status_code == 200


def test_coheres_inputs_of_image_and_text_differ_from_the_image_under_the_text(
    client: TestClient, published: Path
) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{as_base64(scene())}"}}
    body: dict[str, Any] = {
        "input_type": "image",
        "inputs": [{"content": [{"type": "text", "text": "a circle"}, image]}],
    }
    engine = VlmEngine.load(published, DeviceOptions("cpu", "float32", num_threads=1))
    (reading,) = engine.run_batch(engine.prepare_image(scene(), "", [engine.prepare_beside("a circle")]))
    for _ in range(2):  # the second is of the cache
        found = client.post("/v2/embed", json=body).json()["embeddings"]["float"]
        np.testing.assert_allclose(found, reading.rows, atol=1e-5)
        conditioned = {"input_type": "image", "inputs": [{"content": [image]}], "condition": "a circle"}
        other = client.post("/v2/embed", json=conditioned).json()["embeddings"]["float"]
        assert np.abs(np.array(other) - found).max() > 0.05


def test_a_collection_is_searched_by_image_and_by_text(client: TestClient) -> None:
    images = {"photo": scene(), "turned": scene().rotate(90, expand=True)}
    assert client.put("/collections/things", json={"conditions": [CONDITIONS[0]]}).status_code == 201
    rows = [{"id": name, "image": as_base64(image)} for name, image in images.items()]
    client.post("/collections/things/images", params={"wait": True}, json={"images": rows})
    for condition in CONDITIONS:  # the second is no index yet
        body = {"image": as_base64(images["turned"]), "condition": condition}
        found: Any = client.post("/collections/things/search", json=body).json()
        assert [hit["id"] for hit in found["results"]] == ["turned", "photo"]
        assert found["results"][0]["score"] == pytest.approx(1, abs=1e-5)
    by_text: Any = client.post("/collections/things/search", json={"text": "a circle"}).json()
    assert {hit["id"] for hit in by_text["results"]} == {"photo", "turned"}


def test_the_protocols_read_a_published_folder(published: Path, tmp_path: Path) -> None:
    embedder = load_embedder(str(published))
    assert embedder.embed_images([scene()] * 2, [*CONDITIONS, None]).shape == (3, 2, WIDTH)
    assert embedder.embed_texts(["a red circle"]).shape == (1, WIDTH)
    other = write_qwen3_vl_embedding(tmp_path / "Qwen3-VL-2B", template=TEMPLATE.replace("Represent", "Read"))
    with pytest.raises(NoTextSide, match="which embeds images, not texts"):
        load_embedder(str(other)).embed_texts(["a red circle"])
