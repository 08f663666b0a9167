"""Rate limits of keys, counted in the process and in a real Redis."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from limits import parse
from pydantic import ValidationError
from redis.asyncio import Redis
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from gateway.access import KeyFile, digest
from gateway.settings import GatewaySettings, KeyRecord, LimitsByModel
from tests.core.redis_server import RedisServer, redis_executables
from tests.gateway.servers import Service, gateway, gone, metric, read_body, respond, serving, until

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


@pytest.mark.parametrize("path", ["/v1/models", "/v1/key", "/tasks"])
async def test_the_gateways_own_answers_count_and_tell_what_is_left(path: str) -> None:
    keys = (KeyRecord(name="a", sha256=digest("a"), scopes=frozenset({"predict"}), rate_limit=RATE),)
    async with serving(Service(respond(b'{"data": []}'))) as url, gateway(predict_urls=url, keys=keys) as client:
        for remaining in ("2", "1"):
            async with client.get(path, headers={"X-API-Key": "a"}) as response:
                assert response.status == 200
                assert response.headers.getall("RateLimit-Remaining") == [remaining]


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


# --- tokens, models and tenants ---


def of_tokens(tokens: int, model: str = "tiny@1") -> ASGIApp:
    """A service's whole answer, with its tokens where the gateway asks for them."""
    return respond(headers=((b"x-fovea-tokens", b"%d" % tokens), (b"x-fovea-model", model.encode())))


def limited(name: str, **limits: Any) -> KeyRecord:
    fields = {"name": name, "sha256": digest(name), "scopes": frozenset({"generate", "embed:write"})}
    return KeyRecord.model_validate({**fields, **limits})


async def chat(client: aiohttp.ClientSession, key: str, model: str = "tiny") -> aiohttp.ClientResponse:
    body = {"model": model, "messages": []}
    async with client.post("/v1/chat/completions", headers={"X-API-Key": key}, json=body) as response:
        await response.read()
        return response


def reset_s(response: aiohttp.ClientResponse) -> int:
    return int(response.headers["x-ratelimit-reset-tokens"].removesuffix("s"))


async def statuses(client: aiohttp.ClientSession, key: str, *models: str) -> list[int]:
    return [(await chat(client, key, model)).status for model in models]


async def test_tokens_are_taken_from_the_limit_after_the_answer_and_none_left_is_429() -> None:
    service = Service(of_tokens(60))
    keys = (limited("a", token_limit="100/year"),)
    async with serving(service) as url, gateway(generate_urls=url, embed_urls=url, keys=keys) as client:
        year_s = parse("1/year").get_expiry()
        for remaining in ("40", "0"):
            response = await chat(client, "a")
            assert response.status == 200
            assert response.headers["x-ratelimit-limit-tokens"] == "100"
            assert response.headers["x-ratelimit-remaining-tokens"] == remaining
            # What was taken in this window is whole again at the end of the next one.
            assert year_s <= reset_s(response) <= 2 * year_s
            assert "x-fovea-tokens" not in response.headers
        async with client.post("/generate", headers={"X-API-Key": "a"}, json={}) as response:
            assert response.status == 429
            error = (await response.json())["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert error["message"].startswith(f"The key 'a' may use 100 tokens in {year_s} s; try again in ")
            assert response.headers["x-ratelimit-remaining-tokens"] == "0"
            assert year_s <= reset_s(response) <= 2 * year_s
            # 120 of 100 were taken, so that a sixth of the next window passes until there are some again.
            assert int(error["message"].split("try again in ")[1].split()[0]) >= year_s // 6
            assert error["message"].endswith(" s (`Retry-After` is at most 120 s).")
            assert 0 < int(response.headers["Retry-After"]) <= 120
        # What no model reads is answered.
        for path in ("/v1/key", "/collections"):
            async with client.get(path, headers={"X-API-Key": "a"}) as response:
                assert response.status == 200
        async with client.post("/collections/shapes/search", headers={"X-API-Key": "a"}) as response:
            assert response.status == 429
    assert [scope["path"] for scope in service.requests] == ["/v1/chat/completions"] * 2 + ["/collections"]


async def test_an_answer_that_leaves_no_tokens_tells_the_same_end_as_the_429_after_it() -> None:
    keys = (limited("a", token_limit="100/year"),)
    async with serving(Service(of_tokens(93))) as url, gateway(generate_urls=url, keys=keys) as client:
        responses = [await chat(client, "a") for _ in range(3)]
    assert [response.status for response in responses] == [200, 200, 429]
    resets = [reset_s(response) for response in responses]
    # Seconds may pass between the two, but no share of a window.
    assert 0 <= resets[1] - resets[2] < 600


async def test_a_service_is_asked_for_tokens_only_where_a_limit_needs_them_and_never_by_a_client() -> None:
    service = Service()
    keys = (limited("free", rate_limit=RATE), limited("model", models={"tiny": {"token_limit": "100/year"}}))
    async with serving(service) as url, gateway(generate_urls=url, keys=keys) as client:
        headers = {"X-API-Key": "free", "X-Fovea-Tokens": "mine"}
        async with client.post("/generate", headers=headers, json={}) as response:
            assert response.status == 200
        assert service.header("x-fovea-tokens") is None
        assert (await chat(client, "model")).status == 200
        assert service.header("x-fovea-tokens") == "count"


def streaming(*, ends: bool) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        kind = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-fovea-tokens", b"7")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        for tokens in (8, 30, 60):
            piece = b': tokens %d\ndata: {"text": ": tokens 900\\n"}\n\n' % tokens
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b": tokens 60\ndata: [DONE]\n\n"})
        else:
            await gone(receive)

    return answer


