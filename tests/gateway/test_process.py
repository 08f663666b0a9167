"""The gateway as a process of its own: settings from the environment, SIGTERM, what it imports."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from tests.gateway.servers import Service, gateway, read_body, respond, serving, until

pytestmark = pytest.mark.process


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return a starter of processes, all of which end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(log: Path, module: str = "gateway", **environment: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "FOVEA_GATEWAY_PORT": "0", **environment},
        )


async def started(log: Path) -> str:
    """The address of a process that has started up."""

    def text() -> str:
        return log.read_text()

    await until(lambda: "\n" in text())
    url = f"http://127.0.0.1:{json.loads(text().splitlines()[0])['port']}"

    async def is_up() -> bool:
        async with aiohttp.ClientSession() as client, client.get(f"{url}/startupz") as response:
            return response.status == 200

    await until(is_up)
    return url


async def test_sigterm_lets_requests_in_flight_finish_and_refuses_new_ones(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        asked.set()
        await finish.wait()
        await send({"type": "http.response.body", "body": b"last"})

    log = tmp_path / "log"
    async with serving(Service(stream)) as upstream, aiohttp.ClientSession() as client:
        process = start(log, FOVEA_GATEWAY_EMBED_URLS=upstream)
        processes.append(process)
        url = await started(log)
        async with client.post(f"{url}/embed", data=b"{}") as response:
            await asked.wait()
            process.send_signal(signal.SIGTERM)

            async def is_closed() -> bool:
                connector = aiohttp.TCPConnector(force_close=True)
                try:
                    async with aiohttp.ClientSession(connector=connector) as other, other.get(f"{url}/livez"):
                        return False
                except aiohttp.ClientConnectionError:
                    return True

            await until(is_closed)
            finish.set()
            assert await response.read() == b"first last"
        await until(lambda: process.poll() is not None)
    assert process.returncode == 0


async def test_a_service_that_is_told_to_stop_under_load_costs_no_request(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    logs = [tmp_path / "first", tmp_path / "second"]
    processes += [start(log, "tests.gateway.served_service") for log in logs]
    urls = [await started(log) for log in logs]
    seen: Counter[int] = Counter()
    is_over = False

    async with gateway(embed_urls=",".join(urls)) as client:

        async def keep_asking() -> None:
            while not is_over:
                async with client.post("/embed", data=b"hello") as response:
                    seen[response.status if await response.read() == b"hello" else 0] += 1

        load = [asyncio.create_task(keep_asking()) for _ in range(8)]
        await until(lambda: seen.total() > 100)
        processes[0].send_signal(signal.SIGTERM)
        await until(lambda: processes[0].poll() is not None)
        num_answered = seen.total()
        await until(lambda: seen.total() > num_answered + 100)
        is_over = True
        await asyncio.gather(*load)
    assert processes[0].returncode == 0
    assert seen.keys() == {200}


async def test_a_wrong_setting_ends_the_process_with_one_sentence(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    log = tmp_path / "log"
    process = start(log, FOVEA_GATEWAY_EMBED_URLS="embed:8103")
    processes.append(process)
    await until(lambda: process.poll() is not None)
    assert process.returncode == 1
    (line,) = log.read_text().splitlines()
    assert line.startswith("FOVEA_GATEWAY_EMBED_URLS: ")
    assert "'embed:8103' is not a base URL" in line


def test_the_gateway_imports_no_torch() -> None:
    code = "import gateway.app, gateway.keys.cli, sys; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_an_address_that_a_client_on_the_same_machine_names_is_not_believed(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    log = tmp_path / "log"
    processes.append(start(log, FOVEA_GATEWAY_EMBED_URLS="", FOVEA_GATEWAY_RATE_LIMIT="1/year"))
    url = await started(log)
    async with aiohttp.ClientSession() as client:
        for address, status in (("9.9.9.1", 503), ("9.9.9.2", 429)):
            async with client.post(f"{url}/embed", headers={"X-Forwarded-For": address}) as response:
                assert response.status == status


async def test_a_gateway_without_descriptors_blames_itself_and_not_its_service(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def answer_later(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await finish.wait()
        await respond()(scope, receive, send)

    async with serving(Service(answer_later)) as url:
        # The first connection is the one of the probes, and no other is open once a request has it.
        gateway_process = start(tmp_path / "log", FOVEA_GATEWAY_EMBED_URLS=url, FOVEA_GATEWAY_PROBE_INTERVAL_S="3600")
        processes.append(gateway_process)
        gateway_url = await started(tmp_path / "log")
        async with aiohttp.ClientSession(gateway_url) as client:
            # Two connections, kept.
            await asyncio.gather(*(client.get("/livez") for _ in range(2)))
            first = asyncio.create_task(status_of(client))
            await asked.wait()
            limits = resource.prlimit(gateway_process.pid, resource.RLIMIT_NOFILE)
            # Fewer than are open: those stay, nothing can be added.
            resource.prlimit(gateway_process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            for _ in range(5):
                assert await status_of(client) == (503, "too_many_open_files")
            assert (tmp_path / "log").read_text().count('"where":"upstream embed"') == 1
            resource.prlimit(gateway_process.pid, resource.RLIMIT_NOFILE, limits)
            finish.set()
            assert await first == (200, None)
            assert await status_of(client) == (200, None)


async def status_of(client: aiohttp.ClientSession) -> tuple[int, str | None]:
    async with client.post("/embed", data=b"{}") as response:
        return response.status, (await response.json(content_type=None)).get("error", {}).get("code")
