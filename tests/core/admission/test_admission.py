"""The front door of a service over real sockets: who is refused before a body is read, and what a place is held for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fastapi import APIRouter, Request

from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.settings import ServiceSettings
from tests.gateway.servers import serving, until

BURST_S = ServiceSettings.model_fields["burst_s"].default


class Held:
    """Requests that are answered when the test says so."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.may_end = asyncio.Event()

    def router(self) -> APIRouter:
        router = APIRouter()

        @router.post("/hold")
        async def hold(request: Request) -> dict[str, int]:
            size = len(await request.body())
            self.num_begun += 1
            await self.may_end.wait()
            return {"size": size}

        @router.get("/v1/models")
        async def models() -> dict[str, bool]:
            return {"ok": True}

        return router


@asynccontextmanager
async def service(held: Held, **settings: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, Metrics]]:
    metrics = Metrics("embed")
    app = create_app(
        ServiceSettings(port=0, **settings),
        AppParts(service="embed", title="Held", metrics=metrics, health=Health(), routers=[held.router()]),
    )
    async with (
        serving(app) as url,
        aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        yield client, metrics


async def ask(client: aiohttp.ClientSession, body: Any = b"abc", **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post("/hold", data=body, headers=named) as response:
        return response.status, response


async def fill(client: aiohttp.ClientSession, number: int) -> list[asyncio.Task[tuple[int, Any]]]:
    return [asyncio.create_task(ask(client)) for _ in range(number)]


def refused(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("fovea_rejected_total", {"reason": "queue_full"}) or 0.0


@pytest.mark.slow
async def test_a_service_works_at_32_requests_by_default_and_refuses_what_comes_after_the_line() -> None:
    held = Held()
    async with service(held) as (client, metrics):
        asked = await fill(client, 60)
        await until(lambda: metrics.registry.get_sample_value("fovea_inflight_requests") == 60)
        assert held.num_begun == 32
        await asyncio.sleep(BURST_S)
        assert [(await ask(client))[0] for _ in range(5)] == [503] * 5
        assert refused(metrics) == 5
        held.may_end.set()
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}


@pytest.mark.slow
async def test_five_hundred_requests_at_once_are_all_answered() -> None:
    held = Held()
    async with service(held, burst_s=60) as (client, metrics):  # for the last of many on a slow machine
        asked = await fill(client, 500)
        await until(lambda: metrics.registry.get_sample_value("fovea_inflight_requests") == 500)
        held.may_end.set()
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}


async def test_a_refusal_comes_before_the_body_is_sent_and_says_when_to_come_back() -> None:
    held = Held()
    never = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"a"
        await never.wait()

    async with service(held, min_concurrency=1, max_concurrency=1) as (client, metrics):
        asked = await fill(client, 2)  # one has the place, one waits
        await until(lambda: metrics.registry.get_sample_value("fovea_inflight_requests") == 2)
        status, response = await ask(client, endless())
        assert status == 503
        assert int(response.headers["Retry-After"]) >= 1
        held.may_end.set()
        await asyncio.gather(*asked)


async def test_a_body_that_is_on_its_way_holds_no_place() -> None:
    held = Held()
    rest = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"a"
        await rest.wait()
        yield b"b"

    async with service(held, min_concurrency=1, max_concurrency=1) as (client, metrics):
        sending = [asyncio.create_task(ask(client, slow())) for _ in range(3)]
        await until(lambda: metrics.registry.get_sample_value("fovea_inflight_requests") == 3)
        held.may_end.set()
        assert (await ask(client))[0] == 200
        rest.set()
        statuses = [status for status, _ in await asyncio.gather(*sending)]
    assert 200 in statuses
    assert set(statuses) <= {200, 503}


async def test_probes_and_what_needs_no_model_are_answered_by_a_full_service() -> None:
    held = Held()
    async with service(held, min_concurrency=1, max_concurrency=1) as (client, _):
        asked = await fill(client, 1)
        await until(lambda: held.num_begun == 1)
        for path in ("/livez", "/readyz", "/metrics", "/v1/models", "/openapi.json"):
            async with client.get(path) as response:
                assert response.status == 200, path
        held.may_end.set()
        await asyncio.gather(*asked)


async def test_one_client_is_let_in_while_another_fills_the_service() -> None:
    held = Held()
    async with service(held, max_concurrency=32) as (client, _):
        asked = [asyncio.create_task(ask(client, X_Fovea_Client="hog")) for _ in range(60)]
        await until(lambda: held.num_begun == 32)
        honest = asyncio.create_task(ask(client, X_Fovea_Client="honest"))
        await until(lambda: held.num_begun == 33)
        held.may_end.set()
        assert (await honest)[0] == 200
        await asyncio.gather(*asked)


@pytest.mark.parametrize("path", ["/hold", "/nowhere"])
async def test_a_place_is_given_back_whatever_the_request_came_to(path: str) -> None:
    held = Held()
    held.may_end.set()
    async with service(held, min_concurrency=1, max_concurrency=1) as (client, metrics):
        for _ in range(3):
            async with client.post(path, data=b"abc") as response:
                assert response.status in (200, 404)
        assert refused(metrics) == 0


async def test_a_client_that_leaves_gives_its_place_and_its_wait_back() -> None:
    held = Held()
    async with service(held, min_concurrency=2, max_concurrency=2) as (client, metrics):
        asked = await fill(client, 3)
        await until(lambda: held.num_begun == 2)
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
        await until(lambda: metrics.registry.get_sample_value("fovea_inflight_requests") == 0)
        num_begun = held.num_begun
        again = await fill(client, 2)
        await until(lambda: held.num_begun == num_begun + 2)
        held.may_end.set()
        assert [status for status, _ in await asyncio.gather(*again)] == [200, 200]


async def test_every_response_tells_the_gateway_how_many_places_there_are() -> None:
    held = Held()
    held.may_end.set()
    async with service(held, min_concurrency=5) as (client, metrics):
        _, response = await ask(client)
        assert response.headers["X-Fovea-Places"] == "5"
        assert metrics.registry.get_sample_value("fovea_concurrency_limit") == 5
