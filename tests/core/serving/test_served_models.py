"""Models that share a budget of memory: who stays, who leaves, who waits."""

import asyncio
import shutil
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from services.core.batching.batcher import Batcher, BatchLimits
from services.core.batching.compute_thread import ComputeThread
from services.core.errors import DeadlineExceeded, Overloaded
from services.core.exchange import RequestContext
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import FollowOptions, MemoryBudget, Served, ServedCheckpoint
from services.core.serving.served_models import Resident, ServedModels, StoredModels
from services.core.store.manifest import Manifest
from services.core.store.store import Store
from tests.core.engines import submission
from tests.core.tiny_checkpoints import INFO, write_checkpoint

BROKEN = "broken"


class ToyEngine:
    """Answers `item` with `weights:item`."""

    def __init__(self, weights: str) -> None:
        self.weights = weights

    def warm_up(self) -> None:
        pass

    def self_check(self) -> None:
        if BROKEN in self.weights:
            raise RuntimeError

    def run_batch(self, items: Sequence[str]) -> list[str]:
        return [f"{self.weights}:{item}" for item in items]


class House:
    """A store, and the served models of it. A model's weights are `<its name> <its size> <anything>`."""

    def __init__(self, folder: Path, max_bytes: int, **models: int) -> None:
        self.folder = folder
        self.store = Store.open((folder / "store").as_uri())
        self.thread = ComputeThread("compute-test")
        self.thread.start()
        self.metrics = Metrics("test")
        self.loads: list[str] = []
        self.gate = threading.Event()  # while it is closed nothing is loaded
        self.gate.set()
        self.most_held = 0
        self.models: ServedModels[ToyEngine, str] = ServedModels(
            StoredModels(self.store, runs=(INFO.kind,), max_age_s=3600),
            max_bytes=max_bytes,
            measure=lambda folder: int(weights_in(folder).split()[1]),
            describe=lambda engine: engine.weights,
            settings="FOVEA_TEST",
            metrics=self.metrics,
        )
        for name, size in models.items():
            self.publish(name, size)
            self.models.add(lambda room, name=name: self._follow(name, room))  # type: ignore[misc]

    def publish(self, name: str, size: int, more: str = "") -> str:
        weights = f"{name} {size} {more}".strip()
        directory = write_checkpoint(self.folder / "new" / weights.replace(" ", "-"), weights.encode())
        return self.store.publish(name, directory, INFO).id

    def __getitem__(self, name: str) -> Resident[ToyEngine, str]:
        return next(one for one in self.models.residents if one.checkpoint.name == name)

    @property
    def in_memory(self) -> set[str]:
        return {one.checkpoint.name for one in self.models.residents if one.checkpoint.is_loaded}

    def sample(self, metric: str, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"fovea_{metric}", {"name": name})

    async def ask(self, name: str, item: str = "x", *, within_s: float = 60.0) -> str:
        async with self.models.hold(self[name], RequestContext(time.monotonic() + within_s)) as served:
            self.most_held = max(self.most_held, self.models.held_bytes)
            return await answer_of(served, item)

    async def close(self) -> None:
        self.gate.set()
        await self.models.close()
        await self.thread.close()

    def _follow(self, name: str, room: MemoryBudget) -> ServedCheckpoint[ToyEngine, Batcher[str, str]]:
        return ServedCheckpoint(
            self.store,
            FollowOptions(name, "latest", self.folder / "cache", 3600, room),
            load=self._load,
            make_batcher=self._make_batcher,
            metrics=self.metrics,
        )

    def _load(self, folder: Path, manifest: Manifest) -> ToyEngine:
        self.loads.append(manifest.name)
        assert self.gate.wait(60), "the test left the gate closed"
        return ToyEngine(weights_in(folder))

    def _make_batcher(self, engine: ToyEngine) -> Batcher[str, str]:
        limits = BatchLimits(max_batch_cost=100, max_batch_size=4, max_queue_cost=10_000)
        return Batcher(engine, thread=self.thread, limits=limits, metrics=self.metrics)


