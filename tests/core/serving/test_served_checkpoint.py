import asyncio
import gc
import shutil
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from services.core.batching.batcher import Batcher, BatchLimits
from services.core.batching.compute_thread import ComputeThread
from services.core.errors import Overloaded
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import (
    THREAD_NAME,
    Candidate,
    FollowOptions,
    Served,
    ServedCheckpoint,
    VersionRefused,
)
from services.core.store.errors import StoreUnavailable
from services.core.store.manifest import MANIFEST_FILE, Manifest, StoredFile
from services.core.store.store import Store
from tests.core.compute_calls import run_on
from tests.core.engines import submission
from tests.core.tiny_checkpoints import INFO, write_checkpoint
from tests.core.unlimited_memory import Unlimited

SECRET = "password of the loader"


class Panic(BaseException):
    """As libraries in Rust raise."""


class TinyEngine:
    """Answers `item` with `weights:item`; weights named after a step make that step fail."""

    def __init__(self, weights: str, events: list[tuple[str, str]], hang: threading.Event) -> None:
        self.weights = weights
        self.hang = hang
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self._events = events
        self._note("load")

    def warm_up(self) -> None:
        self._note("warm up")

    def self_check(self) -> None:
        self._note("self-check")

    def run_batch(self, items: Sequence[str]) -> list[str]:
        self.entered.set()
        assert self.gate.wait(60), "the test left the gate closed"
        return [f"{self.weights}:{item}" for item in items]

    def _note(self, step: str) -> None:
        self._events.append((step, threading.current_thread().name))
        if self.weights == f"fails to {step}":
            raise RuntimeError(SECRET)
        if self.weights == f"panics in {step}":
            raise Panic(SECRET)
        if self.weights == f"hangs in {step}":
            self.hang.wait()
        if self.weights == f"grows in {step}":
            held = list[bytes]()
            while True:  # as a model of 10⁹ layers does
                held.append(bytes(1024))
                time.sleep(0)


class Place:
    """A store in a folder, and a served checkpoint that follows its alias `latest`."""

    def __init__(
        self, folder: Path, *, poll_s: float = 3600, damaged_retry_s: float = 3600, load_timeout_s: float = 3600
    ) -> None:
        self.folder = folder
        self.hang = threading.Event()
        self.store = Store.open((folder / "store").as_uri())
        self.thread = ComputeThread("compute-test")
        self.thread.start()
        self.metrics = Metrics("test")
        self.events: list[tuple[str, str]] = []
        self.is_copy_taken_away = False  # by another process that needs the room, as the next version is loaded
        self.lacks = ""  # what the next version needs beside the store
        self.checkpoint: ServedCheckpoint[TinyEngine, Batcher[str, str]] = ServedCheckpoint(
            self.store,
            FollowOptions("toy", "latest", folder / "cache", poll_s, Unlimited(), damaged_retry_s, load_timeout_s),
            load=self._load,
            make_batcher=self._make_batcher,
            metrics=self.metrics,
        )

    def publish(self, weights: str) -> str:
        """Publish a version with these weights as `latest`; returns its id."""
        directory = write_checkpoint(self.folder / "new" / weights, weights.encode())
        return self.store.publish("toy", directory, INFO).id

    def weights_file(self, version: str) -> Path:
        return self.folder / "store" / "models" / "toy" / "versions" / version / "model.safetensors"

    def sample(self, metric: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"fovea_{metric}", labels)

    def serving(self) -> str:
        with self.checkpoint.lease() as served:
            return served.engine.weights

    async def until_serving(self, weights: str) -> None:
        while self.serving() != weights:  # noqa: ASYNC110 - it loads on threads and polls by its own clock
            await asyncio.sleep(0.005)

    async def ask(self, item: str) -> str:
        with self.checkpoint.lease() as served:
            return await answer_of(served, item)

    async def close(self) -> None:
        self.hang.set()
        await self.checkpoint.close()
        await self.thread.close()

    def _load(self, folder: Path, manifest: Manifest) -> TinyEngine:
        if self.is_copy_taken_away:
            self.is_copy_taken_away = False
            shutil.rmtree(folder)
        if self.lacks:
            raise StoreUnavailable(self.lacks)
        body = (folder / "model.safetensors").read_bytes()
        (header_bytes,) = struct.unpack("<Q", body[:8])
        return TinyEngine(body[8 + header_bytes :].decode(), self.events, self.hang)

    def _make_batcher(self, engine: TinyEngine) -> Batcher[str, str]:
        limits = BatchLimits(max_batch_cost=100, max_batch_size=4, max_queue_cost=10_000)
        return Batcher(engine, thread=self.thread, limits=limits, metrics=self.metrics)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.close()


