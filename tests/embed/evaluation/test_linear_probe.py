"""A probe is trained on what the tower's projection is given, k images of each class a seed, and its best rate told."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from services.core.text_files import BadFile
from services.embed.evaluation.embedders import EngineEmbedder
from services.embed.evaluation.linear_probe import (
    NoProjection,
    ProbeOptions,
    ProbeScore,
    Split,
    best_score,
    draw_shots,
    embed_features,
    evaluate_linear_probe,
    fit_probe,
    load_probe,
    points,
    top1_accuracy,
)
from services.embed.evaluation.same_class import read_nodes
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.plain_engine import PlainEngine
from services.nn.clip_model import create_clip, save_clip
from services.nn.devices import DeviceOptions
from tests.embed.evaluation.data_sets import RED, write_image, write_probe
from tests.embed.evaluation.embedders import MeanColor
from tests.embed.tiny import CONFIG, EMBEDDING_WIDTH, write_tiny_checkpoint

CPU = DeviceOptions("cpu", "float32")
OPTIONS = ProbeOptions(shots=(1, 2), num_seeds=2, num_epochs=60, learning_rates=(1e-1, 1e-9), batch_size=4)
WIDTH = CONFIG["model_cfg"]["vision_cfg"]["width"]


def pictures() -> list[Image.Image]:
    pixels = np.random.default_rng(2).integers(0, 256, (5, 40, 40, 3), dtype=np.uint8)
    return [Image.fromarray(array) for array in pixels]


@pytest.fixture(scope="module", params=["readout", "full"])
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineEmbedder:
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("focallens"), visibility=request.param)
    return EngineEmbedder(FocalLensEngine.load(directory, CPU), name="tiny", batch_size=2)


@pytest.mark.parametrize("instruction", ["What type of dog is in the image?", None])
def test_features_projected_and_normalised_are_the_embeddings(
    embedder: EngineEmbedder, instruction: str | None
) -> None:
    features = embed_features(embedder, pictures(), instruction)
    assert features.shape == (5, WIDTH)
    projected = features @ embedder.visual.proj.numpy()
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(projected, embedder.embed_images(pictures(), [instruction])[0], atol=1e-5)


@pytest.mark.parametrize("pooling", [{}, {"pool_type": "avg"}, {"pool_type": "avg", "final_ln_after_pool": True}])
def test_features_of_a_clip_of_any_pooling_are_what_it_projects(tmp_path: Path, pooling: dict[str, object]) -> None:
    model = CONFIG["model_cfg"]
    clip = create_clip({"model_cfg": {**model, "vision_cfg": {**model["vision_cfg"], **pooling}}})
    save_clip(clip, tmp_path)
    plain = EngineEmbedder(PlainEngine.load(tmp_path, CPU), name="clip", batch_size=2)
    features = embed_features(plain, pictures(), "What type of dog is in the image?")
    projected = features @ plain.visual.proj.numpy()
    assert projected.shape == (5, EMBEDDING_WIDTH)
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(projected, plain.embed_images(pictures(), [None])[0], atol=1e-5)


def test_collecting_features_leaves_the_model_as_it_was(embedder: EngineEmbedder) -> None:
    before = embedder.embed_images(pictures(), [None])
    embed_features(embedder, pictures(), None)
    np.testing.assert_array_equal(embedder.embed_images(pictures(), [None]), before)
    assert not embedder.visual.ln_post._forward_hooks


def test_a_model_without_a_projection_is_told_apart() -> None:
    with pytest.raises(NoProjection, match="mean colour"):
        embed_features(MeanColor(), pictures(), None)


def test_a_draw_holds_as_many_images_of_each_class_and_begins_with_every_smaller_draw() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1, 2, 2, 2])
    draw = draw_shots(labels, 3, seed=1)
    assert labels[draw].tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    assert len(np.unique(draw)) == 9
    assert draw_shots(labels, 2, seed=1).tolist() == draw[:, :2].tolist()
    assert any(draw_shots(labels, 3, seed).tolist() != draw.tolist() for seed in range(2, 5))


def separable(num_each: int, seed: int) -> Split:
    """Three classes around the corners of a triangle."""
    labels = np.repeat(np.arange(3), num_each)
    noise = np.random.default_rng(seed).normal(size=(len(labels), 3)) * 0.1
    return Split((np.eye(3)[labels] + noise).astype(np.float32), labels)


@pytest.mark.slow
def test_a_probe_learns_classes_that_a_line_separates() -> None:
    probe = fit_probe(separable(8, 0), 1e-1, 0, OPTIONS)
    assert top1_accuracy(probe, separable(20, 1)) == 1


def test_training_takes_every_example_once_an_epoch_by_adam_without_weight_decay() -> None:
    """One epoch of one whole batch is one step of Adam: each weight moves by the learning rate against its gradient."""
    train = separable(4, 0)
    probe = fit_probe(train, 1e-2, 0, replace(OPTIONS, num_epochs=1, batch_size=12))
    residual = torch.full((12, 3), 1 / 3) - torch.eye(3)[torch.from_numpy(train.labels)]
    gradient = residual.T @ torch.from_numpy(train.features)
    np.testing.assert_allclose(probe.weight.detach(), -1e-2 * torch.sign(gradient), rtol=1e-4)


def test_a_tie_of_logits_is_a_wrong_answer() -> None:
    probe = torch.nn.Linear(3, 3)
    torch.nn.init.zeros_(probe.weight)
    torch.nn.init.zeros_(probe.bias)
    assert top1_accuracy(probe, separable(4, 0)) == 0


@pytest.mark.slow
def test_classes_that_look_different_are_learned_from_few_images_the_same_way_every_time(
    embedder: EngineEmbedder, tmp_path: Path
) -> None:
    data = load_probe(write_probe(tmp_path), "colour", OPTIONS)
    assert (data.num_classes, len(data.train.paths), len(data.val.paths)) == (3, 9, 6)
    scores = evaluate_linear_probe(embedder, data, OPTIONS)
    assert scores.keys() == {1, 2}
    # classes of plain colours are told apart from one image each, but not without learning
    assert scores[2].mean > 90
    assert scores[2].learning_rate == 1e-1
    assert scores == evaluate_linear_probe(embedder, data, OPTIONS)


class Listening(EngineEmbedder):
    """Notes what it is asked."""

    asked: tuple[str | None, ...] = ()

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> NDArray[np.float32]:
        self.asked += tuple(instructions)
        return super().embed_images(images, instructions)


@pytest.mark.slow
def test_images_are_asked_for_their_type_once_to_train_on_and_once_to_test(tmp_path: Path) -> None:
    embedder = Listening(FocalLensEngine.load(write_tiny_checkpoint(tmp_path / "checkpoint"), CPU), name="tiny")
    evaluate_linear_probe(embedder, load_probe(write_probe(tmp_path), "dog", OPTIONS), OPTIONS)
    assert embedder.asked == ("What type of dog is in the image?",) * 2


def test_deviations_stand_beside_their_scores() -> None:
    scores = {5: ProbeScore(60.0, 1.5, 1e-2), 10: ProbeScore(70.0, 0.5, 5e-3)}
    assert points(scores) == {"5": 60.0, "5 ±": 1.5, "10": 70.0, "10 ±": 0.5}


def test_the_best_learning_rate_is_that_of_the_best_mean_not_of_the_best_seed() -> None:
    score = best_score([[0.9, 0.7], [0.3, 0.6], [0.3, 0.5]], (1e-2, 1e-3))
    assert (score.mean, score.standard_deviation, score.learning_rate) == pytest.approx((60.0, 10.0, 1e-3))
    assert best_score([[0.5, 0.5]], (1e-2, 1e-3)) == ProbeScore(50.0, 0.0, 1e-2)


def test_the_defaults_are_the_dissertations() -> None:
    options = ProbeOptions()
    assert (options.shots, options.num_epochs) == ((5, 10, 15), 100)
    assert options.learning_rates == (1e-2, 7.5e-3, 5e-3, 2.5e-3, 1e-4)


def test_without_a_category_the_classes_are_imagenets_dogs(tmp_path: Path) -> None:
    (dog,) = [node for node in read_nodes() if node.node == "Dog"]
    for part in ("train", "val"):
        for wnid in (*dog.classes, "n01440764"):
            write_image(tmp_path / part / wnid / f"{wnid}_1.JPEG", RED, size=(8, 8))
    data = load_probe(tmp_path, None, replace(OPTIONS, shots=(1,)))
    assert (data.category, data.num_classes, len(data.val.paths)) == ("dog", 118, 118)


def test_folders_that_are_missing_or_hold_too_little_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="train is missing"):
        load_probe(tmp_path, "colour", OPTIONS)
    write_image(tmp_path / "train" / "red" / "1.jpg", RED)
    with pytest.raises(BadFile, match="train holds 1 folders"):
        load_probe(tmp_path, "colour", OPTIONS)
    write_probe(tmp_path)
    with pytest.raises(BadFile, match=r"train/blue holds 3 images, not 4"):
        load_probe(tmp_path, "colour", replace(OPTIONS, shots=(4,)))
    with pytest.raises(BadFile, match=r"train/n02085620 is missing. It belongs to ILSVRC"):
        load_probe(tmp_path, None, OPTIONS)
