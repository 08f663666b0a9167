"""Every service is replaced behind the gateway under load, at the pace of the manifests, and no request fails.

What Kubernetes does is done by hand: the preStop wait, SIGTERM, and a kill when the grace period is over; a rolling
update starts the next process first, and `Recreate` starts it when the old one is gone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.contract.processes import Process, start_process

ROOT = Path(__file__).parents[2]
BASE = ROOT / "k8s" / "base"
SERVICES = ("predict", "generate", "embed", "score")
NUM_CLIENTS = 8
# What a load balancer needs to leave a pod out that is being stopped.
NOTICED_AFTER_S = 1.0

Send = Callable[[aiohttp.ClientSession, str, int], Any]


@dataclass(frozen=True)
class Pace:
    """How a workload's manifest replaces its pods."""

    pre_stop_s: float
    grace_s: float
    is_recreated: bool


def pace_of(workload: str) -> Pace:
    documents = yaml.safe_load_all((BASE / f"{workload}.yaml").read_text())
    spec = next(document for document in documents if document["kind"] == "Deployment")["spec"]
    pod = spec["template"]["spec"]
    return Pace(
        pre_stop_s=pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"],
        grace_s=pod["terminationGracePeriodSeconds"],
        is_recreated=spec["strategy"].get("type") == "Recreate",
    )


def manifest_settings() -> dict[str, str]:
    """The settings of time that all pods have."""
    lines = [line for line in (BASE / "fovea.env").read_text().splitlines() if line.startswith("FOVEA_")]
    settings = dict(line.split("=", 1) for line in lines)
    return {name: value for name, value in settings.items() if name.endswith("_S")}


