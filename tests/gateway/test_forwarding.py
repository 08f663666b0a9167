"""Headers and bodies that the gateway forwards, and those that it does not."""

import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from gateway.routes import ROUTES, Route
from tests.gateway.servers import Service, echo, gateway, respond, serving


def settings_of(route: Route, url: str) -> dict[str, Any]:
    return {f"{route.service}_urls": url}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("route", [one for one in ROUTES if not one.shared_by], ids=lambda route: route.path)
async def test_every_path_of_the_contract_reaches_its_service_with_and_without_v1(route: Route, prefix: str) -> None:
    service = Service()
    path = prefix + route.path.replace("**", "birds/images/1.jpg")
    async with (
        serving(service) as url,
        gateway(**settings_of(route, url)) as client,
        client.request(route.methods[0], path) as response,
    ):
        assert response.status == 200
        assert service.requests[0]["path"] == path


async def test_path_query_and_body_arrive_byte_for_byte() -> None:
    service = Service(echo)
    body = bytes(range(256)) * 7
    target = "/collections/a%20b/images/%E2%82%AC%2Fx.jpg"
    async with (
        serving(service) as url,
        gateway(embed_urls=url) as client,
        client.post(f"{target}?condition=what+is%20it%3F&condition=b", data=body) as response,
    ):
        assert await response.read() == body
    assert service.requests[0]["raw_path"] == target.encode()
    assert service.requests[0]["query_string"] == b"condition=what+is%20it?&condition=b"


async def test_a_service_is_sent_the_clients_headers_and_nothing_that_belongs_to_the_connection() -> None:
    service = Service()
    sent = {
        "Content-Type": "image/png",
        "Accept": "text/event-stream",
        "X-Title": "Größe",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "TE": "trailers",
        "Proxy-Authorization": "secret",
    }
    async with (
        serving(service) as url,
        gateway(embed_urls=url) as client,
        client.post("/embed", data=b"x", headers=sent, skip_auto_headers=["User-Agent"]) as response,
    ):
        assert response.status == 200
    assert service.header("content-type") == "image/png"
    assert service.header("accept") == "text/event-stream"
    assert (service.header("x-title") or "").encode("latin-1").decode() == "Größe"
    for name in ("x-hop", "te", "proxy-authorization", "connection", "user-agent"):
        assert service.header(name) is None


async def test_teis_info_is_the_embed_services() -> None:
    service = Service(respond(b'{"model_id": "m"}'))
    async with serving(service) as url, gateway(embed_urls=url) as client, client.get("/info") as response:
        assert (response.status, await response.json(content_type=None)) == (200, {"model_id": "m"})


async def test_a_body_of_unknown_length_leaves_with_the_length_that_was_read() -> None:
    service = Service(echo)
    async with serving(service) as url, gateway(embed_urls=url) as client:

        async def chunks() -> AsyncIterator[bytes]:
            yield b"hello"

        async with client.post("/embed", data=chunks()) as response:
            assert await response.read() == b"hello"
    assert service.header("transfer-encoding") is None
    assert service.header("content-length") == "5"


async def test_a_service_is_told_who_asked_and_by_which_name() -> None:
    service = Service()
    headers = {"X-Forwarded-For": "203.0.113.9", "X-Request-ID": "mine-7"}
    async with serving(service) as url, gateway(embed_urls=url) as client:
        async with client.post("/embed", headers=headers) as response:
            assert response.headers["X-Request-ID"] == "mine-7"
        assert service.header("host") == url.removeprefix("http://")
        assert service.header("x-forwarded-host") == str(client._base_url).removeprefix("http://").rstrip("/")
    assert service.header("x-forwarded-proto") == "http"
    assert (service.header("x-forwarded-for") or "").startswith("203.0.113.9, ")
    assert service.header("x-request-id") == "mine-7"


async def test_keys_end_at_the_gateway() -> None:
    service = Service()
    headers = {"Authorization": "Bearer secret", "X-API-Key": "secret"}
    async with (
        serving(service) as url,
        gateway(embed_urls=url) as client,
        client.post("/embed", headers=headers) as response,
    ):
        assert response.status == 200
    assert b"secret" not in b"".join(value for _, value in service.requests[0]["headers"])


