"""Every embedder answers the same questions: images under instructions, and texts, as unit vectors."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from services.embed.evaluation.embedders import (
    EngineEmbedder,
    ImageEmbedder,
    Unconditioned,
    load_embedder,
)
from services.embed.model.focallens_engine import FocalLensEngine, load_focallens
from services.embed.model.plain_engine import PlainEngine
from services.nn.clip_model import create_clip, open_clip, save_clip
from services.nn.devices import DeviceOptions
from tests.embed.evaluation.data_sets import hues
from tests.embed.tiny import CONFIG, EMBEDDING_WIDTH, IMAGE_SIZE, write_tiny_checkpoint

CPU = DeviceOptions("cpu", "float32")
INSTRUCTIONS = ["What is the color?", None, "Focus on the shape."]


def pictures(num_images: int = 7) -> list[Image.Image]:
    """Noise, so that no two images are alike."""
    pixels = np.random.default_rng(1).integers(0, 256, (num_images, 40, 50, 3), dtype=np.uint8)
    return [Image.fromarray(array) for array in pixels]


@pytest.fixture(scope="module", params=["readout", "full"])
def focallens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("focallens"), visibility=request.param)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain CLIP inside the tiny FocalLens, as an open_clip folder."""
    directory = tmp_path_factory.mktemp("clip")
    tuned = load_focallens(write_tiny_checkpoint(directory / "tuned"))
    plain = create_clip(CONFIG)
    plain.model.load_state_dict(tuned.model.clip.state_dict())
    save_clip(plain, directory / "plain")
    return directory / "plain"


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_several_instructions_in_one_pass_are_as_one_by_one(focallens: Path, batch_size: int | None) -> None:
    embedder = EngineEmbedder(FocalLensEngine.load(focallens, CPU), name="tiny", batch_size=batch_size)
    together = embedder.embed_images(iter(pictures()), INSTRUCTIONS)
    assert together.shape == (3, 7, EMBEDDING_WIDTH)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1, atol=1e-5)
    for instruction, embeddings in zip(INSTRUCTIONS, together, strict=True):
        for image, row in zip(pictures(), embeddings, strict=True):
            np.testing.assert_allclose(embedder.embed_images([image], [instruction])[0, 0], row, atol=1e-5)


def test_an_instruction_changes_a_focallens_unless_it_is_kept_from_it(focallens: Path) -> None:
    embedder = load_embedder(str(focallens))
    color, plain, shape = embedder.embed_images(pictures(), INSTRUCTIONS)
    assert np.abs(color - shape).max() > 1e-3
    for embeddings in Unconditioned(embedder).embed_images(pictures(), INSTRUCTIONS):
        np.testing.assert_allclose(embeddings, plain, atol=1e-5)


def test_a_clip_answers_every_instruction_as_a_focallens_of_the_papers_visibility_answers_none(
    clip: Path, tmp_path: Path
) -> None:
    tuned = load_embedder(str(write_tiny_checkpoint(tmp_path, visibility="full")))
    for embeddings in load_embedder(str(clip)).embed_images(pictures(), INSTRUCTIONS):
        np.testing.assert_allclose(embeddings, tuned.embed_images(pictures(), [None])[0], atol=1e-4)


@pytest.mark.slow
def test_texts_are_embedded_by_the_frozen_tower_of_the_same_clip(focallens: Path, clip: Path) -> None:
    texts = ["a red circle", "a blue star"]
    plain = load_embedder(str(clip)).embed_texts(texts)
    assert plain.shape == (2, EMBEDDING_WIDTH)
    np.testing.assert_allclose(np.linalg.norm(plain, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(load_embedder(str(focallens)).embed_texts(texts), plain, atol=1e-4)


def test_images_are_taken_a_batch_at_a_time(clip: Path) -> None:
    alive: list[weakref.ref[Image.Image]] = []

    def source() -> Iterator[Image.Image]:
        for color in hues(40):
            image = Image.new("RGB", (8, 8), color)
            alive.append(weakref.ref(image))
            assert (
                sum(reference() is not None for reference in alive) <= 9
            )  # the batch before is let go when the next is whole
            yield image

    embedder = EngineEmbedder(PlainEngine.load(clip, CPU), name="tiny", batch_size=4)
    assert embedder.embed_images(source(), [None]).shape == (1, 40, EMBEDDING_WIDTH)


def test_no_images_are_refused(focallens: Path, clip: Path) -> None:
    for reference in (focallens, clip):
        with pytest.raises(ValueError, match="no inputs to embed"):
            load_embedder(str(reference)).embed_images([], [None])


def test_an_embedder_is_named_as_it_was_asked_for_and_knows_the_size_that_it_sees(focallens: Path) -> None:
    embedder: ImageEmbedder = load_embedder(str(focallens))
    assert (embedder.name, embedder.image_size) == (str(focallens), IMAGE_SIZE)
    assert Unconditioned(embedder).name == f"{focallens}, no condition"


def test_any_architecture_of_open_clip_is_read_by_name_with_its_own_preprocessing(tmp_path: Path) -> None:
    vision = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
    config = {**CONFIG["model_cfg"], "vision_cfg": vision}
    (tmp_path / "tiny-resnet.json").write_text(json.dumps(config))
    open_clip().add_model_config(tmp_path / "tiny-resnet.json")
    model, _, preprocess = open_clip().create_model_and_transforms("tiny-resnet")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    embedder = load_embedder("tiny-resnet", pretrained=str(tmp_path / "weights.pt"))
    with torch.inference_mode():
        pixels = torch.stack([preprocess(image) for image in pictures(2)])
        images = model.eval().encode_image(pixels, normalize=True)
        texts = model.encode_text(open_clip().get_tokenizer("tiny-resnet")(["a dog"]), normalize=True)
    assert embedder.image_size == 64
    np.testing.assert_allclose(embedder.embed_images(pictures(2), [None])[0], images.numpy(), atol=1e-4)
    np.testing.assert_allclose(embedder.embed_texts(["a dog"]), texts.numpy(), atol=1e-5)


def test_a_name_that_open_clip_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="has no model 'ViT-Z'"):
        load_embedder("ViT-Z", pretrained="openai")
