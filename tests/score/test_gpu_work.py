"""The work that images, captions and their comparison give a GPU, beside open_clip's for the same towers."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from services.nn.clip_texts import Text
from services.score import fsc_clip
from services.score.engine import ImageItem, ScoreEngine
from services.score.model.checkpoint import FscClipCheckpoint
from services.score.model.pairing import PairItem
from tests.nn.clip_on_gpu import SIDE, clip_on_gpu, open_clips_work
from tests.nn.counted_gpu import GPU, CountedGPU

NUM_PATCHES, WIDTH = 49, 512


@pytest.fixture(scope="module")
def engine() -> ScoreEngine:
    engine = ScoreEngine(FscClipCheckpoint(clip_on_gpu(), 0.5), GPU, torch.bfloat16)
    CountedGPU.of(engine.run_batch, images(1))  # copies what images are normalised by
    return engine


def images(num: int) -> list[ImageItem]:
    return [ImageItem(f"{number}", np.zeros((SIDE, SIDE, 3), np.uint8)) for number in range(num)]


def captions(engine: ScoreEngine, num: int) -> list[Text]:
    return [engine.prepare_caption(f"{'red ' * number} square") for number in range(num)]


def test_a_batch_is_one_copy_and_one_read_of_each_kind_and_as_many_operations_whatever_its_size(
    engine: ScoreEngine,
) -> None:
    for items in (images(32), captions(engine, 32)):
        few, many = (CountedGPU.of(engine.run_batch, items[:size]) for size in (17, 32))
        assert few.crossings == many.crossings == (1, 1)
        assert few.operations == many.operations


def test_the_towers_start_hardly_more_operations_than_open_clips(engine: ScoreEngine) -> None:
    """The features of patches and words take a few more."""
    for theirs, items in zip(open_clips_work(clip_on_gpu(), 32), (images(32), captions(engine, 32)), strict=True):
        assert CountedGPU.of(engine.run_batch, items).num_operations <= theirs.num_operations + 20


def test_a_few_images_or_captions_are_one_graph_and_some_operations(engine: ScoreEngine) -> None:
    for items in (images(8), captions(engine, 8)):
        for _ in range(2):
            CountedGPU.of(engine.run_batch, items)
        counted = CountedGPU.of(engine.run_batch, items)
        assert counted.operations["graph"] == 1 and counted.num_operations <= 5
        assert counted.crossings == (1, 1)


def test_images_and_captions_are_compared_on_the_device_and_read_once(
    engine: ScoreEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's meta device has no autocast that could be switched off
    monkeypatch.setattr(fsc_clip, "_full_precision", lambda x: nullcontext())
    with torch.inference_mode(), CountedGPU():
        features = engine.run_batch([*images(5), *captions(engine, 5)])
    pairs = [PairItem(image, features[5:], explains=True) for image in features[:5]]
    counted = CountedGPU.of(engine.pairing.run_batch, pairs)
    assert counted.crossings == (0, 1)
    assert counted.reads[0] == sum(pair.num_tokens * (1 + NUM_PATCHES) for pair in pairs)


def test_the_patches_of_a_batch_are_read_together_once_a_cache_wants_them(engine: ScoreEngine) -> None:
    with torch.inference_mode(), CountedGPU():
        features = engine.run_batch(images(5))
    counted = CountedGPU.of(lambda: [one.to_bytes() for one in features])
    assert counted.reads == [5 * NUM_PATCHES * WIDTH]
