"""Towers that are captured as graphs, run without a GPU: a graph serves every batch of its shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.jobs.imports.clip_weights import convert_openai_clip
from services.nn import captured
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.score.engine import Item, ScoreEngine
from services.score.model.features import Features
from tests.core.image_files import scene
from tests.nn.eager_graphs import eager_graphs
from tests.published_clips import write_openai
from tests.score.tiny import write_tiny_checkpoint

# packed weights, of float32, are not those of a GPU
CPU = DeviceOptions("cpu", "bfloat16", num_threads=1)
CAPTIONS = ("a red square", "it", "a photograph of two green triangles above a very small and very blue circle", "red")


@pytest.fixture(params=["FSC-CLIP", "OpenAI's ResNet"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> ScoreEngine:
    if request.param == "FSC-CLIP":
        return ScoreEngine.load(write_tiny_checkpoint(tmp_path), CPU)
    convert_openai_clip(write_openai(tmp_path / "model.pt", is_resnet=True), tmp_path / "checkpoint")
    return ScoreEngine.load_plain(tmp_path / "checkpoint", CPU)


def batches(engine: ScoreEngine) -> list[list[Item]]:
    """Batches of images, of captions and of both."""
    images: list[Item] = [engine.prepare_image(scene().rotate(10 * number), f"{number}") for number in range(4)]
    captions: list[Item] = [engine.prepare_caption(caption) for caption in CAPTIONS]
    return [[one] for one in (*images, *captions)] + [[*images[start:], *captions[: 4 - start]] for start in range(4)]


def numbers(features: Features) -> np.ndarray[Any, Any]:
    return np.concatenate([features.pooled, features.tokens.astype(np.float32).ravel()])


def test_features_are_those_of_the_towers_themselves(engine: ScoreEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = batches(engine)
    with eager_graphs() as graphs:
        answered = [engine.run_batch(items) for items in asked]
        assert graphs
        monkeypatch.setattr(captured, "MAX_ROWS", 0)
        expected = [engine.run_batch(items) for items in asked]
    for some, others in zip(answered, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            np.testing.assert_array_equal(numbers(one), numbers(other))


def test_a_model_whose_graphs_compute_something_else_fails_its_checks(engine: ScoreEngine) -> None:
    with eager_graphs(are_wrong=True), pytest.raises(BrokenModel):
        engine.warm_up()
        engine.self_check()


def test_a_model_passes_its_checks_with_graphs(engine: ScoreEngine) -> None:
    with eager_graphs() as graphs:
        engine.warm_up()
        engine.self_check()
    assert graphs
