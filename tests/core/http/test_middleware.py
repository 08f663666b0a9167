"""Against a real server: only a socket disconnects as a client does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from services.core.http.middleware import WATCH_AFTER_S
from tests.core.served_process import ServedProcess, until


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    process = ServedProcess(tmp_path_factory.mktemp("served") / "log")
    yield process
    process.kill()


@pytest.fixture
async def served(process: ServedProcess) -> ServedProcess:
    await process.started()
    return process


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def send(served: ServedProcess, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(request)
    await writer.drain()
    return reader, writer


async def cancelled_total(served: ServedProcess, session: aiohttp.ClientSession, reason: str) -> float:
    async with session.get(f"{served.url}/metrics") as response:
        samples = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[0] != "#")
    return float(samples.get(f'fovea_cancelled_total{{reason="{reason}"}}', 0))


def lines_of(served: ServedProcess, path: str) -> list[dict[str, Any]]:
    return [line for line in served.log() if line.get("path") == path]


@pytest.mark.parametrize(
    ("tag", "head"),
    [("get", b"GET /slow?seconds=3600&tag=get"), ("post", b"POST /slow?seconds=3600&tag=post")],
)
@pytest.mark.slow
async def test_a_client_that_goes_away_cancels_a_handler_that_does_not_stream(
    served: ServedProcess, session: aiohttp.ClientSession, tag: str, head: bytes
) -> None:
    before = await cancelled_total(served, session, "disconnect")
    _, writer = await send(served, head + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    await served.until_count(f"{tag} started")
    writer.close()
    await served.until_count(f"{tag} cancelled")
    assert await cancelled_total(served, session, "disconnect") == before + 1
    assert lines_of(served, "/slow")[-1]["status"] == 499


async def test_a_client_that_goes_away_after_sending_a_body_cancels_its_handler(served: ServedProcess) -> None:
    _, writer = await send(served, b"POST /wait-with-body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
    await served.until_count("with body started")
    writer.close()
    await served.until_count("with body cancelled")


async def test_a_client_that_goes_away_ends_its_stream(served: ServedProcess, session: aiohttp.ClientSession) -> None:
    before = await cancelled_total(served, session, "disconnect")
    reader, writer = await send(served, b"GET /stream?forever=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b'"delta"')
    writer.close()
    await served.until_count("stream ended")
    await until(lambda: bool(lines_of(served, "/stream")))
    assert await cancelled_total(served, session, "disconnect") == before + 1


@pytest.mark.parametrize("path", ["/bytes", "/v1/rerank"])  # read by the handler, read by the framework
async def test_a_body_that_breaks_off_is_no_error_of_ours(served: ServedProcess, path: str) -> None:
    _, writer = await send(served, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc".encode())
    writer.close()
    await until(lambda: bool(lines_of(served, path)))
    assert [(line["status"], line.get("error")) for line in lines_of(served, path)] == [(499, None)]
    assert not [line for line in served.log() if line["level"] == "error"]


async def test_what_runs_after_the_response_is_not_cancelled_when_the_client_leaves(served: ServedProcess) -> None:
    reader, writer = await send(served, b"GET /then-work HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"}")
    writer.close()
    await served.until_count("worked")


async def test_a_handler_past_its_deadline_is_cancelled_and_answered_as_timed_out(
    served: ServedProcess, session: aiohttp.ClientSession
) -> None:
    before = await cancelled_total(served, session, "deadline")
    url = f"{served.url}/slow?seconds=3600&tag=late"
    async with session.get(url, headers={"x-request-timeout": "0.05"}) as response:
        assert response.status == 504
        assert (await response.json())["error"]["type"] == "timeout_error"
    await served.until_count("late cancelled")
    assert await cancelled_total(served, session, "deadline") == before + 1


async def test_an_event_stream_past_its_deadline_says_so_before_it_ends(
    served: ServedProcess, session: aiohttp.ClientSession
) -> None:
    async with session.get(f"{served.url}/stream?forever=1", headers={"x-request-timeout": "0.05"}) as response:
        text = await response.text()
    assert '"type": "timeout_error"' in text.split("\n\n")[1]


async def test_another_stream_that_fails_is_cut_off_so_that_it_cannot_pass_for_whole(
    served: ServedProcess, session: aiohttp.ClientSession
) -> None:
    async with session.get(f"{served.url}/stream?fail=1&media_type=text/plain") as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.text()


async def test_one_connection_serves_many_requests_slow_and_quick(
    served: ServedProcess, session: aiohttp.ClientSession
) -> None:
    for number in range(20):
        seconds = 3 * WATCH_AFTER_S if number % 4 == 0 else 0
        async with session.get(f"{served.url}/slow?seconds={seconds}&tag=kept") as response:
            assert response.status == 200
    await served.until_count("kept finished", 20)