def weights_in(folder: Path) -> str:
    body = (folder / "model.safetensors").read_bytes()
    (header_bytes,) = struct.unpack("<Q", body[:8])
    return body[8 + header_bytes :].decode()


async def answer_of(served: Served[ToyEngine, Batcher[str, str]], item: str) -> str:
    [answer] = await served.batcher.submit([submission(item)])
    result: str = answer.result
    return result


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """Memory for two of three."""
    house = House(tmp_path, 20, a=10, b=10, c=10)
    await house.models.start()
    yield house
    await house.close()


async def test_every_model_is_tried_at_the_start_and_as_many_stay_as_have_room(house: House) -> None:
    assert house.loads == ["a", "b", "c"]
    assert house.in_memory == {"b", "c"}
    for name in "abc":
        is_ready, detail = house[name].checkpoint.check()
        assert is_ready, detail
        assert house[name].description == f"{name} 10"
    assert house.models.held_bytes == 20
    assert [house.sample("model_resident_bytes", name) for name in "abc"] == [0, 10, 10]


async def test_the_model_that_was_asked_least_recently_makes_room_and_comes_back_when_it_is_asked(house: House) -> None:
    assert await house.ask("c") == "c 10:x"
    assert await house.ask("b") == "b 10:x"
    assert await house.ask("a") == "a 10:x"
    assert house.in_memory == {"a", "b"}
    assert await house.ask("b") == "b 10:x"
    assert await house.ask("c") == "c 10:x"

    assert house.in_memory == {"b", "c"}
    assert [house.sample("model_loads_total", name) for name in "abc"] == [2, 1, 2]
    assert [house.sample("model_unloads_total", name) for name in "abc"] == [2, 0, 1]
    assert house.most_held == 20


async def test_those_who_ask_for_one_model_at_once_wait_for_one_load(house: House) -> None:
    house.loads.clear()
    house.gate.clear()
    waiting = [asyncio.create_task(house.ask("a", f"{number}")) for number in range(20)]
    await until(lambda: house.loads == ["a"])
    house.gate.set()
    assert await asyncio.gather(*waiting) == [f"a 10:{number}" for number in range(20)]
    assert house.loads == ["a"]


async def test_what_nobody_has_may_be_of_a_model_that_is_being_loaded_and_not_of_one_that_the_store_lacks(
    tmp_path: Path,
) -> None:
    house = House(tmp_path, 20, a=10, b=10)
    shutil.rmtree(tmp_path / "store" / "models" / "a")
    house.gate.clear()
    starting = asyncio.create_task(house.models.start())
    await until(lambda: house.loads == ["b"])
    with pytest.raises(Overloaded, match=r"^b@latest is being loaded\.$"):
        house.models.check_arrived("something")
    house.gate.set()
    await starting
    house.models.check_arrived("something")
    with pytest.raises(Overloaded, match=r"^a@latest could not be loaded: the store lacks it\.$"):
        house.models.check_arrived("a")
    await house.close()


async def test_a_model_that_is_answering_leaves_only_when_it_has_answered(tmp_path: Path) -> None:
    house = House(tmp_path, 10, a=10, b=10)
    await house.models.start()
    async with house.models.hold(house["b"], RequestContext(time.monotonic() + 60)) as served:
        other = asyncio.create_task(house.ask("a"))
        await asyncio.sleep(0.05)
        assert not other.done()
        assert await answer_of(served, "late") == "b 10:late"
    assert await other == "a 10:x"
    assert house.in_memory == {"a"}
    await house.close()


async def test_who_asks_for_a_leaving_model_is_answered_once_it_is_back(tmp_path: Path) -> None:
    house = House(tmp_path, 10, a=10, b=10)
    await house.models.start()
    async with house.models.hold(house["b"], RequestContext(time.monotonic() + 60)):
        other = asyncio.create_task(house.ask("a"))
        await until(lambda: not house["b"].checkpoint.is_loaded)
        again = asyncio.create_task(house.ask("b"))
        await asyncio.sleep(0.05)
        assert not again.done()
    assert await other == "a 10:x"
    assert await again == "b 10:x"
    await house.close()


