"""The work that texts and images under conditions give a GPU, beside open_clip's for the same towers."""

from collections.abc import Sequence

import pytest
import torch
from PIL import Image

from services.embed.focallens import FocalLens
from services.embed.model.focallens_engine import FocalLensCheckpoint, FocalLensEngine
from services.embed.model.items import ImageItem, Item
from tests.nn.clip_on_gpu import SIDE, clip_on_gpu, open_clips_work
from tests.nn.counted_gpu import GPU, CountedGPU


@pytest.fixture(scope="module", params=["readout", "full"])
def engine(request: pytest.FixtureRequest) -> FocalLensEngine:
    clip = clip_on_gpu()
    model = FocalLens(clip.model, visibility=request.param).eval().requires_grad_(False).to(GPU, torch.bfloat16)
    return FocalLensEngine(FocalLensCheckpoint(model, clip.tokenizer, clip.transform), GPU, torch.bfloat16)


def images(engine: FocalLensEngine, num: int, num_conditions: int) -> list[ImageItem]:
    """Return items of images under conditions that have passed the engine before, or under none."""
    texts = [engine.prepare_text(f"condition {number}") for number in range(num_conditions)]
    picture = Image.new("RGB", (SIDE, SIDE))
    items = [item for number in range(num) for item in engine.prepare_image(picture, f"{number}", texts or [None])]
    with torch.inference_mode(), CountedGPU():
        engine.run_batch(items[: len(texts) or 1])
    return items


def again(engine: FocalLensEngine, items: Sequence[Item]) -> CountedGPU:
    """Count a batch whose shapes have come twice before."""
    for _ in range(2):
        CountedGPU.of(engine.run_batch, items)
    return CountedGPU.of(engine.run_batch, items)


@pytest.mark.parametrize("num_conditions", [0, 1, 4])
def test_a_batch_is_copied_and_read_as_often_whatever_its_size(engine: FocalLensEngine, num_conditions: int) -> None:
    few, many = (CountedGPU.of(engine.run_batch, images(engine, num, num_conditions)) for num in (17, 32))
    assert few.crossings == many.crossings
    copies, reads = many.crossings
    assert copies <= 3 and reads == 1


def test_texts_are_one_copy_and_one_read(engine: FocalLensEngine) -> None:
    batch: list[Item] = [engine.prepare_text(f"text {number}") for number in range(32)]
    assert CountedGPU.of(engine.run_batch, batch).crossings == (1, 1)


@pytest.mark.parametrize("num_conditions", [0, 1])
def test_a_few_images_are_one_graph_and_some_operations(engine: FocalLensEngine, num_conditions: int) -> None:
    counted = again(engine, images(engine, 8, num_conditions))
    assert counted.operations["graph"] == 1
    assert counted.num_operations <= 12


def test_a_few_texts_are_one_graph_and_some_operations(engine: FocalLensEngine) -> None:
    counted = again(engine, [engine.prepare_text(f"text {number}") for number in range(8)])
    assert counted.operations["graph"] == 1
    assert counted.num_operations <= 8


def test_an_image_under_many_conditions_is_as_many_rows(engine: FocalLensEngine) -> None:
    assert again(engine, images(engine, 1, 16)).operations["graph"] == 1
    assert again(engine, images(engine, 1, 17)).operations["graph"] == 0


def test_four_conditions_pass_the_tower_in_hardly_more_operations_than_one(engine: FocalLensEngine) -> None:
    one, four = (CountedGPU.of(engine.run_batch, images(engine, 32, num)) for num in (1, 4))
    assert four.num_operations <= one.num_operations + 8


def test_an_image_under_a_condition_starts_hardly_more_operations_than_open_clips_tower(
    engine: FocalLensEngine,
) -> None:
    theirs, _ = open_clips_work(clip_on_gpu(), 32)
    assert CountedGPU.of(engine.run_batch, images(engine, 32, 1)).num_operations <= theirs.num_operations + 30