@pytest.fixture
async def impatient_place(tmp_path: Path) -> AsyncIterator[Place]:
    """One that tries damaged versions again at once."""
    place = Place(tmp_path, damaged_retry_s=0)
    yield place
    await place.close()


@pytest.fixture
async def hasty_place(tmp_path: Path) -> AsyncIterator[Place]:
    """One that gives a version a second."""
    place = Place(tmp_path, load_timeout_s=1)
    yield place
    await place.close()


async def until_no_thread_loads() -> None:
    while any(thread.name == THREAD_NAME for thread in threading.enumerate()):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.005)


async def answer_of(served: Served[TinyEngine, Batcher[str, str]], item: str) -> str:
    [answer] = await served.batcher.submit([submission(item)])
    result: str = answer.result
    return result


def flip_a_byte(file: Path) -> None:
    body = bytearray(file.read_bytes())
    body[-1] ^= 1
    file.write_bytes(body)


async def test_the_version_that_the_alias_names_is_served_and_told_apart(place: Place) -> None:
    version = place.publish("v1")
    await place.checkpoint.start()

    assert await place.ask("a") == "v1:a"
    with place.checkpoint.lease() as served:
        assert (served.name, served.version) == ("toy", version)
        assert served.manifest == place.store.manifest("toy", version)
        assert served.digest == served.manifest.digest
    assert place.checkpoint.check() == (True, f"toy@{version}")
    assert place.sample("model_info", name="toy", version=version, digest=served.digest) == 1
    assert place.sample("model_ready", name="toy") == 1
    assert (place.sample("model_load_seconds", name="toy") or 0) > 0
    assert place.sample("checkpoint_refusals_total", name="toy") == 0


async def test_until_a_version_is_loaded_requests_are_refused_and_the_check_is_red(place: Place) -> None:
    with pytest.raises(Overloaded) as refused, place.checkpoint.lease():
        pass

    assert refused.value.code == "loading"
    assert refused.value.message == "toy@latest is being loaded."
    assert place.checkpoint.check() == (False, "loading toy@latest")
    assert place.sample("rejected_total", reason="loading") == 1
    assert place.sample("model_ready", name="toy") == 0


async def test_a_version_is_made_ready_beside_the_event_loop_and_the_compute_thread(place: Place) -> None:
    place.publish("v1")
    await place.checkpoint.start()

    assert [step for step, _ in place.events] == ["load", "warm up", "self-check"]
    [thread] = {thread for _, thread in place.events}
    assert thread not in {"compute-test", threading.current_thread().name}


@pytest.mark.parametrize("step", ["load", "warm up", "self-check"])
@pytest.mark.slow
async def test_a_version_that_hangs_is_given_up_and_the_old_one_answers_meanwhile(
    hasty_place: Place, step: str
) -> None:
    place = hasty_place
    good = place.publish("good")
    await place.checkpoint.start()
    bad = place.publish(f"hangs in {step}")
    looking = asyncio.create_task(place.checkpoint.look())

    while (step, "load-checkpoint") not in place.events[3:]:  # noqa: ASYNC110 - it happens on a thread
        await asyncio.sleep(0.005)
    answered = 0
    while not looking.done():
        assert await place.ask("a") == "good:a"
        answered += 1
    await looking

    assert answered > 0
    named = {"load": "load", "warm up": "warm up", "self-check": "pass its self-check"}[step]
    is_ready, detail = place.checkpoint.check()
    assert (is_ready, detail) == (True, f"toy@{good}; refused toy@{bad}: it did not {named} within 1 s")
    assert place.sample("checkpoint_refusals_total", name="toy") == 1
    place.publish("better")
    await place.checkpoint.look()
    assert await place.ask("a") == "better:a"


