"""InstructBLIP's embedding is the mean of what transformers' own model reads out at its query tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from services.embed.evaluation.embedders import NoTextSide
from services.embed.evaluation.instructblip import InstructBlipEmbedder, read_weights
from services.embed.evaluation.loading import load_embedder
from tests.embed.evaluation.tiny_instructblip import IMAGE_SIZE, WIDTH, write_tiny_instructblip

INSTRUCTIONS = ["What is the color of the object?", None, "What is the shape?"]


def pictures() -> list[Image.Image]:
    pixels = np.random.default_rng(3).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    return [Image.fromarray(array) for array in pixels]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("instructblip")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return write_tiny_instructblip(folder)


@pytest.fixture(scope="module")
def reference(folder: Path, model: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The same by transformers alone: (C, N, E)."""
    from transformers import AutoImageProcessor, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "qformer_tokenizer")
    loader: Any = AutoImageProcessor
    pixels = loader.from_pretrained(folder, backend="pil")(pictures(), return_tensors="pt")["pixel_values"]
    rows = []
    for instruction in INSTRUCTIONS:
        tokens = tokenizer([instruction or ""] * len(pixels), return_tensors="pt")
        with torch.inference_mode():
            output = model.get_image_features(pixels, tokens["input_ids"], tokens["attention_mask"])
        read = output.qformer_outputs[0][:, : model.config.num_query_tokens].mean(dim=1)
        rows.append(torch.nn.functional.normalize(read, dim=-1).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("batch_size", [2, 16])
def test_embeddings_are_what_transformers_own_model_reads_out(
    folder: Path, reference: np.ndarray[Any, np.dtype[np.float32]], batch_size: int
) -> None:
    embedder = InstructBlipEmbedder(folder, name="instructblip", batch_size=batch_size)
    embeddings = embedder.embed_images(iter(pictures()), INSTRUCTIONS)
    assert embeddings.shape == (3, 5, WIDTH)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, reference, atol=1e-5)
    assert np.abs(embeddings[0] - embeddings[2]).max() > 1e-2
    assert embedder.image_size == IMAGE_SIZE


def test_a_folder_of_instructblip_is_known_by_its_configuration_and_weights_may_lie_in_several_files(
    tmp_path: Path, reference: np.ndarray[Any, np.dtype[np.float32]]
) -> None:
    write_tiny_instructblip(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    embedder = load_embedder(str(tmp_path))
    assert isinstance(embedder, InstructBlipEmbedder)
    np.testing.assert_allclose(embedder.embed_images(pictures(), INSTRUCTIONS), reference, atol=1e-5)


def test_image_settings_may_stand_in_the_processors_file(
    tmp_path: Path, reference: np.ndarray[Any, np.dtype[np.float32]]
) -> None:
    write_tiny_instructblip(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    (tmp_path / "preprocessor_config.json").unlink()
    embedder = InstructBlipEmbedder(tmp_path, name="instructblip")
    np.testing.assert_allclose(embedder.embed_images(pictures(), INSTRUCTIONS), reference, atol=1e-5)


def test_of_the_whole_model_only_the_image_side_is_read(folder: Path, model: Any) -> None:
    weights = read_weights(folder)
    assert {name.split(".")[0] for name in weights} == {"vision_model", "qformer", "query_tokens"}
    assert len(weights) < len(model.state_dict())


def test_texts_are_refused_by_name(folder: Path, model: Any) -> None:
    with pytest.raises(NoTextSide, match="blip embeds images only"):
        InstructBlipEmbedder(folder, name="blip").embed_texts(["a dog"])


def test_no_images_are_refused(folder: Path, model: Any) -> None:
    with pytest.raises(ValueError, match="no inputs to embed"):
        InstructBlipEmbedder(folder, name="blip").embed_images([], [None])


def test_an_instruction_longer_than_the_positions_is_cut(folder: Path, model: Any) -> None:
    embedder = InstructBlipEmbedder(folder, name="blip")
    (features,) = embedder.embed_images(pictures()[:1], ["what is the shape " * 200])
    assert np.isfinite(features).all()


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_tiny_instructblip(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["qformer.encoder.layer.0.crossattention.attention.key.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"qformer.encoder.layer.0.crossattention.attention.key.weight"):
        InstructBlipEmbedder(tmp_path, name="blip")
    del weights["query_tokens"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="has no query tokens"):
        InstructBlipEmbedder(tmp_path, name="blip")
