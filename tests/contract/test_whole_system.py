"""A gateway, two embed processes and a real Redis under load: whatever is stopped and started, no request fails."""

import asyncio
import io
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from PIL import Image

from services.core.manifest import CheckpointInfo
from services.core.store import Store
from tests.contract.processes import Process, start_process
from tests.core.redis_server import RedisServer, redis_executables
from tests.embed.tiny import write_tiny_checkpoint

MODEL = "tiny"
INFO = CheckpointInfo(kind="focallens-clip")


@dataclass
class System:
    """Everything of one deployment; the gateway knows both embed processes."""

    folder: Path
    redis: RedisServer
    embeds: list[Process]
    gateway: Process
    environment: dict[str, str]

    @property
    def store(self) -> Store:
        return Store.open(self.environment["FOVEA_STORE_URL"])

    def restart(self, index: int) -> None:
        """The same process again, at the address that the gateway knows."""
        port = self.embeds[index].port
        environment = {**self.environment, "FOVEA_EMBED_PORT": str(port)}
        self.embeds[index] = start_process("services.embed", self.folder / f"embed-{index}-again", environment)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    executables = list(redis_executables().values())
    if not executables:
        pytest.skip("no redis-server on this machine")
    redis = RedisServer(executables[0], None)
    redis.start()
    environment = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_STORE_POLL_S": "0.2",
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
        "FOVEA_REDIS_URL": redis.url,
        "FOVEA_EMBED_MODEL": MODEL,
        "FOVEA_EMBED_NUM_THREADS": "1",
        "FOVEA_EMBED_PORT": "0",
        "FOVEA_GATEWAY_PORT": "0",
    }
    checkpoint = write_tiny_checkpoint(folder / "checkpoint")
    Store.open(environment["FOVEA_STORE_URL"]).publish(MODEL, checkpoint, INFO)
    embeds = [start_process("services.embed", folder / f"embed-{i}", environment) for i in range(2)]
    for embed in embeds:
        embed.wait_until_ready()
    upstreams = ",".join(embed.url for embed in embeds)
    gateway = start_process("gateway", folder / "gateway", {**environment, "FOVEA_GATEWAY_EMBED_URLS": upstreams})
    gateway.wait_until_ready()
    whole = System(folder, redis, embeds, gateway, environment)
    yield whole
    for process in (whole.gateway, *whole.embeds):
        process.stop()
    redis.stop()


@dataclass
class Load:
    """What eight clients saw: statuses, the versions that answered, and bodies of what went wrong."""

    statuses: Counter[int] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return sum(self.statuses.values())

    async def more(self, num_requests: int) -> None:
        """Until so many requests more have been answered."""
        wanted = self.num_requests + num_requests
        while self.num_requests < wanted:
            assert not self.failures, self.failures[0]
            await asyncio.sleep(0.01)  # other tasks send them


def photograph(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (number % 256, number // 256 % 256, 90)).save(buffer, "JPEG")
    return buffer.getvalue()


@asynccontextmanager
async def under_load(system: System) -> AsyncIterator[Load]:
    """Eight clients that ask without a pause, half of them for what was asked before."""
    load, is_over = Load(), asyncio.Event()

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        count = 0
        while not is_over.is_set():
            count += 1
            body = photograph(count if number % 2 else number * 10_000 + count)
            headers = {"Content-Type": "image/jpeg"}
            try:
                async with session.post(f"{system.gateway.url}/embed?condition=color", data=body, headers=headers) as r:
                    answer = await r.json()
                    load.statuses[r.status] += 1
                    if r.status != 200:
                        load.failures.append(str(answer))
                    else:
                        load.models[answer["model"]] += 1
            except aiohttp.ClientError as error:
                load.failures.append(repr(error))

    async with aiohttp.ClientSession() as session:
        clients = [asyncio.create_task(client(session, number)) for number in range(8)]
        try:
            yield load
        finally:
            is_over.set()
            await asyncio.gather(*clients)
    assert not load.failures, load.failures[:3]
    assert set(load.statuses) == {200}


async def both_known_to(gateway: Process) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{gateway.url}/readyz") as response:
                if (await response.json())["checks"]["embed"]["detail"] == "2 of 2 addresses ready":
                    return
            await asyncio.sleep(0.02)  # the gateway looks once a second and tells nobody


@pytest.mark.slow
async def test_redis_stops_and_starts_and_no_request_fails(system: System) -> None:
    async with under_load(system) as load:
        await load.more(100)
        for _ in range(2):
            system.redis.stop()
            await load.more(200)
            await asyncio.to_thread(system.redis.start)
            await load.more(100)


@pytest.mark.slow
async def test_a_service_is_terminated_and_replaced_and_no_request_fails(system: System) -> None:
    async with under_load(system) as load:
        await load.more(50)
        for index in range(2):
            code = await asyncio.to_thread(system.embeds[index].stop)
            assert code == 0
            await load.more(50)
            await asyncio.to_thread(system.restart, index)
            await asyncio.to_thread(system.embeds[index].wait_until_ready)
            await both_known_to(system.gateway)  # as a rolling update waits before it stops the next one
            await load.more(50)


@pytest.mark.slow
async def test_a_new_version_is_taken_up_and_a_damaged_one_is_not(system: System) -> None:
    store = system.store
    good = store.publish(MODEL, write_tiny_checkpoint(system.folder / "second", seed=2), INFO, alias=None)
    damaged = store.publish(MODEL, write_tiny_checkpoint(system.folder / "third", seed=3), INFO, alias=None)
    weights = next(system.folder.glob(f"store/models/{MODEL}/versions/{damaged.id}/model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    async with under_load(system) as load:
        await load.more(50)
        await asyncio.to_thread(store.promote, MODEL, good.id, "latest")
        while load.models[f"{MODEL}@{good.id}"] < 50:
            await load.more(10)
        await asyncio.to_thread(store.promote, MODEL, damaged.id, "latest")
        async with aiohttp.ClientSession() as session:
            while True:  # until the refusal is told
                async with session.get(f"{system.embeds[0].url}/readyz") as response:
                    assert response.status == 200
                    if damaged.id in await response.text():
                        break
                await load.more(10)
        await load.more(50)
    assert f"{MODEL}@{damaged.id}" not in load.models
    await asyncio.to_thread(store.promote, MODEL, good.id, "latest")
    shutil.rmtree(system.folder / "third")