async def test_the_tokens_of_a_stream_are_counted_and_the_client_is_sent_the_events_alone() -> None:
    keys = (limited("a", token_limit="60/year"),)
    service = Service(streaming(ends=True))
    async with serving(service) as url, gateway(generate_urls=url, keys=keys) as client:
        async with client.post("/generate", headers={"X-API-Key": "a"}, json={}) as response:
            assert response.headers["x-ratelimit-remaining-tokens"] == "53"
            assert await response.read() == b'data: {"text": ": tokens 900\\n"}\n\n' * 3 + b"data: [DONE]\n\n"
        await until(lambda: refused(client, "a"))
        assert len(service.requests) == 1


async def test_the_tokens_of_a_stream_that_its_client_leaves_are_counted_up_to_there() -> None:
    keys = (limited("a", token_limit="60/year"),)
    service = Service(streaming(ends=False))
    async with serving(service) as url, gateway(generate_urls=url, keys=keys) as client:
        response = await client.post("/generate", headers={"X-API-Key": "a"}, json={})
        await response.content.readuntil(b"}\n\ndata: {")
        response.close()
        service.answer = of_tokens(0)
        await until(lambda: refused(client, "a"))


async def refused(client: aiohttp.ClientSession, key: str) -> bool:
    return (await chat(client, key)).status == 429


async def test_a_model_has_a_limit_of_its_own_however_a_request_names_it() -> None:
    service = Service(of_tokens(10, "big@1"))
    models = {"big": {"rate_limit": "3/year"}, "wide": {"token_limit": "10/year"}}
    async with serving(service) as url, gateway(generate_urls=url, keys=(limited("a", models=models),)) as client:
        assert await statuses(client, "a", "big", "big@latest") == [200, 200]
        # It is named by nothing, by the second of two members, and by one that only a parser finds.
        bodies = {
            "{}": (200, 3),
            '{"model": "small", "model": "big"}': (429, 3),
            r'{"model": "small", "mod\u0065l": "big"}': (429, 4),
        }
        headers = {"X-API-Key": "a", "Content-Type": "application/json"}
        for body, (status, num_asked) in bodies.items():
            async with client.post("/v1/completions", headers=headers, data=body) as response:
                answered = response.status, await response.text()
            assert (answered[0], len(service.requests)) == (status, num_asked)
        assert "The key 'a' with the model 'big' may use 3 requests in " in answered[1]
        assert await statuses(client, "a", "big") == [429]
        assert len(service.requests) == 4
        service.answer = of_tokens(10, "wide@1")
        assert await statuses(client, "a", "wide", "wide") == [200, 429]
        service.answer = of_tokens(10, "small@1")
        assert await statuses(client, "a", "small", "small") == [200, 200]