async def test_an_idle_model_leaves_ahead_of_one_that_is_answering(house: House) -> None:
    async with house.models.hold(house["b"], RequestContext(time.monotonic() + 60)):
        await house.ask("c")  # later than b, but done
        await house.ask("a")
        assert house.in_memory == {"a", "b"}


async def test_a_model_larger_than_the_budget_is_refused_and_nobody_leaves_for_it(tmp_path: Path) -> None:
    house = House(tmp_path, 20, a=10, huge=21)
    await house.models.start()
    is_ready, detail = house["huge"].checkpoint.check()
    assert not is_ready
    assert detail.endswith("its parameters take 21 bytes, but the limit for all models is 20 (FOVEA_TEST_MEMORY_BYTES)")
    assert house.in_memory == {"a"}
    assert "huge" not in house.loads
    with pytest.raises(Overloaded):
        await house.ask("huge")
    await house.close()


async def test_a_model_that_fits_alone_sends_all_others_away(tmp_path: Path) -> None:
    house = House(tmp_path, 20, a=10, b=10, large=20)
    await house.models.start()
    assert house.in_memory == {"large"}
    house.loads.clear()
    house.gate.clear()
    waiting = [asyncio.create_task(house.ask(name)) for name in "ab"]
    await until(lambda: len(house.loads) > 0)
    await asyncio.sleep(0.05)
    assert len(house.loads) == 1, "one after the other, since each takes more while it is loaded"
    house.gate.set()
    assert list(await asyncio.gather(*waiting)) == ["a 10:x", "b 10:x"]
    assert house.in_memory == {"a", "b"}
    await house.close()


async def test_without_a_budget_every_model_stays(tmp_path: Path) -> None:
    house = House(tmp_path, 0, a=10**15, b=10**15)
    await house.models.start()
    assert house.in_memory == {"a", "b"}
    await house.close()


async def test_waiting_for_a_model_ends_with_the_deadline_and_loading_goes_on(house: House) -> None:
    house.gate.clear()
    patient = asyncio.create_task(house.ask("a"))
    with pytest.raises(DeadlineExceeded):
        await house.ask("a", within_s=0.05)
    house.gate.set()
    assert await patient == "a 10:x"


async def test_one_who_goes_away_does_not_end_the_loading_for_the_others(house: House) -> None:
    house.loads.clear()
    house.gate.clear()
    leaving, staying = [asyncio.create_task(house.ask("a")) for _ in range(2)]
    await until(lambda: house.loads == ["a"])
    leaving.cancel()
    await asyncio.wait([leaving])
    house.gate.set()
    assert await staying == "a 10:x"
    assert leaving.cancelled()
    assert house.loads == ["a"]


async def test_many_who_ask_for_more_models_than_there_is_room_for_are_all_answered(tmp_path: Path) -> None:
    house = House(tmp_path, 25, a=10, b=10, c=15, d=25)
    await house.models.start()
    asked = [("abcd"[(7 * number) % 4], f"{number}") for number in range(120)]
    answers = await asyncio.gather(*(house.ask(name, item) for name, item in asked))
    sizes = {"a": 10, "b": 10, "c": 15, "d": 25}
    assert answers == [f"{name} {sizes[name]}:{item}" for name, item in asked]
    assert house.most_held <= 25
    assert house.models.held_bytes <= 25
    await house.close()


async def test_under_constant_load_a_model_still_makes_room_for_another(tmp_path: Path) -> None:
    house = House(tmp_path, 10, a=10, b=10)
    await house.models.start()
    is_over = False

    async def keep_asking() -> None:
        while not is_over:
            await house.ask("b")

    clients = [asyncio.create_task(keep_asking()) for _ in range(8)]
    for _ in range(3):
        assert await house.ask("a") == "a 10:x"
    is_over = True
    await asyncio.gather(*clients)
    await house.close()


