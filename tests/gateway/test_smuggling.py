"""Nobody's bytes become another's request, and nobody reads another's answer: attacks over real sockets."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway.settings import KeyRecord
from services.core.http_protocol import BoundedHeadProtocol
from tests.gateway.raw_client import Answer, connected, url_of
from tests.gateway.served_service import EchoSettings, create_echo
from tests.gateway.servers import gateway, serving

KEYS = (KeyRecord(name="embeds", sha256=hashlib.sha256(b"secret").hexdigest(), scopes=frozenset({"embed"})),)
# Longer than what the gateway writes ahead of a body, and shorter than what stands ahead of the hidden request.
SWALLOWED = 1000
PADDING = b"\r\n" * 2000
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