async def test_the_keys_of_a_tenant_share_its_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    records = [limited(name, tenant=tenant) for name, tenant in (("a", "lab"), ("b", "lab"), ("c", "shop"))]
    tenants = {
        "lab": LimitsByModel.model_validate({"token_limit": "100/year", "models": {"big": {"rate_limit": "1/year"}}})
    }
    file.write_text(KeyFile(keys=tuple(records), tenants=tenants).model_dump_json())
    service = Service(of_tokens(50, "big@1"))
    async with serving(service) as url, gateway(generate_urls=url, keys_file=file) as client:
        assert await statuses(client, "a", "big") == [200]
        assert await statuses(client, "b", "big") == [429]
        service.answer = of_tokens(50)
        assert await statuses(client, "b", "tiny", "tiny") == [200, 429]
        assert await statuses(client, "a", "tiny") == [429]
        assert await statuses(client, "c", "tiny") == [200]


async def test_gateways_that_share_a_redis_share_the_tokens(redis: RedisServer) -> None:
    settings: dict[str, Any] = {"redis_url": redis.url, "redis_timeout_s": 60}
    keys = (limited("a", token_limit="100/hour"), limited("b", token_limit="100/2 second"))
    async with (
        serving(Service(of_tokens(60))) as url,
        gateway(generate_urls=url, keys=keys, **settings) as first,
        gateway(generate_urls=url, keys=keys, **settings) as second,
    ):
        assert (await chat(first, "a")).headers["x-ratelimit-remaining-tokens"] == "40"
        response = await chat(second, "a")
        assert (response.status, response.headers["x-ratelimit-remaining-tokens"]) == (200, "0")
        for client in (first, second):
            refusal = await chat(client, "a")
            assert refusal.status == 429
            # A Redis window begins with its first request, and is whole again at the end of the next one.
            assert 7000 < reset_s(refusal) <= reset_s(response) <= 7200
        assert [(await chat(client, "b")).status for client in (first, second)] == [200, 200]

        async def is_let_in() -> bool:
            return (await chat(first, "b")).status == 200

        await until(is_let_in)


async def test_tokens_are_counted_without_redis_while_it_is_gone() -> None:
    settings: dict[str, Any] = {"redis_url": "redis://127.0.0.1:1", "keys": (limited("a", token_limit="100/year"),)}
    async with serving(Service(of_tokens(60))) as url, gateway(generate_urls=url, **settings) as client:
        assert await statuses(client, "a", "tiny", "tiny", "tiny") == [200, 200, 429]


def test_a_limit_of_one_version_is_refused() -> None:
    with pytest.raises(ValidationError, match="models"):
        limited("a", models={"tiny@latest": {"rate_limit": RATE}})


async def test_a_limit_of_a_model_that_nobody_has_is_told_with_the_nearest_name_once_all_services_list_theirs() -> None:
    models = {"vicuna7b": {"rate_limit": RATE}, "vicuna-7b": {"rate_limit": RATE}}
    listing, other = Service(respond(status=503)), Service(respond(b'{"data": [{"id": "clip"}]}'))
    with capture_logs() as logs:
        async with (
            serving(listing) as url,
            serving(other) as other_url,
            gateway(
                generate_urls=url,
                embed_urls=other_url,
                predict_urls="",
                score_urls="",
                keys=(limited("a", models=models),),
                keys_poll_s=0.01,
            ),
        ):
            await until(lambda: len(listing.requests) >= 2)
            assert not told(logs)
            listing.answer = respond(b'{"data": [{"id": "vicuna-7b"}]}')
            await until(lambda: bool(told(logs)))
    (warning,) = told(logs)
    assert (warning["model"], warning["nearest"]) == ("vicuna7b", "vicuna-7b")
    assert warning["limits"] == ["The key 'a' with the model 'vicuna7b'"]


def told(logs: Sequence[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "limit_of_unserved_model"]
