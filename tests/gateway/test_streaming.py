"""Answers pass piece by piece, at the pace of the slower side, and end for both sides when they end for one."""

import asyncio
import json
from io import BytesIO

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from gateway.proxy import UNCOUNTED_BYTES
from gateway.upstream import MAX_ONE_WRITE_BYTES
from tests.gateway.raw_client import connected, url_of
from tests.gateway.servers import (
    Service,
    echo,
    gateway,
    gone,
    listening,
    metric,
    read_body,
    read_request,
    serving,
)

EVENTS = [(b"content-type", b"text/event-stream")]
CHUNK = bytes(64 * 1024)
# Far more than sockets, client and gateway together may hold.
NUM_CHUNKS = 1024
MOST_CHUNKS_ON_THE_WAY = NUM_CHUNKS // 2
# Long enough for whatever is not held back to arrive.
SETTLING_S = 0.3


async def test_the_first_event_arrives_before_the_last_is_made() -> None:
    first_arrived = asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await first_arrived.wait()
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})

    async with (
        serving(Service(stream)) as url,
        gateway(generate_urls=url) as client,
        client.post("/generate") as response,
    ):
        assert await response.content.readany() == b"data: 1\n\n"
        first_arrived.set()
        assert await response.content.read() == b"data: 2\n\n"


async def test_the_head_arrives_before_the_first_byte_of_the_body_is_made() -> None:
    head_arrived = asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await head_arrived.wait()
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})

    async with (
        serving(Service(stream)) as url,
        gateway(generate_urls=url) as client,
        client.post("/generate") as response,
    ):
        head_arrived.set()
        assert await response.read() == b"data: 1\n\n"


async def test_a_stream_reaches_an_http_1_0_client_without_chunks() -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        for number in (b"1", b"2"):
            await send({"type": "http.response.body", "body": b"data: %b\n\n" % number, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serving(Service(stream)) as url, gateway(generate_urls=url) as client, connected(url_of(client)) as old:
        old.write(b"POST /generate HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        head, _, body = (await old.rest()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("num_bytes", [UNCOUNTED_BYTES, UNCOUNTED_BYTES + 1, MAX_ONE_WRITE_BYTES + 1])
async def test_a_body_of_any_length_arrives_whole(num_bytes: int) -> None:
    service = Service(echo)
    body = bytes(i % 251 for i in range(num_bytes))
    async with (
        serving(service) as url,
        gateway(embed_urls=url) as client,
        client.post("/embed", data=BytesIO(body)) as response,
    ):
        assert await response.read() == body
    assert service.header("content-length") == str(num_bytes)


@pytest.mark.slow
async def test_a_client_that_reads_slowly_slows_the_service_down() -> None:
    num_sent = 0

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(NUM_CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            num_sent += 1
        await send({"type": "http.response.body", "body": b""})

    async with (
        serving(Service(stream)) as url,
        gateway(generate_urls=url) as client,
        client.post("/generate") as response,
    ):
        await asyncio.sleep(SETTLING_S)
        assert num_sent < MOST_CHUNKS_ON_THE_WAY
        assert len(await response.read()) == NUM_CHUNKS * len(CHUNK)


async def test_a_client_that_leaves_before_the_answer_cancels_the_request_at_the_service() -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def think(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        asked.set()
        await gone(receive)
        cancelled.set()

    async with serving(Service(think)) as url, gateway(embed_urls=url) as client:
        asking = asyncio.create_task(client.post("/embed", data=b"{}").__aenter__())
        await asked.wait()
        asking.cancel()
        await cancelled.wait()
        assert await metric(client, "fovea_cancelled_total", reason="disconnect") == 1
        assert await metric(client, "fovea_gateway_inflight_requests", service="embed") == 0


async def test_a_client_that_leaves_a_stream_ends_it_at_the_service() -> None:
    cancelled = asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await gone(receive)
        cancelled.set()

    async with serving(Service(stream)) as url, gateway(generate_urls=url) as client:
        response = await client.post("/generate")
        await response.content.readany()
        response.close()
        await cancelled.wait()


async def test_a_stream_that_the_service_breaks_off_ends_with_an_error_event() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await read_request(reader):
            event = b'data: {"delta": "a"}\n\n'
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"%x\r\n%s\r\n" % (len(event), event))
        writer.close()

    async with listening(break_off) as url, gateway(generate_urls=url) as client, client.post("/generate") as response:
        first, last, rest = (await response.read()).split(b"\n\n")
    assert first == b'data: {"delta": "a"}'
    assert rest == b""
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "overloaded_error"


async def test_the_gateways_own_error_of_a_stream_has_the_name_that_clients_of_anthropic_look_for() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await read_request(reader):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.close()

    path = "/v1/messages"
    async with listening(break_off) as url, gateway(generate_urls=url) as client, client.post(path) as response:
        name, _, data = (await response.read()).strip().partition(b"\n")
    assert name == b"event: error"
    error = json.loads(data.removeprefix(b"data: "))
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")


async def test_an_error_event_is_not_read_as_the_rest_of_an_event_that_was_cut() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await read_request(reader):
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b'b\r\ndata: {"del\r\n')
        writer.close()

    async with listening(break_off) as url, gateway(generate_urls=url) as client, client.post("/generate") as response:
        assert (await response.read()).startswith(b'data: {"del\n\ndata: {"error"')


async def test_any_other_answer_that_the_service_breaks_off_is_visibly_incomplete() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await read_request(reader):
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"4\r\n[1, \r\n")
        writer.close()

    async with listening(break_off) as url, gateway(embed_urls=url) as client, client.post("/embed") as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_the_time_that_is_left_is_passed_on() -> None:
    service = Service(echo)
    async with serving(service) as url, gateway(embed_urls=url) as client:
        for headers, given_s in (
            ({"X-Request-Timeout": "120"}, 120.0),
            ({"x-stainless-read-timeout": "180"}, 180.0),
            ({}, 60.0),
        ):
            async with client.post("/embed", data=b"{}", headers=headers) as response:
                assert response.status == 200
            assert given_s - 60 < float(service.header("x-request-timeout") or "") <= given_s


@pytest.mark.slow
async def test_a_deadline_that_passes_is_504_and_cancels_the_request_at_the_service() -> None:
    cancelled = asyncio.Event()

    async def think(scope: Scope, receive: Receive, send: Send) -> None:
        await gone(receive)
        cancelled.set()

    async with serving(Service(think)) as url, gateway(embed_urls=url) as client:
        async with client.post("/embed", data=b"{}", headers={"X-Request-Timeout": "1"}) as response:
            assert response.status == 504
            assert (await response.json())["error"]["type"] == "timeout_error"
        await cancelled.wait()


@pytest.mark.slow
async def test_a_deadline_that_passes_amid_a_stream_ends_it_with_an_error_event() -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await gone(receive)

    async with (
        serving(Service(stream)) as url,
        gateway(generate_urls=url) as client,
        client.post("/generate", headers={"X-Request-Timeout": "1"}) as response,
    ):
        body = await response.read()
    assert body.startswith(b"data: 1\n\n")
    assert b'"timeout_error"' in body