def send_embed(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    body = (ROOT / "docs" / "images" / "red-star.jpg").read_bytes()
    headers = {"Content-Type": "image/jpeg"}
    return session.post(f"{url}/embed?condition=object+{number}", data=body, headers=headers)


def send_predict(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    inputs = [{"body": f"Dora has {number} spoons. Gina has 19 bags.", "question": "How many spoons has Dora?"}]
    return session.post(f"{url}/predict", json={"task": "word-problems", "inputs": inputs})


def send_generate(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    documents = [f"Corin Blackwood owns the golden parrot {number}.", "Belan Ashford owns the quiet otter."]
    return session.post(f"{url}/generate", json={"query": "What is the pet of Belan Ashford?", "documents": documents})


def send_score(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    form = aiohttp.FormData()
    form.add_field("file", (ROOT / "docs" / "images" / "two-shapes.jpg").read_bytes(), filename="shapes.jpg")
    for caption in ("a blue square left of a yellow circle", f"a yellow square left of {number} circles"):
        form.add_field("captions", caption)
    return session.post(f"{url}/score", data=form)


SENT: dict[str, Send] = {
    "embed": send_embed, "predict": send_predict, "generate": send_generate, "score": send_score
}  # fmt: skip


class Load:
    """Clients that ask without a pause, one of `urls` after another; what went wrong, and how often nothing did."""

    def __init__(self, send: Send, urls: list[str]) -> None:
        self.urls = urls
        self.num_answers = 0
        self.failures: list[str] = []
        self._send = send
        self._is_over = asyncio.Event()

    async def more(self, num_answers: int) -> None:
        wanted = self.num_answers + num_answers
        while self.num_answers < wanted:
            assert not self.failures, self.failures[0]
            await asyncio.sleep(0.01)  # the clients are tasks of their own

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # a new connection each time, so that whoever stops is asked by nobody who has not looked where to go
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=100)) as session:
            clients = [asyncio.create_task(self._ask(session, number)) for number in range(NUM_CLIENTS)]
            try:
                yield
            finally:
                self._is_over.set()
                await asyncio.gather(*clients)
        assert not self.failures, self.failures[:3]

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._is_over.is_set():
            number += NUM_CLIENTS
            try:
                async with self._send(session, self.urls[number % len(self.urls)], number) as response:
                    if response.status != 200:
                        self.failures.append(await response.text())
                    self.num_answers += 1
            except aiohttp.ClientError as error:
                self.failures.append(repr(error))


class Cluster:
    """Processes of one service at addresses that the gateway knows, as a headless Service's name stands for them."""

    def __init__(self, folder: Path, service: str) -> None:
        self.service = service
        self._folder = folder
        self._num_started = 0
        self.environment = {
            **manifest_settings(),
            "FOVEA_STORE_URL": (folder / "store").as_uri(),
            "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
            "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
            "FOVEA_GATEWAY_PORT": "0",
            f"FOVEA_{service.upper()}_NUM_THREADS": "1",
        }

    def start(self, module: str, **settings: str) -> Process:
        self._num_started += 1
        log = self._folder / f"{module}-{self._num_started}.log"
        return start_process(module, log, {**self.environment, **settings})

    def start_service(self, port: int = 0) -> Process:
        return self.start(f"services.{self.service}", **{f"FOVEA_{self.service.upper()}_PORT": str(port)})

    def start_gateway(self, urls: list[str]) -> Process:
        return self.start("gateway", **{f"FOVEA_GATEWAY_{self.service.upper()}_URLS": ",".join(urls)})


def stop_as(pace: Pace, process: Process) -> None:
    """What the kubelet does to a container; its status must be 0, well before the grace period is over."""
    began = time.monotonic()
    time.sleep(pace.pre_stop_s)
    process.process.terminate()
    assert process.process.wait(timeout=pace.grace_s - (time.monotonic() - began)) == 0, process.log.read_text()


def end(*processes: Process) -> None:
    for process in processes:
        process.process.kill()
        process.process.wait()


async def known_to(gateway: Process, service: str, detail: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{gateway.url}/readyz") as response:
                if (await response.json())["checks"][service]["detail"] == detail:
                    return
            await asyncio.sleep(0.05)  # the gateway looks once a second and tells nobody


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_is_replaced_at_the_pace_of_its_manifest(service: str, tmp_path: Path) -> None:
    cluster, pace = Cluster(tmp_path, service), pace_of(service)
    processes = [await asyncio.to_thread(cluster.start_service)]
    if not pace.is_recreated:  # another address, where the next pod will be
        processes.append(await asyncio.to_thread(cluster.start_service))
    for process in processes:
        await asyncio.to_thread(process.wait_until_ready)
    gateway = await asyncio.to_thread(cluster.start_gateway, [process.url for process in processes])
    await asyncio.to_thread(gateway.wait_until_ready)
    load = Load(SENT[service], [gateway.url])
    try:
        async with load.running():
            await load.more(20)
            for i, process in enumerate(processes):
                await asyncio.to_thread(stop_as, pace, process)
                if not pace.is_recreated:
                    await load.more(20)
                processes[i] = await asyncio.to_thread(cluster.start_service, process.port)
                await asyncio.to_thread(processes[i].wait_until_ready)
                total = len(processes)
                await known_to(gateway, service, f"{total} of {total} addresses ready")
                await load.more(20)
    finally:
        end(gateway, *processes)


@pytest.mark.slow
async def test_the_gateway_is_replaced_at_the_pace_of_its_manifest(tmp_path: Path) -> None:
    cluster, pace = Cluster(tmp_path, "score"), pace_of("gateway")
    service = await asyncio.to_thread(cluster.start_service)
    await asyncio.to_thread(service.wait_until_ready)
    gateways = [await asyncio.to_thread(cluster.start_gateway, [service.url]) for _ in range(2)]
    for gateway in gateways:
        await asyncio.to_thread(gateway.wait_until_ready)
    load = Load(send_score, [gateway.url for gateway in gateways])
    try:
        async with load.running():
            await load.more(20)
            for i, gateway in enumerate(gateways):
                stopping = asyncio.create_task(asyncio.to_thread(stop_as, pace, gateway))
                await asyncio.sleep(NOTICED_AFTER_S)  # until then it is asked like the other
                load.urls = [one.url for one in gateways if one is not gateway]
                await stopping
                gateways[i] = await asyncio.to_thread(cluster.start_gateway, [service.url])
                await asyncio.to_thread(gateways[i].wait_until_ready)
                load.urls = [one.url for one in gateways]
                await load.more(20)
    finally:
        end(service, *gateways)
