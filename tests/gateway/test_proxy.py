"""Slow and long bodies cost the gateway memory for what has arrived, and no place at a service."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from gateway.proxy import CLIENT_SHARE, UNCOUNTED_BYTES
from gateway.settings import KeyRecord, Scope
from tests.gateway.raw_client import RawConnection, connected, url_of
from tests.gateway.servers import Service, echo, gateway, metric, serving, until

NUM_TRICKLING = 300
NUM_PLACES = 4
TRICKLE = (
    b"POST /embed HTTP/1.1\r\nHost: localhost\r\nX-Request-Timeout: 600\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
)
LONG = 2 * UNCOUNTED_BYTES
MEMORY = 4 * LONG
SCOPES: dict[str, frozenset[Scope]] = {
    "anna": frozenset({"embed"}),
    "bert": frozenset({"embed"}),
    "root": frozenset({"admin"}),
}
KEYS = tuple(
    KeyRecord(name=name, sha256=hashlib.sha256(name.encode()).hexdigest(), scopes=scopes)
    for name, scopes in SCOPES.items()
)


async def ask(client: aiohttp.ClientSession, body: bytes = b"honest", key: str = "anna") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}"}
    async with client.post("/embed", data=BytesIO(body), headers=headers) as response:
        return response.status, await response.read()


@asynccontextmanager
async def begun(client: aiohttp.ClientSession, num_bytes: int, key: str = "anna") -> AsyncIterator[RawConnection]:
    """Begin a request whose body of this number of bytes lacks its last."""
    async with connected(url_of(client)) as connection:
        held = await held_bytes(client)
        connection.write(
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
            % (key.encode(), num_bytes),
            bytes(num_bytes - 1),
        )

        async def has_come() -> bool:
            return await held_bytes(client) >= held + num_bytes - 1

        await until(has_come)
        yield connection


async def held_bytes(client: aiohttp.ClientSession) -> float:
    return await value(client, "fovea_gateway_held_body_bytes")


async def value(client: aiohttp.ClientSession, name: str) -> float:
    """The value of a metric without labels."""
    async with client.get("/metrics", headers={"Authorization": "Bearer root"}) as response:
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_an_honest_client_is_answered_while_hundreds_of_bodies_trickle() -> None:
    async with (
        serving(Service(echo)) as url,
        gateway(embed_urls=url, max_inflight_requests=NUM_PLACES, max_queued_requests=0) as client,
    ):
        port = int(url_of(client).rpartition(":")[2])
        writers = []
        for _ in range(NUM_TRICKLING):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(TRICKLE)
            writers.append(writer)

        async def are_being_read() -> bool:
            return await value(client, "fovea_inflight_requests") >= NUM_TRICKLING

        await until(are_being_read)
        for _ in range(10):
            for writer in writers:
                writer.write(b"1\r\na\r\n")
            assert await ask(client) == (200, b"honest")
        assert await metric(client, "fovea_gateway_inflight_requests", service="embed") == 0
        for writer in writers:
            writer.transport.abort()


@pytest.mark.slow
async def test_bodies_that_trickle_are_refused_with_408_and_their_connections_closed() -> None:
    service = Service(echo)
    async with serving(service) as url, gateway(embed_urls=url, body_timeout_s=0.5) as client:

        async def trickle() -> int:
            async with connected(url_of(client)) as connection:
                connection.write(TRICKLE)
                answer = asyncio.create_task(connection.answer())
                while not answer.done():
                    connection.write(b"1\r\na\r\n")
                    await asyncio.wait([answer], timeout=0.05)
                refusal = await answer
                assert await connection.rest() == b""
                return refusal.status if refusal else 0

        assert set(await asyncio.gather(*(trickle() for _ in range(50)))) == {408}
        assert await metric(client, "fovea_rejected_total", reason="slow_body") == 50
    assert service.requests == []


async def test_one_client_takes_half_of_the_memory_for_long_bodies_and_leaves_others_theirs() -> None:
    async with (
        serving(Service(echo)) as url,
        gateway(embed_urls=url, keys=KEYS, max_held_body_bytes=MEMORY, max_body_bytes=2 * LONG) as client,
        begun(client, LONG),
        begun(client, LONG) as unfinished,
    ):
        status, error = await ask(client, bytes(LONG))
        assert status == 503
        assert b"body_memory_full" in error
        assert await ask(client) == (200, b"honest")
        assert (await ask(client, bytes(LONG), key="bert"))[0] == 200
        unfinished.write(b"\x00")
        answer = await unfinished.answer()
        assert answer is not None
        assert answer.status == 200
        assert (await ask(client, bytes(LONG)))[0] == 200


async def test_memory_that_all_clients_have_taken_is_free_again_when_their_requests_end() -> None:
    async with (
        serving(Service(echo)) as url,
        gateway(embed_urls=url, keys=KEYS, max_held_body_bytes=3 * LONG, max_body_bytes=2 * LONG) as client,
    ):
        async with begun(client, LONG), begun(client, LONG), begun(client, LONG, key="bert"):
            assert (await ask(client, bytes(LONG), key="bert"))[0] == 503

        async def is_free() -> bool:
            return await held_bytes(client) == 0

        await until(is_free)
        assert (await ask(client, bytes(LONG), key="bert"))[0] == 200


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_that_alone_is_as_large_as_allowed_always_finds_room(is_announced: bool) -> None:
    async with (
        serving(Service(echo)) as url,
        gateway(embed_urls=url, max_held_body_bytes=1, max_body_bytes=2 * LONG) as client,
    ):

        async def pieces() -> AsyncIterator[bytes]:
            yield bytes(LONG)
            yield bytes(LONG)

        body = BytesIO(bytes(2 * LONG)) if is_announced else pieces()
        async with client.post("/embed", data=body) as response:
            assert len(await response.read()) == 2 * LONG


def test_the_guide_names_the_size_from_which_bodies_are_counted_and_the_share_of_one_client() -> None:
    guide = " ".join((Path(__file__).parents[2] / "docs" / "guide" / "operate.md").read_text().split())
    assert f"Bodies over {UNCOUNTED_BYTES // 1024} KiB" in guide
    assert "one client may use half" in guide
    assert CLIENT_SHARE == 0.5
