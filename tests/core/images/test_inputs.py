import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from PIL import Image

from services.core.errors import Overloaded
from services.core.exchange import Caller, set_caller
from services.core.images.inputs import SMALL_IMAGE_PIXELS, DecodeLimits, ImageInputs
from services.core.images.references import ImageLimits
from services.core.metrics import Metrics
from tests.core.image_files import encode

SMALL = encode(Image.new("1", (20, 20)), "PNG")
LARGE = encode(Image.new("1", (4000, SMALL_IMAGE_PIXELS // 4000 + 1)), "PNG")
LARGE_PIXELS = 4000 * (SMALL_IMAGE_PIXELS // 4000 + 1)


@asynccontextmanager
async def decoding(
    num_threads: int, max_pixels: int = LARGE_PIXELS, max_waiting: int = 100
) -> AsyncIterator[ImageInputs]:
    limits = DecodeLimits(num_threads, max_pixels, max_waiting)
    async with ImageInputs(
        ImageLimits(), fetch_limits=None, url_setting="IMAGE_URLS", decoding=limits, metrics=Metrics("test")
    ) as inputs:
        yield inputs


class Decoders:
    """Requests whose images are held on their threads until the test lets them go."""

    def __init__(self, inputs: ImageInputs) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []
        self._inputs = inputs
        self._changed = asyncio.Condition()
        self._loop = asyncio.get_running_loop()

    def decode(self, name: str, data: bytes, caller: Caller) -> asyncio.Task[None]:
        async def run() -> None:
            set_caller(caller)
            await self._inputs.decode(data, "image", self._use(name))

        return asyncio.create_task(run())

    async def until_begun(self, number: int) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: len(self.begun) >= number)

    def _use(self, name: str) -> Callable[[Image.Image], None]:
        def use(image: Image.Image) -> None:
            asyncio.run_coroutine_threadsafe(self._note(name), self._loop).result()
            assert self.may_end.wait(60)

        return use

    async def _note(self, name: str) -> None:
        async with self._changed:
            self.begun.append(name)
            self._changed.notify_all()


async def test_a_request_of_many_images_takes_turns_with_one_of_a_single_image() -> None:
    async with decoding(1) as inputs:
        decoders = Decoders(inputs)
        many, single = Caller("alice"), Caller("alice")
        tasks = [decoders.decode(f"many {number}", SMALL, many) for number in range(20)]
        await decoders.until_begun(1)
        tasks.append(decoders.decode("single", SMALL, single))
        await asyncio.sleep(0)
        decoders.may_end.set()
        await asyncio.gather(*tasks)
    assert decoders.begun.index("single") <= 2


async def test_large_images_are_decoded_within_their_pixels_and_leave_the_small_ones_alone() -> None:
    async with decoding(4) as inputs:
        decoders = Decoders(inputs)
        tasks = [decoders.decode(f"large {number}", LARGE, Caller("alice")) for number in range(3)]
        await decoders.until_begun(1)
        tasks += [decoders.decode(f"small {number}", SMALL, Caller("alice")) for number in range(4)]
        await decoders.until_begun(5)
        assert sorted(name.split()[0] for name in decoders.begun) == ["large", *["small"] * 4]
        decoders.may_end.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_what_is_cancelled_while_it_waits_is_never_decoded(data: bytes) -> None:
    async with decoding(1) as inputs:
        decoders = Decoders(inputs)
        runs = decoders.decode("runs", data, Caller("alice"))
        await decoders.until_begun(1)
        waiting = [decoders.decode("waits", data, Caller("alice")) for _ in range(5)]
        for _ in range(50):  # large ones have their headers read first
            await asyncio.sleep(0.001)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        decoders.may_end.set()
        await runs
        await decoders.decode("comes later", data, Caller("alice"))
    assert decoders.begun == ["runs", "comes later"]


async def test_what_runs_keeps_its_place_to_its_end_although_its_request_is_gone() -> None:
    async with decoding(1) as inputs:
        decoders = Decoders(inputs)
        gone = decoders.decode("gone", LARGE, Caller("alice"))
        await decoders.until_begun(1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        following = decoders.decode("next", LARGE, Caller("alice"))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert decoders.begun == ["gone"]
        decoders.may_end.set()
        await following
    assert decoders.begun == ["gone", "next"]


async def test_a_client_whose_images_wait_too_many_is_refused_and_another_is_not() -> None:
    async with decoding(1, max_waiting=2) as inputs:
        decoders = Decoders(inputs)
        tasks = [decoders.decode("alice", SMALL, Caller("alice")) for _ in range(3)]
        await decoders.until_begun(1)
        with pytest.raises(Overloaded) as refused:
            await decoders.decode("too many", SMALL, Caller("alice"))
        assert refused.value.code == "queue_full"
        tasks.append(decoders.decode("bob", SMALL, Caller("bob")))
        decoders.may_end.set()
        await asyncio.gather(*tasks)
    assert sorted(decoders.begun) == ["alice", "alice", "alice", "bob"]