@pytest.mark.parametrize("step", ["load", "warm up", "self-check"])
async def test_a_version_that_never_ends_growing_is_stopped_and_the_next_good_one_serves(
    hasty_place: Place, step: str
) -> None:
    place = hasty_place
    place.publish("good")
    await place.checkpoint.start()
    bad = place.publish(f"grows in {step}")
    looking = asyncio.create_task(place.checkpoint.look())
    while not looking.done():
        assert await place.ask("a") == "good:a"
        await asyncio.sleep(0.01)

    assert f"refused toy@{bad}" in place.checkpoint.check()[1]
    await until_no_thread_loads()
    place.publish("better")
    await place.checkpoint.look()
    assert await place.ask("a") == "better:a"


async def test_a_version_that_takes_far_more_memory_than_its_files_is_refused_before_its_time_is_over() -> None:
    held = list[bytes]()

    def load() -> TinyEngine:
        while True:
            held.append(b"1" * 2**20)
            time.sleep(0.001)

    with pytest.raises(VersionRefused, match="toy@v1: it did not load within 33554432 bytes of memory"):
        await Candidate("toy@v1", load, max_growth_bytes=2**25).ready(3600)
    await until_no_thread_loads()


@pytest.mark.slow
async def test_a_version_that_ends_after_it_was_given_up_does_not_serve(hasty_place: Place) -> None:
    place = hasty_place
    place.publish("good")
    await place.checkpoint.start()
    place.publish("hangs in warm up")
    await place.checkpoint.look()
    place.hang.set()

    await until_no_thread_loads()
    assert await place.ask("a") == "good:a"


async def test_the_thread_that_loads_ends_with_it(place: Place) -> None:
    place.publish("v1")
    await place.checkpoint.start()
    loader = next(name for step, name in place.events if step == "load")

    for thread in [thread for thread in threading.enumerate() if thread.name == loader]:
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()


@pytest.mark.slow
async def test_moving_the_alias_swaps_without_a_failed_request(place: Place) -> None:
    place.publish("v0")
    await place.checkpoint.start()
    has_moved = asyncio.Event()
    seen: set[str] = set()

    async def client(name: str) -> None:
        while not has_moved.is_set():
            with place.checkpoint.lease() as served:
                await asyncio.sleep(0)  # as if the request were decoded
                assert await answer_of(served, name) == f"{served.engine.weights}:{name}"
                seen.add(served.engine.weights)

    clients = [asyncio.create_task(client(f"client-{number}")) for number in range(16)]
    for number in range(1, 6):
        await asyncio.to_thread(place.publish, f"v{number}")
        await place.checkpoint.look()
        assert await place.ask("x") == f"v{number}:x"
    has_moved.set()
    await asyncio.gather(*clients)

    assert seen >= {"v0", "v1", "v2", "v3", "v4"}
    [info] = place.metrics.model_info.collect()
    assert [sample.labels["version"] for sample in info.samples] == [place.store.resolve("toy")]
    assert place.checkpoint.check() == (True, f"toy@{place.store.resolve('toy')}")


async def test_what_waits_for_the_old_version_is_answered_by_it(place: Place) -> None:
    place.publish("old")
    await place.checkpoint.start()
    with place.checkpoint.lease() as served:
        old = served.engine
    old.gate.clear()
    waiting = [asyncio.create_task(place.ask(f"{number}")) for number in range(20)]
    assert await asyncio.to_thread(old.entered.wait, 60)
    place.publish("new")
    looking = asyncio.create_task(place.checkpoint.look())
    old.gate.set()

    assert await asyncio.gather(*waiting) == [f"old:{number}" for number in range(20)]
    await looking
    assert await place.ask("x") == "new:x"


async def test_a_request_that_began_on_the_old_version_ends_on_it_however_late_it_submits(place: Place) -> None:
    place.publish("old")
    await place.checkpoint.start()
    place.publish("new")
    with place.checkpoint.lease() as served:
        looking = asyncio.create_task(place.checkpoint.look())
        await place.until_serving("new")
        assert not looking.done()
        assert await answer_of(served, "late") == "old:late"
    await looking

    with pytest.raises(Overloaded):
        await served.batcher.submit([submission("too late")])