async def test_a_new_version_that_has_no_room_beside_the_old_one_takes_its_place(tmp_path: Path) -> None:
    house = House(tmp_path, 15, a=10)
    await house.models.start()
    house.publish("a", 12, "new")
    await house["a"].checkpoint.look()
    assert await house.ask("a") == "a 12 new:x"
    assert house["a"].description == "a 12 new"
    assert house.models.held_bytes == 12
    await house.close()


async def test_idle_neighbours_make_room_for_a_new_version_beside_the_old_one(house: House) -> None:
    async with house.models.hold(house["b"], RequestContext(time.monotonic() + 60)) as served:
        house.publish("b", 10, "new")
        looking = asyncio.create_task(house["b"].checkpoint.look())
        while await house.ask("b") == "b 10:x":
            pass
        assert await answer_of(served, "late") == "b 10:late"
        assert house.in_memory == {"b"}
    await looking
    assert house.models.held_bytes == 10


async def test_a_replaced_version_that_is_still_answering_takes_its_room_until_it_is_done(tmp_path: Path) -> None:
    house = House(tmp_path, 25, b=20, a=10)
    await house.models.start()
    async with house.models.hold(house["a"], RequestContext(time.monotonic() + 60)) as served:
        house.publish("a", 10, "new")
        looking = asyncio.create_task(house["a"].checkpoint.look())
        while await house.ask("a") == "a 10:x":
            pass
        other = asyncio.create_task(house.ask("b"))
        await until(lambda: house.models.held_bytes == 10)  # the new version has left, the old one can not
        await asyncio.sleep(0.05)
        assert not other.done()
        assert house.models.held_bytes == 10
        assert await answer_of(served, "late") == "a 10:late"
    assert await asyncio.wait_for(other, 30) == "b 20:x"
    await looking
    await house.close()


async def test_where_the_new_version_is_refused_the_old_one_comes_back(tmp_path: Path) -> None:
    house = House(tmp_path, 15, a=10)
    await house.models.start()
    version = house["a"].checkpoint.check()[1]
    house.publish("a", 10, BROKEN)
    await house["a"].checkpoint.look()
    assert house.models.held_bytes == 0
    assert await house.ask("a") == "a 10:x"
    is_ready, detail = house["a"].checkpoint.check()
    assert is_ready
    assert detail.startswith(f"{version}; refused a@")
    await house.close()


async def test_a_new_version_of_a_model_that_is_not_in_memory_is_tried_at_once(house: House) -> None:
    house.publish("a", 10, BROKEN)
    await house["a"].checkpoint.look()
    assert "did not pass its self-check" in house["a"].checkpoint.check()[1]
    house.publish("a", 10, "new")
    await house["a"].checkpoint.look()
    assert await house.ask("a") == "a 10 new:x"


async def test_weights_that_can_not_be_measured_are_refused(tmp_path: Path) -> None:
    house = House(tmp_path, 20, a=10)
    await house.models.start()
    version = house.store.publish("a", write_checkpoint(tmp_path / "odd", b"a much"), INFO).id
    await house["a"].checkpoint.look()
    assert f"refused a@{version}: its weights can't be measured (ValueError)" in house["a"].checkpoint.check()[1]
    assert await house.ask("a") == "a 10:x"
    await house.close()


async def test_closing_fails_who_waits_for_a_model(tmp_path: Path) -> None:
    house = House(tmp_path, 10, a=10, b=10)
    await house.models.start()
    async with house.models.hold(house["b"], RequestContext(time.monotonic() + 60)):
        waiting = asyncio.create_task(house.ask("a"))
        await until(lambda: not house["b"].checkpoint.is_loaded)
        await house.models.close()
    with pytest.raises(Overloaded):
        await waiting
    await house.thread.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what happens on threads tells no event
        await asyncio.sleep(0.002)