async def test_a_compressed_answer_arrives_as_it_left() -> None:
    packed = gzip.compress(b"hello" * 100)
    service = Service(respond(packed, headers=((b"content-encoding", b"gzip"),)))
    async with serving(service) as url, gateway(embed_urls=url) as client, client.post("/embed") as response:
        assert await response.read() == packed
        assert response.headers["Content-Encoding"] == "gzip"
        assert response.headers["Content-Length"] == str(len(packed))


async def test_status_and_repeated_headers_come_back_without_those_of_the_connection() -> None:
    headers = (
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x-fovea-model", b"shapes@3"),
        (b"date", b"Sat, 21 Nov 2026 03:10:16 GMT"),
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
    )
    async with (
        serving(Service(respond(b"no", status=418, headers=headers))) as url,
        gateway(embed_urls=url) as client,
        client.post("/embed") as response,
    ):
        assert response.status == 418
        assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        assert response.headers["X-Fovea-Model"] == "shapes@3"
        assert "X-Hop" not in response.headers
        # The gateway's server dates every response itself.
        assert "Date" not in response.headers


async def test_an_answer_without_a_body_passes() -> None:
    async def deleted(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with (
        serving(Service(deleted)) as url,
        gateway(embed_urls=url) as client,
        client.delete("/collections/birds") as response,
    ):
        assert response.status == 204
        assert await response.read() == b""


async def test_the_services_timings_and_the_gateways_are_one_header() -> None:
    service = Service(respond(headers=((b"server-timing", b"queue;dur=1.5, infer;dur=8"),)))
    async with serving(service) as url, gateway(embed_urls=url) as client, client.post("/embed") as response:
        (timing,) = response.headers.getall("Server-Timing")
    assert timing.startswith("queue;dur=1.500, infer;dur=8.000, upstream;dur=")


async def test_timings_that_say_more_than_durations_are_left_alone() -> None:
    service = Service(respond(headers=((b"server-timing", b'cache;desc="a hit"'),)))
    async with serving(service) as url, gateway(embed_urls=url) as client, client.post("/embed") as response:
        assert response.headers.getall("Server-Timing")[0] == 'cache;desc="a hit"'


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow() -> None:
    async with gateway() as client:
        async with client.post("/nothing") as response:
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "not_found_error"
        async with client.post("/v1/v1/messages") as response:
            answer = await response.json()
            assert (response.status, answer["type"], answer["error"]["type"]) == (404, "error", "not_found_error")
            assert answer["error"]["message"].endswith(
                "Take one /v1 off the end of the client's base URL: it adds /v1/messages itself."
            )
        async with client.post("/v1/chat") as response:
            assert (response.status, "POST /v2/chat" in (await response.json())["error"]["message"]) == (404, True)
        async with client.put("/v1/embeddings") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            assert (await response.json())["error"]["type"] == "invalid_request_error"
        async with client.delete("/v1/models") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "GET"


async def test_a_service_that_is_not_running_is_503_and_says_how_to_start_it() -> None:
    async with gateway() as client, client.post("/score") as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert response.headers["retry-after-ms"] == "5000"
        error = (await response.json())["error"]
    assert error["type"] == "overloaded_error"
    assert "score service is not running" in error["message"]
    assert "fovea up" in error["message"]


async def test_a_service_that_this_gateway_was_not_given_is_503_and_says_what_gives_it() -> None:
    async with gateway(score_urls="") as client:
        async with client.post("/score") as response:
            assert response.status == 503
            assert "FOVEA_GATEWAY_SCORE_URLS" in (await response.json())["error"]["message"]
        async with client.get("/readyz") as response:
            assert (await response.json())["checks"]["score"]["detail"] == "not configured"


async def test_rerank_errors_carry_the_detail_that_jinas_clients_read() -> None:
    async with gateway() as client, client.post("/v1/rerank") as response:
        body = await response.json()
    assert body["detail"] == body["error"]["message"]


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_over_the_limit_is_refused_whether_announced_or_streamed(is_announced: bool) -> None:
    service = Service(echo)
    async with serving(service) as url, gateway(embed_urls=url, max_body_bytes=400_000) as client:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield bytes(100_000)

        async with client.post("/embed", data=bytes(500_000) if is_announced else chunks()) as response:
            assert response.status == 413
            assert (await response.json())["error"]["type"] == "request_too_large"
    assert service.requests == []
