"""The demand for a service that may have no instance, as an autoscaler reads it: recent callers and refused ones."""

import asyncio

import aiohttp
from starlette.types import Receive, Scope, Send

from gateway.admission import RECENT_S, RecentRequests
from tests.gateway.servers import Service, gateway, metric, respond, serving, until

RECENT = "fovea_gateway_recent_requests"
UNSERVED = "fovea_gateway_unserved_requests_total"
REFUSED = "fovea_gateway_refused_requests_total"


def test_a_request_counts_while_it_is_there_and_for_a_while_after_it_has_ended() -> None:
    now = 1000.0
    recent = RecentRequests(clock=lambda: now)
    with recent.counted():
        now += 10 * RECENT_S
        assert recent.count() == 1
        with recent.counted():
            assert recent.count() == 2
    assert recent.count() == 2
    now += RECENT_S - 1
    assert recent.count() == 2
    now += 2
    assert recent.count() == 0


def test_what_is_kept_of_requests_does_not_grow_with_their_number() -> None:
    now = 0.0
    recent = RecentRequests(clock=lambda: now)
    for number in range(100_000):
        now = number / 100
        with recent.counted():
            pass
    assert recent.count() > 100 * (RECENT_S - 1)
    assert len(recent._num_ended) <= RECENT_S + 2


async def test_a_short_request_is_still_seen_when_an_autoscaler_looks_later() -> None:
    async with serving(Service()) as url, gateway(predict_urls=url) as client:
        assert await metric(client, RECENT, service="predict") == 0
        async with client.post("/predict", data=b"{}") as response:
            assert response.status == 200
        assert await metric(client, "fovea_gateway_inflight_requests", service="predict") == 0
        assert await metric(client, RECENT, service="predict") == 1
        assert await metric(client, RECENT, service="score") == 0


async def test_a_request_that_waits_for_a_service_without_an_instance_is_seen_and_is_not_yet_unserved() -> None:
    async with gateway(wait_for_service_s=3600) as client:
        waiting = asyncio.create_task(client.post("/predict", data=b"{}"))

        async def is_seen() -> bool:
            return await metric(client, RECENT, service="predict") == 1

        await until(is_seen)
        assert await metric(client, UNSERVED, service="predict") == 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_request_that_nobody_answers_is_counted_as_unserved_and_one_that_is_answered_with_an_error_is_not() -> (
    None
):
    async with serving(Service(respond(status=500))) as url, gateway(embed_urls=url) as client:
        for path in ("/predict", "/embed"):
            async with client.post(path, data=b"{}"):
                pass
        assert await metric(client, UNSERVED, service="predict") == 1
        assert await metric(client, UNSERVED, service="embed") == 0


async def status_of(client: aiohttp.ClientSession, path: str) -> int:
    async with client.post(path, data=b"{}") as response:
        return response.status


async def test_a_request_for_which_the_gateways_queue_has_no_room_counts_as_refused_for_that_service_alone() -> None:
    may_answer = asyncio.Event()

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        await may_answer.wait()
        await respond()(scope, receive, send)

    async with (
        serving(Service(hold)) as url,
        gateway(predict_urls=url, max_inflight_requests=1, max_queued_requests=0) as client,
    ):
        # There before anything is refused: a rate needs two samples.
        assert await metric(client, REFUSED, service="predict") == 0
        held = asyncio.create_task(status_of(client, "/predict"))

        async def is_held() -> bool:
            return await metric(client, "fovea_gateway_inflight_requests", service="predict") == 1

        await until(is_held)
        assert [await status_of(client, "/predict") for _ in range(3)] == [503] * 3
        assert await metric(client, REFUSED, service="predict") == 3
        assert await metric(client, REFUSED, service="score") == 0
        assert await metric(client, UNSERVED, service="predict") == 0
        may_answer.set()
        assert await held == 200
        assert await metric(client, REFUSED, service="predict") == 3


async def test_a_refusal_by_the_service_counts_once_with_all_retries_and_not_where_another_instance_answers() -> None:
    full = Service(respond(status=503, headers=((b"retry-after", b"1"),)))
    async with (
        serving(full) as first,
        serving(full) as second,
        serving(Service()) as idle,
        gateway(predict_urls=f"{first},{second}", score_urls=f"{first},{idle}") as client,
    ):
        assert [await status_of(client, "/predict") for _ in range(2)] == [503] * 2
        assert len(full.requests) == 6
        assert [await status_of(client, "/score") for _ in range(4)] == [200] * 4
        assert await metric(client, REFUSED, service="predict") == 2
        assert await metric(client, REFUSED, service="score") == 0


async def test_an_error_of_the_service_that_is_no_refusal_does_not_count_as_refused() -> None:
    async with serving(Service(respond(status=503))) as url, gateway(predict_urls=url) as client:
        assert await status_of(client, "/predict") == 503
        assert await metric(client, REFUSED, service="predict") == 0


async def ask(client: aiohttp.ClientSession, method: str, path: str) -> tuple[int, bytes]:
    async with client.request(method, path, data=b'{"images": [{"id": "shop/1"}]}') as response:
        return response.status, await response.read()


async def test_what_names_an_image_of_a_collection_is_answered_by_the_process_that_has_the_collections() -> None:
    """A process without collections says 421; only it has parsed the body."""
    without, having = Service(respond(status=421)), Service(respond(b"from the collections"))
    async with (
        serving(without) as embed_url,
        serving(having) as collections_url,
        gateway(embed_urls=embed_url, collections_urls=collections_url) as client,
    ):
        assert await ask(client, "POST", "/embed") == (200, b"from the collections")
        assert [scope["path"] for scope in without.requests] == ["/embed"]
        assert [scope["path"] for scope in having.requests] == ["/embed"]


async def test_the_collections_themselves_are_asked_for_at_the_process_that_has_them() -> None:
    without, having = Service(), Service()
    async with (
        serving(without) as embed_url,
        serving(having) as collections_url,
        gateway(embed_urls=embed_url, collections_urls=collections_url) as client,
    ):
        for path in ("/collections", "/v1/collections/shop/search"):
            assert (await ask(client, "GET", path))[0] == 200
        await ask(client, "POST", "/embed")
        assert [scope["path"] for scope in having.requests] == ["/collections", "/v1/collections/shop/search"]
        assert [scope["path"] for scope in without.requests] == ["/embed"]


async def test_where_collections_are_not_apart_a_refusal_for_want_of_them_reaches_the_client() -> None:
    async with serving(Service(respond(status=421))) as url, gateway(embed_urls=url) as client:
        assert (await ask(client, "POST", "/embed"))[0] == 421


async def test_the_process_with_the_collections_is_not_listed_as_a_service_of_its_own() -> None:
    models = b'{"data": [{"id": "clip"}]}'
    async with (
        serving(Service(respond(models))) as embed_url,
        serving(Service(respond(models))) as collections_url,
        gateway(embed_urls=embed_url, collections_urls=collections_url) as client,
        client.get("/v1/models") as response,
    ):
        assert [model["id"] for model in (await response.json())["data"]] == ["clip"]
