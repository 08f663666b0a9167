"""A bulk job runs every kind of model that the service runs, and gets the same embeddings."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from PIL import Image

from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.embed.bulk.folder import EmbeddingError
from services.embed.bulk.workers import ModelChoice, load_bulk_embedder
from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import FocalLensEngine
from services.nn.devices import DeviceOptions
from tests.core.image_files import encode
from tests.embed.tiny import write_tiny_checkpoint
from tests.published_instructblip import write_instructblip
from tests.published_llava import write_llava
from tests.published_qwen3_vl import write_qwen3_vl_embedding

CONDITIONS = ("what is the color?", "shape")


@pytest.mark.parametrize("write", [write_llava, write_instructblip, write_qwen3_vl_embedding])
def test_embeddings_are_those_of_the_engine_that_serves_the_model(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    folder = tmp_path / "model"
    write(folder)
    drawn = np.random.default_rng(5)
    images = [Image.fromarray(drawn.integers(0, 256, (64, 96, 3), dtype=np.uint8)) for _ in range(3)]
    embedder = load_bulk_embedder(ModelChoice(folder, CONDITIONS, "float32"), "cpu")
    pixels = [embedder.prepare(encode(image, "PNG")) for image in images]
    with ThreadPoolExecutor(2) as threads:  # a job embeds on several threads
        found = list(threads.map(embedder.embed, [pixels[:2], pixels[2:], []]))
    assert [part.shape for part in found] == [(2, 2, embedder.width), (1, 2, embedder.width), (0, 2, embedder.width)]
    kind = engine_of(folder)
    assert kind is not None
    engine = kind.load(folder, DeviceOptions("cpu", "float32", num_threads=1))
    asked = [engine.prepare_condition(text) for text in CONDITIONS]
    for place, image in enumerate(images):
        readings = engine.run_batch(engine.prepare_image(image, "", asked))
        expected = np.concatenate([reading.rows for reading in readings])
        np.testing.assert_allclose(np.concatenate(found)[place], expected, atol=1e-5)


def test_a_large_jpeg_is_prepared_from_fewer_pixels(tmp_path: Path) -> None:
    embedder = load_bulk_embedder(ModelChoice(write_tiny_checkpoint(tmp_path), [], "float32"), "cpu")
    engine = FocalLensEngine.load(tmp_path, DeviceOptions("cpu", "float32"))
    photograph = Image.fromarray(skimage.data.coffee()).resize((1600, 1200))  # type: ignore[no-untyped-call]
    file = encode(photograph, "JPEG")
    smaller, whole = (
        engine.transform(decode_image(file, ImageLimits(), side=side)) for side in (engine.image_side, None)
    )
    np.testing.assert_array_equal(embedder.prepare(file), smaller)
    assert (smaller != whole).any()


def test_what_a_model_can_not_follow_is_told(tmp_path: Path) -> None:
    write_instructblip(tmp_path / "blip")
    with pytest.raises(EmbeddingError, match="this model accepts at most 24"):
        load_bulk_embedder(ModelChoice(tmp_path / "blip", ["what is the shape " * 9], "float32"), "cpu")
    (tmp_path / "blip" / "qformer_tokenizer" / "tokenizer_config.json").unlink()
    (tmp_path / "blip" / "preprocessor_config.json").unlink()
    with pytest.raises(EmbeddingError, match="blip"):
        load_bulk_embedder(ModelChoice(tmp_path / "blip", [], "float32"), "cpu")