@pytest.mark.slow
async def test_the_old_version_leaves_memory_after_the_swap(place: Place) -> None:
    place.publish("old")
    await place.checkpoint.start()
    with place.checkpoint.lease() as served:
        await served.batcher.submit([submission("a")], deadline=time.monotonic() + 3600)
        engine = weakref.ref(served.engine)
    del served
    place.publish("new")
    await place.checkpoint.look()

    await asyncio.sleep(0)
    gc.collect()
    assert engine() is None
    assert len(place.thread.waiting) == 1


async def test_an_unloaded_version_leaves_memory_at_once_and_comes_back_when_it_is_asked_for(place: Place) -> None:
    version = place.publish("v1")
    others = set(threading.enumerate())
    await place.checkpoint.start()
    for thread in set(threading.enumerate()) - others:
        if thread.name == THREAD_NAME:
            thread.join()  # which holds what it made a moment longer than it takes to answer
    with place.checkpoint.lease() as served:
        await served.batcher.submit([submission("a")], deadline=time.monotonic() + 3600)
        engine = weakref.ref(served.engine)
    del served
    await run_on(place.thread, lambda: None)  # it answers a moment before its turn has ended
    gc.disable()  # a cycle would keep the parameters until a collection, which nobody orders
    try:
        await place.checkpoint.unload()
        assert engine() is None
    finally:
        gc.enable()

    assert not place.checkpoint.is_loaded
    assert place.checkpoint.check() == (True, f"toy@{version} is loaded on its next request")
    await place.checkpoint.look()
    assert not place.checkpoint.is_loaded, "its alias has not moved"
    await asyncio.gather(place.checkpoint.load(), place.checkpoint.load())
    assert await place.ask("a") == "v1:a"
    assert place.checkpoint.check() == (True, f"toy@{version}")
    assert [step for step, _ in place.events] == ["load", "warm up", "self-check", "load", "warm up"]
    assert (place.sample("model_loads_total", name="toy"), place.sample("model_unloads_total", name="toy")) == (2, 1)


async def test_unloading_waits_for_what_was_asked(place: Place) -> None:
    place.publish("v1")
    await place.checkpoint.start()
    with place.checkpoint.lease() as served:
        unloading = asyncio.create_task(place.checkpoint.unload())
        await asyncio.sleep(0.01)
        assert not unloading.done()
        assert await answer_of(served, "late") == "v1:late"
        with pytest.raises(Overloaded), place.checkpoint.lease():
            pass
    await unloading


async def test_a_version_comes_back_while_the_store_is_away(place: Place) -> None:
    place.publish("v1")
    await place.checkpoint.start()
    await place.checkpoint.unload()
    shutil.rmtree(place.folder / "store")
    await place.checkpoint.load()
    assert await place.ask("a") == "v1:a"


async def test_a_version_that_does_not_come_back_is_tried_again_with_the_next_request(place: Place) -> None:
    version = place.publish("v1")
    await place.checkpoint.start()
    await place.checkpoint.unload()
    shutil.rmtree(place.folder / "cache")
    (place.folder / "store" / "models").rename(place.folder / "away")
    with pytest.raises(Overloaded):
        await place.checkpoint.load()

    (place.folder / "away").rename(place.folder / "store" / "models")
    await place.checkpoint.load()
    assert place.serving() == "v1"
    assert place.checkpoint.check() == (True, f"toy@{version}")


async def test_a_moved_alias_is_loaded_also_where_the_version_before_is_not_in_memory(place: Place) -> None:
    place.publish("v1")
    await place.checkpoint.start()
    await place.checkpoint.unload()
    place.publish("v2")
    await place.checkpoint.look()
    assert await place.ask("a") == "v2:a"


