"""A gateway, two embed processes and a real Redis under load: whatever is stopped and started, no request fails."""

import asyncio
import io
import shutil
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from PIL import Image

from services.core.store.store import Store
from tests.contract.embed_processes import INFO, MODEL, tiny_environment
from tests.contract.load import NUM_CLIENTS, Load, known_to
from tests.contract.processes import Process, start_process
from tests.core.redis_server import RedisServer, redis_executables
from tests.embed.tiny import write_tiny_checkpoint
from tests.kept_port import kept_port

# Leaves a part of the machine to processes that start.
PAUSE_S = 0.05


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
        self.embeds[index] = start_embed(
            self.folder / f"embed-{index}-again", self.environment, self.embeds[index].port
        )


def start_embed(log: Path, environment: dict[str, str], port: int) -> Process:
    return start_process("services.embed", log, {**environment, "FOVEA_EMBED_PORT": str(port)})


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    executables = list(redis_executables().values())
    if not executables:
        pytest.skip("no redis-server on this machine")
    redis = RedisServer(executables[0], None)
    redis.start()
    environment = tiny_environment(
        folder,
        FOVEA_STORE_POLL_S="0.2",
        FOVEA_REDIS_URL=redis.url,
        FOVEA_EMBED_NUM_THREADS="1",
        FOVEA_GATEWAY_PORT="0",
    )
    with kept_port() as first, kept_port() as second:
        embeds = [start_embed(folder / f"embed-{i}", environment, port) for i, port in enumerate((first, second))]
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


def photograph(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (number % 256, number // 256 % 256, 90)).save(buffer, "JPEG")
    return buffer.getvalue()


def send_photograph(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    """Every other client asks for what others of them asked for as well."""
    client, count = number % NUM_CLIENTS, number // NUM_CLIENTS
    body = photograph(count if client % 2 else client * 10_000 + count)
    return session.post(f"{url}/embed?condition=color", data=body, headers={"Content-Type": "image/jpeg"})


def under_load(system: System) -> AbstractAsyncContextManager[Load]:
    return Load(send_photograph, [system.gateway.url], pause_s=PAUSE_S).running()


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
            await known_to(system.gateway.url, "embed", 2)  # as a rolling update waits before it stops the next one
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
