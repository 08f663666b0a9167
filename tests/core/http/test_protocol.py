"""Limits on what a connection sends before a body, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.core.http import protocol as http_protocol
from services.core.http.protocol import MAX_HEAD_BYTES, MAX_URL_BYTES
from tests.core.served_process import ServedProcess
from tests.gateway.servers import Service, serving

Serve = Callable[..., ServedProcess]
FAR_OVER = MAX_HEAD_BYTES + 2**20


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving(Service(), http=http_protocol.BoundedHeadProtocol) as url:
        yield int(url.rpartition(":")[2])


async def exchange(port: int, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to what is sent, a piece at a time until it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(read_answer(reader))
    try:
        for piece in pieces:
            if answer.done():
                break
            writer.write(piece)
            await asyncio.sleep(0)
        return await answer
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def error_of(answer: tuple[int, dict[str, str], bytes], status: int) -> dict[str, Any]:
    assert answer[0] == status
    assert answer[1]["content-type"] == "application/json"
    assert answer[1]["connection"] == "close"
    assert answer[1]["x-request-id"]
    error: dict[str, Any] = json.loads(answer[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_head_without_end_is_refused_when_it_is_over_the_limit(port: int) -> None:
    line = b"X-A: " + b"a" * 1000 + b"\r\n"
    error = error_of(await exchange(port, b"GET / HTTP/1.1\r\n", *[line] * (FAR_OVER // len(line))), 431)
    assert error["type"] == "request_too_large"
    assert f"the limit is {MAX_HEAD_BYTES} bytes" in error["message"]


async def test_a_head_under_the_limit_is_read_however_it_is_cut(port: int) -> None:
    line = b"X-A: " + b"a" * 1000 + b"\r\n"
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + line * (MAX_HEAD_BYTES // len(line) - 1) + b"\r\n"
    assert (await exchange(port, head))[0] == 200
    assert (await exchange(port, *(head[start : start + 700] for start in range(0, len(head), 700))))[0] == 200


async def test_bodies_and_requests_before_do_not_count_as_a_head(port: int) -> None:
    body = b"x" * (2 * MAX_HEAD_BYTES)
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request[:10])
    for _ in range(4):
        writer.write(request[10:] + request[:10])  # with the beginning of the next
        assert (await read_answer(reader))[0] == 200
    writer.close()


async def test_a_url_over_the_limit_is_refused_by_its_length(port: int) -> None:
    fitting = b"/" + b"a" * (MAX_URL_BYTES - 1)
    assert (await exchange(port, b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % fitting))[0] == 200
    error = error_of(await exchange(port, b"GET %ba HTTP/1.1\r\nHost: a\r\n\r\n" % fitting), 414)
    assert error["message"] == f"The URL has {MAX_URL_BYTES + 1} bytes; the limit is {MAX_URL_BYTES}."


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /collections/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"nonsense\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_in_the_shape_of_all_errors(port: int, request_: bytes) -> None:
    error = error_of(await exchange(port, request_), 400)
    assert error["type"] == "invalid_request_error"
    assert "not valid HTTP" in error["message"]


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-A: a\r\n"])
@pytest.mark.slow
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    port: int, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.5)  # not before what is begun was read
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    assert await reader.read() == b""
    writer.close()


async def test_a_later_head_is_not_waited_for_either_while_an_idle_connection_stays(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    assert (await read_answer(reader))[0] == 200
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    await asyncio.sleep(0.2)
    writer.write(request)
    assert (await read_answer(reader))[0] == 200
    writer.write(request[:10])
    assert await reader.read() == b""
    writer.close()


@pytest.mark.slow
async def test_every_process_bounds_the_heads_that_it_is_sent(serve: Serve) -> None:
    served = serve()
    await served.started()
    error_of(await exchange(served.port, b"GET / HTTP/1.1\r\n", *[b"X-A: " + b"a" * 1000 + b"\r\n"] * 2000), 431)


def test_the_guide_names_the_limits() -> None:
    guide = " ".join((Path(__file__).parents[3] / "docs" / "guide" / "operate.md").read_text().split())
    assert f"{MAX_HEAD_BYTES // 1024} KiB and take up to a minute" in guide
    assert f"{MAX_URL_BYTES:,} bytes" in guide
    assert http_protocol.HEAD_TIMEOUT_S == 60
    assert f"total {http_protocol.MAX_UNREAD_BYTES // 1024} KiB" in guide
    assert f"{http_protocol.MAX_PIPELINED} pipelined requests may wait" in guide
