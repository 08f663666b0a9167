"""The scorer: what is computed, what is remembered, and what becomes of calls that fail."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from services.core.batching.batcher import Batcher, BatchLimits, Engine
from services.core.batching.compute_thread import ComputeThread
from services.core.batching.slices import SLICE_INPUTS
from services.core.cache.result_cache import ResultCache
from services.core.cache.stores import LruStore
from services.core.errors import DeadlineExceeded, InvalidRequest, Overloaded, TooLarge
from services.core.exchange import RequestContext
from services.core.images.inputs import DecodeLimits, ImageInput, ImageInputs
from services.core.images.references import ImageLimits
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import Served
from services.core.store.manifest import CheckpointInfo, Manifest
from services.nn.clip_texts import Text
from services.nn.devices import DeviceOptions
from services.score.call import ScoreCall, Scored, captions_of
from services.score.engine import ImageItem, ScoreEngine
from services.score.model.checkpoint import load_fsc_clip
from services.score.model.features import Features
from services.score.model.pairing import PairEngine, PairItem, Similarities
from services.score.service import ScoreBatchers, Scorer, ServedScore
from tests.core.image_files import encode
from tests.score.tiny import CONTEXT_LENGTH, NUM_PATCHES, write_tiny_checkpoint


class NotingPairs(PairEngine):
    """Notes what it compared."""

    def __init__(self, ran: list[Any]) -> None:
        super().__init__(torch.device("cpu"))
        self.ran = ran

    def run_batch(self, items: Sequence[PairItem]) -> list[Similarities]:
        self.ran.extend(items)
        return super().run_batch(items)


class NotingEngine(ScoreEngine):
    """Notes what it ran, in order; `may_run` holds its batches of images and captions back."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(load_fsc_clip(directory, dtype=dtype), torch.device("cpu"), dtype)
        self.ran: list[Any] = []
        self.batches: list[Sequence[Any]] = []
        self.num_begun = 0
        self.pairing = NotingPairs(self.ran)
        self.may_run = threading.Event()
        self.may_run.set()

    def run_collated(self, batch: Any) -> list[Features]:
        self.num_begun += len(batch.items)
        assert self.may_run.wait(30)
        self.ran.extend(batch.items)
        self.batches.append(batch.items)
        return super().run_collated(batch)

    @property
    def encoded(self) -> list[Any]:
        return [item for item in self.ran if not isinstance(item, PairItem)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def engine(directory: Path) -> NotingEngine:
    return NotingEngine(directory)


@dataclass(frozen=True)
class Service:
    scorer: Scorer
    served: ServedScore
    metrics: Metrics

    async def score(self, call: ScoreCall, served: ServedScore | None = None) -> Scored:
        return await self.scorer.score(served or self.served, call, RequestContext(time.monotonic() + 30))

    def num_lookups(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("fovea_cache_requests_total", {"result": result}) or 0.0


@asynccontextmanager
async def service_of(
    engine: ScoreEngine,
    *,
    max_waiting_images: int = 1000,
    max_queue_cost: int = 100_000,
    store: LruStore | None = None,
    max_heatmap_numbers: int = 10_000,
) -> AsyncIterator[Service]:
    metrics, thread = Metrics("score"), ComputeThread("test")
    thread.start()
    limits = BatchLimits(4096, 64, max_queue_cost)

    def batcher(runs: Engine[Any, Any]) -> Batcher[Any, Any]:
        return Batcher(runs, thread=thread, limits=limits, metrics=metrics)

    batchers = ScoreBatchers(batcher(engine), batcher(engine), batcher(engine.pairing))
    inputs = ImageInputs(
        ImageLimits(),
        fetch_limits=None,
        url_setting="IMAGE_URLS",
        decoding=DecodeLimits(2, max_waiting=max_waiting_images),
        metrics=metrics,
    )
    cache = ResultCache(store or LruStore(2**22), metrics)
    scorer = Scorer(cache, inputs, metrics, max_heatmap_numbers=max_heatmap_numbers)
    try:
        async with inputs:
            yield Service(scorer, Served(engine, batchers, manifest()), metrics)
    finally:
        await batchers.close()
        await thread.close()


def manifest(seed: int = 0) -> Manifest:
    return Manifest.describe("tiny", CheckpointInfo(kind="fsc-clip", seed=seed), {})


async def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.001)


def picture(number: int) -> ImageInput:
    colors = np.random.default_rng(number).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return ImageInput(encode(Image.fromarray(colors).resize((20, 20)), "PNG"), f"images.{number}")


def about(image: ImageInput, *captions: str, **options: Any) -> ScoreCall:
    """One image beside captions."""
    pairs = [(0, index) for index in range(len(captions))]
    return ScoreCall([image], captions_of(captions), pairs, **options)


def numbered(num_captions: int) -> list[str]:
    return [f"caption number {number}" for number in range(num_captions)]


# --- what is computed ---


async def test_scores_are_those_of_the_engine_for_each_pair(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        captions = ["a red square", "a blue circle", "a red square left of it"]
        scored = await service.score(about(picture(1), *captions))
        image = next(item for item in engine.ran if isinstance(item, ImageItem))
        picture_features, *texts = engine.run_batch([image, *map(engine.prepare_caption, captions)])
        (expected,) = engine.pairing.run_batch([PairItem(picture_features, texts)])
        np.testing.assert_allclose(scored.global_cosines, expected.global_cosines, atol=1e-5)
        np.testing.assert_allclose(scored.local_cosines, expected.local_cosines, atol=1e-3)
        np.testing.assert_allclose(scored.scores, engine.mix(expected), atol=1e-3)
        assert scored.num_images == 1
        assert scored.prompt_tokens == sum(engine.prepare_caption(caption).num_tokens for caption in captions)


async def test_what_a_call_encodes_is_compared_on_the_device_and_what_was_cached_is_brought_there(
    engine: NotingEngine,
) -> None:
    async with service_of(engine) as service:
        await service.score(about(picture(1), "a red square"))
        await service.score(about(picture(1), "a blue circle"))
        first, second = (item for item in engine.ran if isinstance(item, PairItem))
        there = [one.tokens_on(torch.device("cpu")) is not None for one in (first.image, *first.captions)]
        assert there == [True, True]
        assert [one.tokens_on(torch.device("cpu")) is not None for one in (second.image, *second.captions)] == [
            False,
            True,
        ]


async def test_equal_captions_are_encoded_and_compared_once_and_score_the_same(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        captions = ["a red square", "it", "A  red square", "a blue circle", "it"] * 7
        scored = await service.score(about(picture(1), *captions))
        assert len([item for item in engine.ran if isinstance(item, Text)]) == 3
        assert [len(item.captions) for item in engine.ran if isinstance(item, PairItem)] == [3]
        for column in (scored.global_cosines, scored.local_cosines, scored.scores):
            assert (column[0::5] == column[0]).all()
            assert (column[0::5] == column[2::5]).all()
            assert (column[1::5] == column[4::5]).all()
            assert len(set(column.tolist())) == 3


async def test_several_requests_share_batches_of_images_and_of_captions_but_none_of_both(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        engine.may_run.clear()
        # The batch that is held back is another call's: its captions, as its image is decoded first.
        calls = [asyncio.create_task(service.score(about(picture(9), "caption 9")))]
        await until(lambda: engine.num_begun > 0)
        calls += [
            asyncio.create_task(service.score(about(picture(number), f"caption {number}"))) for number in range(9)
        ]
        waiting = service.served.batcher
        await until(lambda: waiting.captions.queue_depth == 9 and waiting.images.queue_depth == 10)
        engine.may_run.set()
        _, *together = await asyncio.gather(*calls)
        for number, scored in enumerate(together):
            alone = await service.score(about(picture(number), f"caption {number}"))
            np.testing.assert_array_equal(alone.scores, scored.scores)
        kinds = [({type(item) for item in batch}, len(batch)) for batch in engine.batches if len(batch) > 2]
        assert kinds == [({ImageItem}, 10), ({Text}, 9)]


async def test_pairs_of_several_images_come_back_in_their_order(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        images = [picture(number) for number in range(3)]
        captions = captions_of(["one", "two", "three"])
        pairs = [(2, 0), (0, 1), (2, 2), (1, 0), (0, 0), (2, 1)]
        scored = await service.score(ScoreCall(images, captions, pairs, explain=True))
        assert scored.num_images == 3
        assert scored.explained is not None
        for place, (image, caption) in enumerate(pairs):
            alone = await service.score(about(images[image], captions[caption].text, explain=True))
            assert abs(alone.scores[0] - scored.scores[place]) < 1e-6
            assert alone.explained is not None
            np.testing.assert_allclose(alone.explained[0].heatmaps, scored.explained[place].heatmaps, atol=1.1e-4)


@pytest.mark.slow
async def test_a_call_of_many_slices_keeps_the_order_of_its_captions(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        captions = numbered(1024)
        scored = await service.score(about(picture(1), *captions))
        for index in (0, SLICE_INPUTS - 1, SLICE_INPUTS, 700, 1023):
            alone = await service.score(about(picture(1), captions[index]))
            assert abs(alone.scores[0] - scored.scores[index]) < 1e-6


async def test_what_is_known_does_not_wait_behind_what_is_encoded(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        known = about(picture(1), "a red square")
        await service.score(known)
        engine.ran.clear()
        engine.may_run.clear()
        cold = asyncio.create_task(service.score(about(picture(2), *numbered(512))))
        await until(lambda: service.served.batcher.captions.queue_depth >= SLICE_INPUTS)
        warm = asyncio.create_task(service.score(known))
        await until(lambda: service.served.batcher.pairs.queue_depth > 0)
        engine.may_run.set()
        await asyncio.gather(cold, warm)
        of_the_warm = next(place for place, item in enumerate(engine.ran) if isinstance(item, PairItem))
        assert len(engine.ran[of_the_warm].captions) == 1
        assert sum(isinstance(item, Text) for item in engine.ran[of_the_warm:]) > 128


# --- what is remembered ---


async def test_a_call_asked_before_encodes_nothing(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        call = about(picture(1), "a red square", "a blue circle")
        first = await service.score(call)
        engine.ran.clear()
        again = await service.score(call)
        assert not engine.encoded
        assert (first.scores == again.scores).all()
        assert service.num_lookups("hit") == 3


async def test_only_what_is_new_in_a_call_is_encoded(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        await service.score(about(picture(1), "a red square", "a blue circle"))
        engine.ran.clear()
        await service.score(about(picture(2), "a blue circle", "a green one"))
        assert sorted(type(item).__name__ for item in engine.encoded) == ["ImageItem", "Text"]


async def test_concurrent_equal_calls_share_one_computation(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        call = about(picture(1), "a red square", "a blue circle")
        answers = await asyncio.gather(*(service.score(call) for _ in range(20)))
        assert len(engine.encoded) == 3
        assert all((answer.scores == answers[0].scores).all() for answer in answers)


@pytest.mark.slow
async def test_another_checkpoint_never_answers_from_what_the_first_encoded(
    engine: NotingEngine, tmp_path: Path
) -> None:
    other = ScoreEngine.load(write_tiny_checkpoint(tmp_path, seed=1), DeviceOptions(device="cpu", dtype="float32"))
    async with service_of(engine) as service, service_of(other) as second:
        call = about(picture(1), "a red square")
        first = await service.score(call)
        successor = Served(other, second.served.batcher, manifest(seed=1))
        assert np.abs((await service.score(call, successor)).scores - first.scores).max() > 1e-3


async def test_processes_that_compute_in_different_precision_do_not_share_features(
    engine: NotingEngine, directory: Path
) -> None:
    half = NotingEngine(directory, torch.bfloat16)
    store, call = LruStore(2**20), about(picture(1), "a red square")
    async with service_of(engine, store=store) as service, service_of(half, store=store) as other:
        await service.score(call)
        await other.score(call)
        assert len(half.encoded) == 2


async def test_bytes_that_look_like_the_tokens_of_a_caption_are_still_no_image(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        await service.score(about(picture(1), "one"))
        tokens = engine.prepare_caption("one").input_ids.tobytes()
        with pytest.raises(InvalidRequest):
            await service.score(about(ImageInput(tokens, "image"), "one"))


async def test_without_a_cache_every_call_is_computed(engine: NotingEngine) -> None:
    async with service_of(engine, store=LruStore(0)) as service:
        first = await service.score(about(picture(1), "one"))
        assert (await service.score(about(picture(1), "one"))).scores == first.scores
        assert len(engine.encoded) == 4


# --- what fails ---


async def test_a_call_past_its_deadline_is_not_computed(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        past = time.monotonic() - 1
        with pytest.raises(DeadlineExceeded):
            await service.scorer.score(service.served, about(picture(1), "one"), RequestContext(past))
        assert not engine.ran


async def test_a_caption_at_fault_is_named_before_anything_is_encoded(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        captions = numbered(200)
        captions[130] = "red " * CONTEXT_LENGTH
        with pytest.raises(TooLarge) as too_long:
            await service.score(about(picture(1), *captions))
        assert too_long.value.param == "captions.130"
        assert not engine.ran
        scored = await service.score(about(picture(1), *captions, truncate=True))
        assert scored.scores.shape == (200,)


async def test_an_image_at_fault_is_named_and_what_was_encoded_beside_it_is_kept(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        with pytest.raises(InvalidRequest) as broken:
            await service.score(about(ImageInput(b"no image", "image"), "one"))
        assert broken.value.param == "image"
        await service.score(about(picture(1), "one"))


async def test_heatmaps_over_the_limit_are_refused_and_one_at_it_is_drawn(engine: NotingEngine) -> None:
    num_tokens = engine.prepare_caption("a red square").num_tokens - 1
    async with service_of(engine, max_heatmap_numbers=2 * num_tokens * NUM_PATCHES) as service:
        drawn = await service.score(about(picture(1), "a red square", "a blue circle", explain=True))
        assert drawn.explained is not None
        assert [one.heatmaps.shape for one in drawn.explained] == [(num_tokens, 4, 4)] * 2
        assert [len(one.tokens) for one in drawn.explained] == [num_tokens] * 2
        with pytest.raises(TooLarge, match="numbers; the limit is") as refused:
            await service.score(about(picture(1), "a red square", "a blue circle", "it", explain=True))
        assert refused.value.param == "explain"
        plain = await service.score(about(picture(1), "a red square", "a blue circle", "it"))
        assert plain.explained is None


async def test_more_images_than_may_wait_for_decoding_are_refused_at_once(engine: NotingEngine) -> None:
    async with service_of(engine, max_waiting_images=1) as service:
        answers = await asyncio.gather(
            *(service.score(about(picture(number), "one")) for number in range(4)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        assert refused
        assert {one.code for one in refused} == {"queue_full"}
        await service.score(about(picture(1), "one"))


async def test_a_cancelled_call_leaves_room_for_the_next(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        engine.may_run.clear()  # so that none is answered before it is cancelled
        for num_steps in range(12):  # however far it has come
            call = asyncio.create_task(service.score(about(picture(num_steps), *numbered(70))))
            for _ in range(num_steps):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        engine.may_run.set()
        batchers = service.served.batcher
        assert (await service.score(about(picture(1), *numbered(70)))).scores.shape == (70,)
        assert (batchers.captions.queue_depth, batchers.pairs.queue_depth) == (0, 0)


async def test_what_waits_when_the_service_closes_is_told_so(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        engine.may_run.clear()
        waiting = asyncio.create_task(service.score(about(picture(1), *numbered(200))))
        await until(lambda: service.served.batcher.captions.queue_depth >= SLICE_INPUTS)
        closing = asyncio.create_task(service.served.batcher.close())
        await asyncio.sleep(0)
        engine.may_run.set()
        await closing
        with pytest.raises(Overloaded):
            await waiting
        with pytest.raises(Overloaded):
            await service.score(about(picture(1), "one"))
