"""A served checkpoint that answers by a Stepper instead of a Batcher."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.core.batching.compute_thread import ComputeThread
from services.core.batching.stepper import StepLimits, Stepper
from services.core.errors import Overloaded
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import FollowOptions, Served, ServedCheckpoint
from services.core.store.manifest import Manifest
from services.core.store.store import Store
from tests.core.stepping_engines import CountingEngine, Item, events_of
from tests.core.tiny_checkpoints import INFO, write_checkpoint
from tests.core.unlimited_memory import Unlimited

CountingStepper = Stepper[Item, str]


class LoadedEngine(CountingEngine):
    """Needs no warming up, and is always right."""

    def warm_up(self) -> None: ...

    def self_check(self) -> None: ...


class Place:
    """A store in a folder, and a checkpoint of it that counts in steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store.open((folder / "store").as_uri())
        self.thread = ComputeThread("compute-test")
        self.thread.start()
        self.metrics = Metrics("test")
        self.checkpoint: ServedCheckpoint[LoadedEngine, CountingStepper] = ServedCheckpoint(
            self.store,
            FollowOptions("toy", "latest", folder / "cache", 3600, Unlimited()),
            load=self._load,
            make_batcher=self._make_stepper,
            metrics=self.metrics,
        )

    def publish(self, weights: str) -> str:
        directory = write_checkpoint(self.folder / "new" / weights, weights.encode())
        return self.store.publish("toy", directory, INFO).id

    def serving(self) -> str:
        with self.checkpoint.lease() as served:
            return served.version

    async def until_serving(self, version: str) -> None:
        while self.serving() != version:  # noqa: ASYNC110 - it loads on a thread of its own
            await asyncio.sleep(0.005)

    def _load(self, folder: Path, manifest: Manifest) -> LoadedEngine:
        return LoadedEngine()

    def _make_stepper(self, engine: LoadedEngine) -> CountingStepper:
        limits = StepLimits(max_admit_cost=100, max_queue_cost=100, max_queue_size=100)
        return Stepper(engine, thread=self.thread, limits=limits, metrics=self.metrics)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.checkpoint.close()
    await place.thread.close()


async def read(served: Served[LoadedEngine, CountingStepper], item: Item) -> list[str]:
    return [event.value async for event in served.batcher.submit(item, cost=1)]


async def test_an_answer_that_began_on_the_old_version_ends_on_it_while_the_new_one_serves(place: Place) -> None:
    place.publish("old")
    await place.checkpoint.start()
    long = Item("long", num_events=5)
    with place.checkpoint.lease() as old:
        old.engine.gate.clear()
        stream = old.batcher.submit(long, cost=1)
        assert await asyncio.to_thread(old.engine.entered.wait, 60)
        new_version = place.publish("new")
        old.engine.gate.set()
        looking = asyncio.create_task(place.checkpoint.look())
        await place.until_serving(new_version)
        with place.checkpoint.lease() as new:
            assert await read(new, Item("new", num_events=2)) == ["new-0", "new-1"]
        assert [event.value async for event in stream] == events_of(long)
        assert not looking.done()
    await looking

    with pytest.raises(Overloaded):
        old.batcher.submit(Item("late"), cost=1)


async def test_a_stepper_that_is_broken_turns_the_check_red(place: Place) -> None:
    version = place.publish("v1")
    await place.checkpoint.start()
    assert place.checkpoint.check() == (True, f"toy@{version}")
    await place.thread.close()

    assert place.checkpoint.check() == (False, f"toy@{version} can't process requests any more")