async def test_two_models_of_one_process_are_told_apart_in_the_metrics(place: Place) -> None:
    other = ServedCheckpoint(
        place.store,
        FollowOptions("other", "latest", place.folder / "cache", 3600, Unlimited()),
        load=place._load,
        make_batcher=place._make_batcher,
        metrics=place.metrics,
    )
    place.store.publish("other", write_checkpoint(place.folder / "new" / "o", b"o"), INFO)
    place.publish("v1")
    await place.checkpoint.start()
    await other.start()
    place.publish("v2")
    await place.checkpoint.look()

    [info] = place.metrics.model_info.collect()
    expected = {(name, place.store.resolve(name)) for name in ("toy", "other")}
    assert {(one.labels["name"], one.labels["version"]) for one in info.samples} == expected
    await other.close()


async def test_a_version_with_one_flipped_byte_is_refused_and_the_old_one_serves_on(place: Place) -> None:
    good = place.publish("good")
    await place.checkpoint.start()
    bad = place.publish("bad")
    flip_a_byte(place.weights_file(bad))
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):  # the second soon after the first
            await place.checkpoint.look()

    assert await place.ask("a") == "good:a"
    is_ready, detail = place.checkpoint.check()
    assert is_ready
    assert detail.startswith(f"toy@{good}; refused toy@{bad} is damaged: model.safetensors: ")
    assert place.sample("checkpoint_refusals_total", name="toy") == 1
    [refusal] = [log for log in logs if log["event"] == "checkpoint refused"]
    assert (refusal["model"], refusal["version"]) == ("toy", bad)


@pytest.mark.parametrize(
    ("weights", "step"),
    [
        ("fails to load", "load"),
        ("panics in load", "load"),
        ("fails to warm up", "warm up"),
        ("fails to self-check", "pass its self-check"),
    ],
)
async def test_a_version_that_fails_on_its_way_is_refused_and_named_but_its_error_only_logged(
    place: Place, weights: str, step: str
) -> None:
    good = place.publish("good")
    await place.checkpoint.start()
    bad = place.publish(weights)
    with structlog.testing.capture_logs() as logs:
        await place.checkpoint.look()

    assert await place.ask("a") == "good:a"
    assert place.checkpoint.check() == (True, f"toy@{good}; refused toy@{bad}: it did not {step} (RuntimeError)")
    [refusal] = [log for log in logs if log["event"] == "checkpoint refused"]
    assert SECRET in str(refusal["exc_info"])


async def test_a_version_with_json_that_takes_long_to_read_is_refused_and_not_fetched(place: Place) -> None:
    """As a writer to the store's folder can make it."""
    good = place.publish("good")
    await place.checkpoint.start()
    bad = Manifest.describe("toy", INFO, {"config.json": StoredFile(sha256="0" * 64, size_bytes=2**31)})
    folder = place.folder / "store" / "models" / "toy" / "versions" / bad.version
    folder.mkdir()
    (folder / MANIFEST_FILE).write_bytes(bad.to_json())
    place.store.promote("toy", bad.version, "latest")
    await place.checkpoint.look()

    told = f"refused toy@{bad.version}: config.json has {2**31} bytes; a JSON file may have 16777216"
    assert place.checkpoint.check() == (True, f"toy@{good}; {told}")


async def test_a_refused_version_is_tried_again_only_after_the_alias_has_moved(place: Place) -> None:
    good = place.publish("good")
    await place.checkpoint.start()
    bad = place.publish("fails to load")
    for _ in range(3):
        await place.checkpoint.look()
    assert place.sample("checkpoint_refusals_total", name="toy") == 1

    place.store.promote("toy", good, "latest")
    await place.checkpoint.look()
    assert place.checkpoint.check() == (True, f"toy@{good}")
    assert place.sample("model_info", name="toy", version=good, digest=place.store.manifest("toy", good).digest) == 1
    loads = [event for event in place.events if event[0] == "load"]
    assert len(loads) == 2, "the version that serves is not loaded again"

    place.store.promote("toy", bad, "latest")
    await place.checkpoint.look()
    assert place.sample("checkpoint_refusals_total", name="toy") == 2


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_damaged_version_is_tried_again_later_and_serves_once_it_is_mended(
    impatient_place: Place, is_first: bool
) -> None:
    """Published again, it has the same id, and the alias does not move."""
    place = impatient_place
    if not is_first:
        place.publish("good")
        await place.checkpoint.start()
    damaged = place.publish("v1")
    flip_a_byte(place.weights_file(damaged))
    for _ in range(2):
        await place.checkpoint.look()
    assert place.sample("checkpoint_refusals_total", name="toy") == 2
    assert place.publish("v1") == damaged
    await place.checkpoint.look()
    assert place.checkpoint.check() == (True, f"toy@{damaged}")


