"""Every service is replaced behind the gateway under load, at the pace of the manifests, and no request fails.

The tests play Kubernetes: the preStop wait, SIGTERM, and a kill when the grace period is over; a rolling update starts
the next process first, and `Recreate` starts it when the old one is gone.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.load import Load, Send, known_to
from tests.contract.processes import SERVICES, Process
from tests.contract.running_fovea import Fovea, settings_of_a_test
from tests.deploy.kubernetes_manifests import deployment
from tests.kept_port import kept_port

ROOT = Path(__file__).parents[2]
NUM_CLIENTS = 3
PAUSE_S = 0.05
# What a load balancer needs to leave a pod out that is being stopped.
NOTICED_AFTER_S = 1.0


@dataclass(frozen=True)
class Pace:
    """The pace at which a workload's manifest replaces its pods."""

    pre_stop_s: float
    grace_s: float
    is_recreated: bool


def pace_of(workload: str) -> Pace:
    spec = deployment("demo").pod(workload).workload["spec"]
    pod = spec["template"]["spec"]
    return Pace(
        pre_stop_s=pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"],
        grace_s=pod["terminationGracePeriodSeconds"],
        is_recreated=spec["strategy"].get("type") == "Recreate",
    )


def times_of(workload: str) -> dict[str, str]:
    """The settings of time in a workload's manifest."""
    manifests = deployment("demo")
    settings = manifests.environment(manifests.pod(workload))
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


def stop_as(pace: Pace, process: Process, *, waited_s: float = 0.0) -> None:
    """Stop a container as the kubelet does, with `waited_s` of its wait over; its status must be 0 before the grace
    period ends."""
    began = time.monotonic() - waited_s
    time.sleep(pace.pre_stop_s - waited_s)
    process.process.terminate()
    assert process.process.wait(timeout=pace.grace_s - (time.monotonic() - began)) == 0, process.log.read_text()


def next_pod(fovea: Fovea, service: str, instance: str, port: int) -> Process:
    """The next pod of a service, ready."""
    process = fovea.start(service, times_of(service), instance=instance, port=port)
    process.wait_until_ready()
    return process


@pytest.fixture
def fovea(tmp_path: Path) -> Iterator[Fovea]:
    """Nothing runs yet."""
    fovea = Fovea(tmp_path, settings_of_a_test(tmp_path))
    yield fovea
    fovea.kill()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Each is that of a pod and of the one after it."""
    with kept_port() as first, kept_port() as second:
        yield first, second


# Services stop by the same code, so one stands for all whose manifests have its pace.
@pytest.mark.slow
@pytest.mark.parametrize("service", {pace_of(service): service for service in SERVICES}.values())
async def test_a_service_is_replaced_at_the_pace_of_its_manifest(
    service: str, fovea: Fovea, ports: tuple[int, int]
) -> None:
    pace = pace_of(service)
    # of a rolling update another address, where the next pod will be
    pods = [service] if pace.is_recreated else [service, f"{service}-2"]
    for pod, port in zip(pods, ports, strict=False):
        await asyncio.to_thread(next_pod, fovea, service, pod, port)
    urls = ",".join(fovea.processes[pod].url for pod in pods)
    settings = {**times_of("gateway"), f"FOVEA_GATEWAY_{service.upper()}_URLS": urls}
    gateway = await asyncio.to_thread(fovea.start_gateway, settings)
    await asyncio.to_thread(gateway.wait_until_ready)
    async with Load(
        SENT[service], [gateway.url], anew=True, num_clients=NUM_CLIENTS, pause_s=PAUSE_S
    ).running() as load:
        await load.more(20)
        for pod in pods:
            old = fovea.processes[pod]
            await asyncio.to_thread(stop_as, pace, old)
            if not pace.is_recreated:
                await load.more(20)
            await asyncio.to_thread(next_pod, fovea, service, pod, old.port)
            await known_to(gateway.url, service, len(pods))
            await load.more(20)


@pytest.mark.slow
async def test_the_gateway_is_replaced_at_the_pace_of_its_manifest(fovea: Fovea) -> None:
    pace, pods = pace_of("gateway"), ["gateway", "gateway-2"]
    score = await asyncio.to_thread(next_pod, fovea, "score", "score", 0)
    fovea.environment["FOVEA_GATEWAY_SCORE_URLS"] = score.url
    for pod in pods:
        await asyncio.to_thread(next_pod, fovea, "gateway", pod, 0)
    urls = [fovea.processes[pod].url for pod in pods]
    async with Load(send_score, urls, anew=True, num_clients=NUM_CLIENTS, pause_s=PAUSE_S).running() as load:
        await load.more(20)
        for pod in pods:
            await asyncio.sleep(NOTICED_AFTER_S)  # until then it is asked like the other
            load.urls = [fovea.processes[other].url for other in pods if other != pod]
            await asyncio.to_thread(stop_as, pace, fovea.processes[pod], waited_s=NOTICED_AFTER_S)
            await asyncio.to_thread(next_pod, fovea, "gateway", pod, 0)
            load.urls = [fovea.processes[one].url for one in pods]
            await load.more(20)
