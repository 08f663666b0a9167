"""Rate limits of keys, counted in the process and in a real Redis."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from limits import parse
from pydantic import ValidationError
from redis.asyncio import Redis
from structlog.testing import capture_logs

from gateway.access import digest
from gateway.settings import GatewaySettings, KeyRecord
from tests.core.redis_server import RedisServer, redis_executables
from tests.gateway.servers import Service, gateway, metric, serving, until

pytestmark = pytest.mark.process

# Windows end with the hour, the day, the year of the clock: long enough for none to end while a test runs.
RATE = "3/year"


@pytest.fixture(params=sorted(redis_executables()))
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(redis_executables()[request.param], tmp_path)
    server.start()
    yield server
    server.stop()


def key(name: str, rate_limit: str | None = None) -> KeyRecord:
    return KeyRecord(name=name, sha256=digest(name), scopes=frozenset({"embed"}), rate_limit=rate_limit)


async def ask(client: aiohttp.ClientSession, name: str = "") -> int:
    async with client.post("/embed", headers={"X-API-Key": name}) as response:
        return response.status


async def test_what_a_key_has_left_is_told_and_one_request_too_many_is_429() -> None:
    service = Service()
    settings: dict[str, Any] = {"rate_limit": RATE, "trusted_proxies": "127.0.0.1"}
    as_client = {"X-Forwarded-For": "9.9.9.1"}
    async with serving(service) as url, gateway(embed_urls=url, **settings) as client:
        for remaining in ("2", "1", "0"):
            async with client.post("/embed", headers=as_client) as response:
                assert response.status == 200
                assert response.headers["RateLimit-Limit"] == "3"
                assert response.headers["RateLimit-Remaining"] == remaining
                assert 0 < int(response.headers["RateLimit-Reset"]) <= parse(RATE).get_expiry()
        async with client.post("/embed", headers=as_client) as response:
            assert response.status == 429
            assert (await response.json())["error"]["type"] == "rate_limit_error"
            assert response.headers["RateLimit-Remaining"] == "0"
            # OpenAI's client gives up on more.
            assert 0 < int(response.headers["Retry-After"]) <= 120
            assert 0 < int(response.headers["retry-after-ms"]) <= 120_000
        assert await metric(client, "fovea_rejected_total", reason="rate_limit") == 1
    assert len(service.requests) == 3


async def test_without_a_limit_no_headers_speak_of_one() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url) as client, client.post("/embed") as response:
        assert "RateLimit-Limit" not in response.headers


async def test_each_key_has_a_window_of_its_own_and_may_have_a_limit_of_its_own() -> None:
    keys = (key("a"), key("b"), key("c", "1/year"))
    async with serving(Service()) as url, gateway(embed_urls=url, keys=keys, rate_limit=RATE) as client:
        assert [await ask(client, "a") for _ in range(4)] == [200, 200, 200, 429]
        assert [await ask(client, "b") for _ in range(4)] == [200, 200, 200, 429]
        assert [await ask(client, "c") for _ in range(2)] == [200, 429]


async def test_a_refused_key_uses_up_no_ones_limit() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, keys=(key("a"),), rate_limit="1/year") as client:
        assert await ask(client, "unknown") == 401
        assert await ask(client, "a") == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/none", 404),
        ("GET", "/nowhere", 404),
        ("PUT", "/embed", 405),
        ("POST", "/score", 403),
        ("GET", "/metrics", 403),
    ],
)
async def test_every_request_counts_whatever_it_is_answered(method: str, path: str, status: int) -> None:
    async with gateway(keys=(key("a"),), rate_limit="2/year") as client:
        statuses = []
        for _ in range(3):
            async with client.request(method, path, headers={"X-API-Key": "a"}) as response:
                statuses.append(response.status)
    assert statuses == [status, status, 429]


async def test_probes_and_the_console_count_for_nothing() -> None:
    async with gateway(rate_limit="1/year") as client:
        for path in ("/livez", "/readyz", "/console", "/console/app.js", "/livez"):
            async with client.get(path) as response:
                assert response.status == 200


@pytest.mark.parametrize("sent", ["", "unknown", "x" * 5000])
async def test_failed_authentication_is_limited_by_address_and_keys_that_are_known_are_let_in(sent: str) -> None:
    settings: dict[str, Any] = {"keys": (key("a"),), "failed_key_limit": RATE, "trusted_proxies": "127.0.0.1"}
    async with serving(Service()) as url, gateway(embed_urls=url, **settings) as client:

        async def ask_from(address: str, name: str) -> int:
            headers = {"X-API-Key": name, "X-Forwarded-For": address}
            async with client.get("/v1/models", headers=headers) as response:
                return response.status

        assert [await ask_from("9.9.9.1", sent) for _ in range(5)] == [401, 401, 401, 429, 429]
        assert await ask_from("9.9.9.1", "a") == 200
        assert await ask_from("9.9.9.2", sent) == 401
        assert [await ask_from(f"2001:db8::{i}", sent) for i in range(4)] == [401, 401, 401, 429]


async def test_failed_authentication_may_be_left_unlimited() -> None:
    async with gateway(keys=(key("a"),), failed_key_limit="") as client:
        assert {await ask(client, "unknown") for _ in range(100)} == {401}


async def test_gateways_that_share_a_redis_share_the_limit(redis: RedisServer) -> None:
    settings: dict[str, Any] = {"rate_limit": RATE, "redis_url": redis.url, "redis_timeout_s": 60}
    async with (
        serving(Service()) as url,
        gateway(embed_urls=url, **settings) as first,
        gateway(embed_urls=url, **settings) as second,
    ):
        assert [await ask(client) for client in (first, second, first, second)] == [200, 200, 200, 429]


@pytest.mark.parametrize(("given", "is_shared"), [("hunter2%40%2F", True), ("wrong-hunter2", False), ("", False)])
async def test_a_redis_with_a_password_counts_for_those_who_know_it_and_costs_no_others_request(
    tmp_path: Path, given: str, *, is_shared: bool
) -> None:
    server = RedisServer(next(iter(redis_executables().values())), tmp_path, "--requirepass", "hunter2@/")
    await asyncio.to_thread(server.start)
    url = server.url.replace("://", f"://:{given}@") if given else server.url
    settings: dict[str, Any] = {"rate_limit": RATE, "redis_url": url, "redis_timeout_s": 60}
    try:
        with capture_logs() as logs:
            async with (
                serving(Service()) as service,
                gateway(embed_urls=service, **settings) as first,
                gateway(embed_urls=service, **settings) as second,
            ):
                answered = [await ask(client) for client in (first, second, first, second)]
    finally:
        server.stop()
    assert answered == [200, 200, 200, 429 if is_shared else 200]
    assert ("rate_limits_kept_in_memory" in [line["event"] for line in logs]) != is_shared
    assert "hunter2" not in str(logs)


async def test_a_redis_that_was_never_there_costs_no_request() -> None:
    settings: dict[str, Any] = {"rate_limit": RATE, "redis_url": "redis://127.0.0.1:1"}
    async with serving(Service()) as url, gateway(embed_urls=url, **settings) as client:
        assert [await ask(client) for _ in range(4)] == [200, 200, 200, 429]


async def test_redis_stopped_hung_and_started_under_load_costs_no_request(redis: RedisServer) -> None:
    settings: dict[str, Any] = {"rate_limit": "1000000/year", "redis_url": redis.url, "redis_timeout_s": 0.05}
    seen: set[int] = set()
    num_answered = 0
    is_over = False

    async with serving(Service()) as url, gateway(embed_urls=url, **settings) as client:

        async def keep_asking() -> None:
            nonlocal num_answered
            while not is_over:
                seen.add(await ask(client))
                num_answered += 1

        async def answered(num_more: int) -> None:
            end = num_answered + num_more
            await until(lambda: num_answered >= end)

        async def counted_in_redis() -> bool:
            return bool(await counts.dbsize())

        load = [asyncio.create_task(keep_asking()) for _ in range(8)]
        for _ in range(2):
            async with Redis.from_url(redis.url) as counts:
                await until(counted_in_redis)
            await asyncio.to_thread(redis.hang)
            await answered(100)
            await asyncio.to_thread(redis.stop)
            await answered(100)
            await asyncio.to_thread(redis.start)
        async with Redis.from_url(redis.url) as counts:
            await until(counted_in_redis)
        is_over = True
        await asyncio.gather(*load)
    assert seen == {200}


async def ask_as(client: aiohttp.ClientSession, *addresses: str) -> list[int]:
    """As a request that came to the proxy from each address."""
    statuses = []
    for address in addresses:
        async with client.post("/embed", headers={"X-Forwarded-For": address}) as response:
            statuses.append(response.status)
    return statuses


@pytest.mark.parametrize("proxies", ["", "10.0.0.1,192.168.0.0/16"])
async def test_nobody_escapes_a_limit_by_naming_another_address(proxies: str) -> None:
    settings: dict[str, Any] = {"rate_limit": RATE, "trusted_proxies": proxies}
    async with serving(Service()) as url, gateway(embed_urls=url, **settings) as client:
        assert await ask_as(client, "9.9.9.1", "9.9.9.2", "9.9.9.3", "9.9.9.4") == [200, 200, 200, 429]


async def test_behind_a_trusted_proxy_each_address_has_its_own_limit() -> None:
    settings: dict[str, Any] = {"rate_limit": "1/year", "trusted_proxies": "10.0.0.1, 127.0.0.0/8"}
    async with serving(Service()) as url, gateway(embed_urls=url, **settings) as client:
        assert await ask_as(client, "9.9.9.1", "9.9.9.2", "9.9.9.1") == [200, 200, 429]
        # The client's own entries come before the one that the proxy added.
        assert await ask_as(client, "8.8.8.8, 9.9.9.1") == [429]
        # Of several proxies in a row each one counts, also as one that listens on both kinds of addresses writes it.
        assert await ask_as(client, "9.9.9.1, 127.0.0.9, ::ffff:127.0.0.8", "9.9.9.1:4711, 10.0.0.1") == [429, 429]


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValidationError, match="caddy"):
        GatewaySettings(trusted_proxies=("caddy",))