async def test_a_version_whose_copy_goes_while_it_is_loaded_is_fetched_again(place: Place) -> None:
    place.publish("old")
    await place.checkpoint.look()
    place.publish("new")
    place.is_copy_taken_away = True
    await place.checkpoint.look()
    assert place.serving() == "old"
    assert "its copy went" in place.checkpoint.check()[1]
    await place.checkpoint.look()
    assert place.serving() == "new"


async def test_a_version_that_needs_what_is_not_there_yet_is_loaded_at_a_later_look(place: Place) -> None:
    place.publish("v1")
    place.lacks = "its server does not answer"
    for _ in range(2):
        await place.checkpoint.look()
    assert place.checkpoint.check() == (False, f"toy@latest is not available now: {place.lacks}")
    assert place.sample("checkpoint_refusals_total", name="toy") == 0
    place.lacks = ""
    await place.checkpoint.look()
    assert place.serving() == "v1"


async def test_a_store_that_can_not_be_read_is_reported_and_the_loaded_version_serves_on(place: Place) -> None:
    version = place.publish("v1")
    await place.checkpoint.start()
    models = place.folder / "store" / "models"
    models.rename(place.folder / "away")
    models.write_text("not a folder")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await place.checkpoint.look()

    assert await place.ask("a") == "v1:a"
    is_ready, detail = place.checkpoint.check()
    assert is_ready
    assert detail.startswith(f"toy@{version}; toy@latest is not available now: ")
    assert [log["event"] for log in logs] == ["checkpoint not available"]
    assert logs[0]["exc_info"] is None  # the store's own message says all

    models.unlink()
    (place.folder / "away").rename(models)
    await place.checkpoint.look()
    assert place.checkpoint.check() == (True, f"toy@{version}")


async def test_starting_on_a_refused_version_waits_for_a_good_one(place: Place) -> None:
    bad = place.publish("fails to self-check")
    await place.checkpoint.start()

    is_ready, detail = place.checkpoint.check()
    assert not is_ready
    assert detail.startswith(f"refused toy@{bad}")
    place.publish("good")
    await place.checkpoint.look()
    assert await place.ask("a") == "good:a"


async def test_starting_on_an_empty_store_waits_for_the_first_version(place: Place) -> None:
    await place.checkpoint.start()

    is_ready, detail = place.checkpoint.check()
    assert not is_ready
    assert "there is no model 'toy'" in detail
    place.publish("first")
    await place.checkpoint.look()
    assert await place.ask("a") == "first:a"


async def test_the_alias_is_followed_without_being_asked(tmp_path: Path) -> None:
    place = Place(tmp_path, poll_s=0.01)
    place.publish("v1")
    await place.checkpoint.start()
    shutil.rmtree(tmp_path / "store")  # a look that fails does not end the following
    await asyncio.sleep(0.03)
    place.publish("v2")
    await place.until_serving("v2")

    await place.close()


async def test_a_broken_batcher_turns_the_check_red(place: Place) -> None:
    version = place.publish("v1")
    await place.checkpoint.start()
    await place.thread.close()

    assert place.checkpoint.check() == (False, f"toy@{version} can't process requests any more")


async def test_closing_fails_what_waits_also_on_a_version_that_is_being_retired(tmp_path: Path) -> None:
    place = Place(tmp_path, poll_s=0.01)
    place.publish("old")
    await place.checkpoint.start()
    with place.checkpoint.lease() as old:
        place.publish("new")
        await place.until_serving("new")
        with place.checkpoint.lease() as new:
            await place.checkpoint.close()
    for served in (old, new):
        with pytest.raises(Overloaded):
            await served.batcher.submit([submission("late")])
    with pytest.raises(Overloaded), place.checkpoint.lease():
        pass
    assert place.sample("model_ready", name="toy") == 0
    assert place.thread.waiting == ()

    await place.thread.close()
