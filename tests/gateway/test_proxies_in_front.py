"""Clients behind real proxies are told apart by their addresses, which they can't choose."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.access import digest
from gateway.settings import KeyRecord
from tests.gateway.reverse_proxies import haproxy, needs_proxies, nginx
from tests.gateway.servers import gateway

pytestmark = [pytest.mark.process, needs_proxies]

KEY = KeyRecord(name="a", sha256=digest("KEY"), scopes=frozenset({"embed"}))
# What a cluster's pods have in common; clients come from elsewhere.
NETWORK, NGINX, HAPROXY = "127.0.1.0/24", "127.0.1.1", "127.0.1.2"
FORGED = ("", "9.9.9.9", "127.0.0.3", "127.0.1.7", "127.0.0.3, 127.0.1.1", "::1", "[2001:db8::1]:80", "unknown", ",")


async def statuses(port: int, source: str, forged: tuple[str, ...], key: str = "unknown") -> list[int]:
    """Ask from an address, once with each `X-Forwarded-For` of the client's own."""

    def ask(value: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))) as client:
            headers = {"X-API-Key": key, "Forwarded": "for=9.9.9.8", **({"X-Forwarded-For": value} if value else {})}
            client.request("GET", "/v1/models", headers=headers)
            return client.getresponse().status

    return [await asyncio.to_thread(ask, value) for value in forged]


@asynccontextmanager
async def behind_proxies(folder: Path, proxies: tuple[str, ...], **settings: Any) -> AsyncIterator[tuple[int, int]]:
    """Yield the gateway's port and that of the outermost of these proxies in a row."""
    given = {"keys": (KEY,), "failed_key_limit": "3/year", **settings}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(gateway(**given))
        async with client.get("/livez") as response:
            own = port = response.url.port or 0
        for name in proxies:
            start, source = (nginx, NGINX) if name == "nginx" else (haproxy, HAPROXY)
            port = stack.enter_context(start(folder, behind=f"127.0.0.1:{port}", source=source))
        yield own, port


@pytest.mark.parametrize("proxies", [("nginx",), ("haproxy",), ("nginx", "haproxy"), ("haproxy", "nginx")])
async def test_bad_keys_of_one_client_do_not_block_another_whatever_it_claims(
    tmp_path: Path, proxies: tuple[str, ...]
) -> None:
    async with behind_proxies(tmp_path, proxies, trusted_proxies=NETWORK) as (own, port):
        assert await statuses(port, "127.0.0.2", FORGED) == [401] * 3 + [429] * (len(FORGED) - 3)
        assert await statuses(port, "127.0.0.3", ("",)) == [401]
        assert await statuses(port, "127.0.0.2", ("",), key="KEY") == [200]
        # Nor can one that reaches the gateway itself, and is no proxy.
        assert await statuses(own, "127.0.0.4", FORGED) == [401] * 3 + [429] * (len(FORGED) - 3)
        assert await statuses(own, "127.0.0.4", ("127.0.0.3",)) == [429]
        assert await statuses(port, "127.0.0.3", ("", "", "")) == [401, 401, 429]


async def test_a_proxy_that_is_not_trusted_is_reported_once_and_its_clients_are_one(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with behind_proxies(tmp_path, ("nginx",)) as (_, port):
            assert await statuses(port, "127.0.0.2", ("", "", "")) == [401] * 3
            assert await statuses(port, "127.0.0.3", ("", "")) == [429] * 2
    [reported] = [line for line in logs if line["event"] == "forwarded_for_not_trusted"]
    assert (reported["address"], reported["log_level"]) == (NGINX, "warning")
    assert "FOVEA_GATEWAY_TRUSTED_PROXIES" in reported["hint"]
