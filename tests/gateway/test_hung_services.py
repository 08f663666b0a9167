"""A service that is stopped or hangs: the system still accepts connections for it, which get no answer."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import upstream
from tests.gateway.servers import (
    Service,
    echo,
    gateway,
    listening,
    metric,
    read_request,
    respond,
    serving,
    until,
)
from tests.gateway.test_process import start, started

pytestmark = pytest.mark.process

# Deadlines must not be what ends the waiting.
PATIENT: dict[str, Any] = {"request_timeout_s": 3600, "max_request_timeout_s": 3600}
SOON: dict[str, Any] = {**PATIENT, "probe_interval_s": 0.05, "unanswered_probes": 3}
READY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
FIRST_EVENT = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n"


@pytest.fixture(autouse=True)
def soon_impatient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes time out soon, since the tests of this file wait for them."""
    monkeypatch.setattr(upstream, "PROBE_TIMEOUT", aiohttp.ClientTimeout(total=0.5))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started_here: list[subprocess.Popen[bytes]] = []
    yield started_here
    for process in started_here:
        process.kill()
        process.wait()


class HangingService:
    """Answers `/readyz` until it hangs, and begins an answer to nothing else but streams."""

    def __init__(self, begun: bytes = b"") -> None:
        self.begun = begun
        self.num_requests = 0
        self.num_unanswered = 0
        self.hangs = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            is_probe = request.startswith(b"GET /readyz")
            self.num_requests += not is_probe
            if is_probe and not self.hangs:
                writer.write(READY)
            elif is_probe:
                self.num_unanswered += 1
            else:
                writer.write(self.begun)
        writer.close()


async def ask(client: aiohttp.ClientSession, data: bytes = b"hello") -> tuple[int, bytes]:
    async with client.post("/embed", data=data) as response:
        if response.status == 503:
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["code"] == "service_unavailable"
        return response.status, await response.read()


async def until_hung(client: aiohttp.ClientSession) -> None:
    async def is_hung() -> bool:
        return await metric(client, "fovea_upstream_ejections_total", service="embed") >= 1

    await until(is_hung)


async def test_a_stopped_process_holds_no_request_to_its_deadline_and_gets_requests_again_as_soon_as_it_goes_on(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    log = tmp_path / "log"
    processes.append(start(log, "tests.gateway.served_service", FOVEA_EMBED_PORT="0"))
    url = await started(log)
    async with gateway(embed_urls=url, **SOON) as client:
        assert await ask(client) == (200, b"hello")
        os.kill(processes[0].pid, signal.SIGSTOP)
        waiting = await asyncio.gather(*(ask(client) for _ in range(5)))
        assert {status for status, _ in waiting} == {503}
        assert (await ask(client))[0] == 503
        async with client.get("/readyz") as response:
            assert (await response.json())["checks"]["embed"]["detail"] == "0 of 1 addresses ready"
        os.kill(processes[0].pid, signal.SIGCONT)

        async def is_back() -> bool:
            return await ask(client) == (200, b"hello")

        await until(is_back)


async def test_what_waits_for_a_service_that_hangs_is_answered_by_another_instance() -> None:
    hanging = HangingService()
    async with (
        listening(hanging) as first,
        serving(Service(echo)) as second,
        gateway(embed_urls=f"{first},{second}", **SOON) as client,
    ):
        asked = [asyncio.create_task(ask(client)) for _ in range(8)]
        await until(lambda: hanging.num_requests > 0)
        hanging.hangs = True
        assert await asyncio.gather(*asked) == [(200, b"hello")] * 8
        num_before = hanging.num_requests
        for _ in range(10):
            assert await ask(client) == (200, b"hello")
        assert hanging.num_requests == num_before


async def test_a_stream_that_a_hung_service_began_ends_with_an_error_event() -> None:
    hanging = HangingService(FIRST_EVENT)
    async with (
        listening(hanging) as url,
        gateway(generate_urls=url, **SOON) as client,
        client.post("/chat/completions", data=b"{}") as response,
    ):
        assert await response.content.readuntil(b"\n\n") == b"data: {}\n\n"
        hanging.hangs = True
        assert b"overloaded_error" in await response.read()


async def test_a_service_that_does_not_answer_is_waited_for_only_as_long_as_requests_wait_for_a_service() -> None:
    hanging = HangingService()
    hanging.hangs = True
    async with listening(hanging) as url, gateway(embed_urls=url, **SOON, wait_for_service_s=0.3) as client:
        await until_hung(client)
        asked = asyncio.create_task(ask(client))

        async def is_held_back() -> bool:
            return await metric(client, "fovea_gateway_queued_requests", service="embed") == 1

        await until(is_held_back)
        assert (await asked)[0] == 503
        async with client.post("/embed", data=b"{}") as response:
            assert "hangs" in (await response.json())["error"]["message"]
    assert hanging.num_requests == 0


async def test_a_service_that_says_it_is_not_ready_is_not_hung() -> None:
    loading = Service(respond(b"loading", status=503, headers=((b"retry-after", b"7"),)))
    loading.is_ready = False
    async with serving(loading) as url, gateway(embed_urls=url, **SOON) as client:
        await asyncio.sleep(20 * SOON["probe_interval_s"])
        async with client.post("/embed", data=b"{}") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "7")


async def test_a_service_that_hangs_keeps_no_other_from_being_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PROBE_TIMEOUT", aiohttp.ClientTimeout(total=3600))
    hanging, other = HangingService(), Service(echo)
    async with (
        listening(hanging) as first,
        serving(other) as second,
        gateway(embed_urls=first, score_urls=second, **SOON) as client,
    ):
        hanging.hangs = True
        await until(lambda: hanging.num_unanswered > 0)
        other.is_ready = False

        async def is_seen() -> bool:
            return await metric(client, "fovea_upstream_ready_addresses", service="score") == 0

        await until(is_seen)
