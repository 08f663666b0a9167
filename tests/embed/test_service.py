"""From calls to vectors: what is shared, what is bounded, what survives a failure."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from services.core.batching.batcher import Batcher, BatchLimits
from services.core.batching.compute_thread import ComputeThread
from services.core.batching.slices import SLICE_INPUTS
from services.core.cache.result_cache import ResultCache
from services.core.cache.stores import LruStore
from services.core.errors import DeadlineExceeded, InvalidField, InvalidRequest, Overloaded, TooLarge
from services.core.exchange import RequestContext
from services.core.images.inputs import DecodeLimits, ImageInput, ImageInputs
from services.core.images.references import ImageLimits
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import Served
from services.core.store.manifest import CheckpointInfo, Manifest
from services.embed.call import EmbedBatchers, EmbedCall, Embedded, Input, ServedEmbed, TextInput
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.items import Item, Reading
from services.embed.service import Embedder
from services.nn.devices import DeviceOptions
from tests.core.image_files import encode
from tests.embed.tiny import CONTEXT_LENGTH, write_tiny_checkpoint


class NotingEngine(FocalLensEngine):
    """The real engine, which notes how many items it ran, and its batches."""

    num_run = 0
    batches: ClassVar[list[Sequence[Item]]] = []

    def run_batch(self, items: Sequence[Item]) -> list[Reading]:
        self.num_run += len(items)
        self.batches.append(items)
        return super().run_batch(items)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> NotingEngine:
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    loaded = NotingEngine.load(directory, DeviceOptions(device="cpu", dtype="float32"))
    assert isinstance(loaded, NotingEngine)
    return loaded


class Service:
    """An embedder over an engine, and shorthands to ask it."""

    def __init__(self, embedder: Embedder, served: ServedEmbed, metrics: Metrics) -> None:
        self.embedder = embedder
        self.served = served
        self.metrics = metrics

    async def embed(self, call: EmbedCall, served: ServedEmbed | None = None) -> Embedded:
        return await self.embedder.embed(served or self.served, call, RequestContext(time.monotonic() + 30))

    def num_lookups(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("fovea_cache_requests_total", {"result": result}) or 0.0


@asynccontextmanager
async def service_of(
    engine: FocalLensEngine, *, max_waiting_images: int = 1000, store: LruStore | None = None
) -> AsyncIterator[Service]:
    metrics, thread = Metrics("embed"), ComputeThread("test")
    thread.start()
    limits = BatchLimits(4096, 64, 100_000)
    images, texts = (Batcher[Item, Reading](engine, thread=thread, limits=limits, metrics=metrics) for _ in range(2))
    batchers = EmbedBatchers(images, texts)
    inputs = ImageInputs(
        ImageLimits(),
        fetch_limits=None,
        url_setting="IMAGE_URLS",
        decoding=DecodeLimits(2, max_waiting=max_waiting_images),
        metrics=metrics,
    )
    embedder = Embedder(ResultCache(store or LruStore(2**20), metrics), inputs, metrics)
    try:
        async with inputs:
            yield Service(embedder, Served(engine, batchers, manifest()), metrics)
    finally:
        await batchers.close()
        await thread.close()


def manifest(seed: int = 0) -> Manifest:
    return Manifest.describe("tiny", CheckpointInfo(kind="focallens-clip", seed=seed), {})


def picture(number: int) -> ImageInput:
    color = (number % 256, number // 256, 100)
    return ImageInput(encode(Image.new("RGB", (20, 20), color), "PNG"), f"images.{number}")


async def test_concurrent_equal_calls_share_one_computation(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        engine.num_run = 0
        call = EmbedCall([picture(1)], ["what color?"])
        answers = await asyncio.gather(*(service.embed(call) for _ in range(20)))
        assert engine.num_run == 1
        assert all((answer.rows == answers[0].rows).all() for answer in answers)


async def test_only_what_is_new_in_a_call_is_computed(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        await service.embed(EmbedCall([picture(1), TextInput("one", "t")], ["what color?"]))
        engine.num_run = 0
        again = EmbedCall([picture(1), TextInput("one", "t"), picture(2)], ["what color?"])
        await service.embed(again)
        assert engine.num_run == 1


async def test_images_and_texts_of_a_call_come_back_in_their_order_from_batches_of_one_kind(
    engine: NotingEngine,
) -> None:
    async with service_of(engine) as service:
        inputs: list[Input] = [TextInput("one", "t"), picture(1), TextInput("two", "t"), picture(2)]
        engine.batches.clear()
        together = await service.embed(EmbedCall(inputs))
        kinds = [{type(item) for item in batch} for batch in engine.batches]
        assert sorted(map(len, kinds)) == [1, 1]
    async with service_of(engine) as apart:  # which has nothing cached
        for row, one in zip(together.rows, inputs, strict=True):
            np.testing.assert_allclose(row, (await apart.embed(EmbedCall([one]))).rows[0], atol=1e-5)


async def test_another_checkpoint_never_answers_from_the_results_of_the_first(
    engine: NotingEngine, tmp_path: Path
) -> None:
    other = FocalLensEngine.load(write_tiny_checkpoint(tmp_path, seed=1), DeviceOptions(device="cpu", dtype="float32"))
    async with service_of(engine) as service, service_of(other) as second:
        call = EmbedCall([picture(1), TextInput("one", "t")])
        first = await service.embed(call)
        successor: ServedEmbed = Served(other, second.served.batcher, manifest(seed=1))
        assert np.abs((await service.embed(call, successor)).rows - first.rows).max() > 1e-3


async def test_processes_that_compute_in_different_precision_do_not_share_results(
    engine: NotingEngine, tmp_path: Path
) -> None:
    half = FocalLensEngine.load(write_tiny_checkpoint(tmp_path), DeviceOptions(device="cpu", dtype="bfloat16"))
    store, call = LruStore(2**20), EmbedCall([TextInput("one", "t")])
    async with service_of(engine, store=store) as service, service_of(half, store=store) as other:
        assert ((await service.embed(call)).rows != (await other.embed(call)).rows).any()


async def test_bytes_that_look_like_the_tokens_of_a_text_are_still_no_image(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        await service.embed(EmbedCall([TextInput("one", "t")]))
        tokens = engine.prepare_text("one").input_ids.tobytes()
        with pytest.raises(InvalidRequest):
            await service.embed(EmbedCall([ImageInput(tokens, "file")]))


async def test_a_call_past_its_deadline_is_not_computed(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        engine.num_run = 0
        call, past = EmbedCall([TextInput("one", "t")]), time.monotonic() - 1
        with pytest.raises(DeadlineExceeded):
            await service.embedder.embed(service.served, call, RequestContext(past))
        assert engine.num_run == 0


async def test_a_call_of_many_slices_keeps_the_order_of_its_inputs(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        inputs = [
            picture(number) if number % 3 else TextInput(f"text {number}", "t")
            for number in range(2 * SLICE_INPUTS + 5)
        ]
        embedded = await service.embed(EmbedCall(inputs, ["what color?", "which shape?"]))
        row = 0
        for one in inputs:
            alone = await service.embed(EmbedCall([one], ["what color?", "which shape?"]))
            assert (embedded.rows[row : row + len(alone.rows)] == alone.rows).all()
            assert embedded.conditions[row : row + len(alone.rows)] == alone.conditions
            row += len(alone.rows)
        assert row == len(embedded.rows)
        assert embedded.num_images == sum(isinstance(one, ImageInput) for one in inputs)


async def test_an_error_in_any_slice_is_raised_as_itself_and_names_its_input(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        texts = [TextInput(f"text {number}", f"input.{number}") for number in range(3 * SLICE_INPUTS)]
        texts[130] = TextInput("red " * CONTEXT_LENGTH, "input.130")
        with pytest.raises(TooLarge) as too_long:
            await service.embed(EmbedCall(texts))
        assert too_long.value.param == "input.130"
        images = [picture(number) for number in range(SLICE_INPUTS + 2)]
        images[-1] = ImageInput(b"no image", "file.65")
        with pytest.raises(InvalidRequest) as broken:
            await service.embed(EmbedCall(images))
        assert broken.value.param == "file.65"


async def test_what_was_computed_before_a_failure_is_not_computed_again(engine: NotingEngine) -> None:
    async with service_of(engine) as service:
        texts = [TextInput(f"text {number}", f"input.{number}") for number in range(5 * SLICE_INPUTS)]
        with pytest.raises(InvalidField):
            await service.embed(EmbedCall([*texts, TextInput("", "input.320")]))
        engine.num_run = 0
        await service.embed(EmbedCall(texts))
        assert engine.num_run < len(texts)
        assert service.num_lookups("hit") > 0


async def test_more_images_than_may_wait_for_decoding_are_refused_at_once(engine: NotingEngine) -> None:
    async with service_of(engine, max_waiting_images=3) as service:
        with pytest.raises(Overloaded) as refused:
            await service.embed(EmbedCall([picture(number) for number in range(8)]))
        assert refused.value.code == "queue_full"
        fits = await service.embed(EmbedCall([picture(number) for number in range(3)]))
        assert len(fits.rows) == 3


async def test_a_cancelled_call_leaves_room_for_the_next(engine: NotingEngine) -> None:
    async with service_of(engine, max_waiting_images=8) as service:
        for num_steps in range(8):  # however far it has come
            call = asyncio.create_task(service.embed(EmbedCall([picture(number) for number in range(8)])))
            for _ in range(num_steps):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert len((await service.embed(EmbedCall([picture(number) for number in range(8)]))).rows) == 8
