"""Request smuggling over real sockets: no client's bytes become another's request, or its answer another's."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from gateway.settings import KeyRecord
from services.core.http.protocol import BoundedHeadProtocol
from tests.gateway.raw_client import Answer, connected, url_of
from tests.gateway.served_service import EchoSettings, create_echo
from tests.gateway.servers import Service, gateway, listening, read_request, serving

KEYS = (KeyRecord(name="embeds", sha256=hashlib.sha256(b"secret").hexdigest(), scopes=frozenset({"embed"})),)
# Longer than the head that the gateway writes before a body, and shorter than the bytes before the hidden request.
SWALLOWED = 1000
PADDING = b"\r\n" * 2000
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n%b"
HIDDEN = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def attacked(**settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a gateway with keys or without, in front of a service as it is really run."""
    service = create_echo(EchoSettings(log_level="error"))
    async with (
        serving(service, http=BoundedHeadProtocol) as url,
        gateway(embed_urls=url, **settings) as client,
    ):
        yield client


async def poison(url: str, *, length: int, upgrade: bytes = b"h2c") -> Answer | None:
    """Ask for an upgrade with a body that an HTTP parser may pass over; the answer, None where there was none."""
    async with connected(url) as attacker:
        attacker.write(
            b"POST /collections/x/nope HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"
            b"Connection: Upgrade\r\nUpgrade: %b\r\nContent-Length: %d\r\n\r\n" % (upgrade, length)
        )
        return await attacker.answer()


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["with keys", "without keys"])
async def test_a_key_for_embedding_does_not_read_the_services_metrics(keys: tuple[KeyRecord, ...]) -> None:
    async with attacked(keys=keys) as client:
        for _ in range(3):
            await poison(url_of(client), length=SWALLOWED)
            body = PADDING + HIDDEN
            async with client.post("/embed", data=body, headers={"Authorization": "Bearer secret"}) as response:
                assert response.status == 200
                assert await response.read() == body


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["with keys", "without keys"])
async def test_others_get_their_own_answers_while_connections_are_poisoned(keys: tuple[KeyRecord, ...]) -> None:
    async with attacked(keys=keys) as client:

        async def be_served(name: bytes) -> bool:
            async with client.post("/embed", data=name, headers={"Authorization": "Bearer secret"}) as response:
                return response.status == 200 and await response.read() == name

        for length in (1, 50, 200, 5000):
            await asyncio.gather(*(poison(url_of(client), length=length) for _ in range(8)))
            assert all(await asyncio.gather(*(be_served(b"%d" % victim) for victim in range(8))))


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket", b"TLS/1.0"])
async def test_an_upgrade_with_a_body_is_refused_with_its_remedy_and_the_connection_closed(upgrade: bytes) -> None:
    async with attacked() as client:
        answer = await poison(url_of(client), length=5, upgrade=upgrade)
    assert answer is not None
    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert b"HTTP_1_1" in answer.body
    assert b"--http1.1" in answer.body


@pytest.mark.slow
async def test_bytes_that_nobody_asked_for_are_never_the_answer_to_the_next_request() -> None:
    num_connections = 0

    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        with contextlib.closing(writer):
            while request := await read_request(reader):
                writer.write(OK % b"own")
                if request.startswith(b"POST"):
                    num_connections += 1
                    await asyncio.sleep(0.05)
                    writer.write(OK % b"not")

    async with listening(answer_twice) as url, gateway(embed_urls=url) as client:
        for number in range(1, 4):
            async with client.post("/embed", data=b"{}") as response:
                assert await response.read() == b"own"
            assert num_connections == number
            await asyncio.sleep(0.2)  # the second answer has come by then, on a connection that waits for the next


async def test_a_connection_that_answered_before_it_was_sent_the_body_is_not_used_again() -> None:
    connections: list[bytes] = []

    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(OK % b"own")
            if head.startswith(b"POST"):
                connections.append(head)
                await writer.drain()
                await asyncio.sleep(0.2)  # the rest of the body stays in the sockets, and the next request behind it
                await reader.read()

    async with listening(answer_early) as url, gateway(embed_urls=url) as client:
        for number in range(1, 4):
            async with client.post("/embed", data=BytesIO(bytes(16 * 2**20))) as response:
                assert await response.read() == b"own"
            assert len(connections) == number


async def test_a_service_is_told_the_length_that_was_read_and_nothing_of_the_clients_connection() -> None:
    service = Service()
    async with serving(service) as url, gateway(embed_urls=url) as client, connected(url_of(client)) as connection:
        for framing in (
            b"Content-Length: 003\r\nConnection: content-length\r\n\r\nabc",
            b"Transfer-Encoding: chunked\r\nTE: trailers\r\n\r\n3\r\nabc\r\n0\r\nContent-MD5: x\r\n\r\n",
            b"Content-Length: 3\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nKeep-Alive: 5\r\n\r\nabc",
        ):
            connection.write(b"POST /embed HTTP/1.1\r\nHost: localhost\r\n" + framing)
            assert await connection.answer()
            assert service.header("content-length") == "3"
            for name in ("transfer-encoding", "te", "upgrade", "http2-settings", "keep-alive", "connection"):
                assert service.header(name) is None
            assert service.header("content-md5") is None
