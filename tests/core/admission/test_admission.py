"""The front door of a service over real sockets: who is refused before a body is read, and what a place is held for."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fastapi import APIRouter, Request

from services.core.admission.admission import ConcurrencyLimit
from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.settings import ServiceSettings
from tests.gateway.servers import serving, until

FLOOR = 32
CEILING = 1024


def on_cpu(items: float) -> float:
    """Seconds for a batch that a few items keep busy: throughput is the same whatever the batch."""
    return 0.005 + 0.030 * items


def on_gpu(items: float) -> float:
    """Seconds for a batch that hardly takes longer than one item: throughput grows with the batch."""
    return 0.008 + 0.0002 * items


class BatchServer:
    """Computes one batch of requests after the other; each of `offered` clients always has a request in flight.

    `costs` are those of the kinds of requests, one of which each request is, by chance; `noise` is the standard
    deviation of a batch's time, as a share of it.
    """

    def __init__(
        self,
        seconds_for: Callable[[float], float],
        *,
        max_batch_size: int = 64,
        costs: Sequence[float] = (1.0,),
        noise: float = 0.0,
    ) -> None:
        self.seconds_for = seconds_for
        self.max_batch_size = max_batch_size
        self.costs = costs
        self.noise = noise
        self.now = 0.0
        self.num_answered = 0
        self.limits: list[int] = []
        self.limit = ConcurrencyLimit(floor=FLOOR, ceiling=CEILING, clock=lambda: self.now)
        self._chance = random.Random(1)
        self._waiting: list[tuple[float, float]] = []

    def run(self, num_batches: int, *, offered: int = 2 * CEILING) -> None:
        for _ in range(num_batches):
            while len(self._waiting) < min(self.limit.limit, offered):
                self._waiting.append((self._chance.choice(self.costs), self.now))
                self.limit.note_begun(len(self._waiting))
            batch, self._waiting = self._waiting[: self.max_batch_size], self._waiting[self.max_batch_size :]
            seconds = self.seconds_for(sum(cost for cost, _ in batch))
            self.now += seconds * self._chance.lognormvariate(0, self.noise)
            for cost, began in batch:
                self.limit.note_answered(cost, began)
            self.num_answered += len(batch)
            self.limits.append(self.limit.limit)

    @property
    def mean_limit(self) -> float:
        return sum(self.limits) / len(self.limits)


def test_a_server_that_more_requests_make_no_faster_keeps_the_least() -> None:
    server = BatchServer(on_cpu)
    server.run(1000)
    assert server.mean_limit < 1.1 * FLOOR
    assert max(server.limits) <= 1.5 * FLOOR


def test_noise_is_not_taken_for_speed() -> None:
    server = BatchServer(on_cpu, noise=0.3)
    server.run(3000)
    assert server.mean_limit < 1.5 * FLOOR


def test_a_server_that_larger_batches_make_faster_gets_enough_to_fill_them() -> None:
    server = BatchServer(on_gpu)
    server.run(2000)
    full_batches_per_s = 64 / on_gpu(64)
    assert server.num_answered / server.now > 0.9 * full_batches_per_s
    assert max(server.limits) <= 3 * 64


def test_requests_that_run_side_by_side_at_little_cost_are_let_in_up_to_the_most() -> None:
    """As the answers of a language model on a GPU, of which each step makes a token for all."""
    server = BatchServer(lambda items: 2.0 + 0.001 * items, max_batch_size=CEILING)
    server.run(200)
    assert max(server.limits) == CEILING


def test_requests_of_a_thousandfold_cost_among_others_change_nothing() -> None:
    server = BatchServer(on_cpu, costs=[1.0] * 99 + [100.0])
    server.run(2000)
    assert server.mean_limit < 1.5 * FLOOR
    fast = BatchServer(on_gpu, costs=[1.0] * 9 + [10.0])
    fast.run(5000)
    assert fast.mean_limit > 1.25 * FLOOR


def test_light_requests_after_heavy_ones_are_not_taken_for_a_faster_server() -> None:
    server = BatchServer(on_cpu, costs=[10.0])
    server.run(500)
    server.costs = [1.0]
    server.limits.clear()
    server.run(500)
    assert server.mean_limit < 1.1 * FLOOR


def test_a_limit_stays_while_fewer_requests_come_than_it_lets_in() -> None:
    server = BatchServer(on_gpu)
    server.run(500)
    reached = server.limit.limit
    assert reached > 1.25 * FLOOR
    server.run(2000, offered=4)
    assert server.limit.limit == reached


def test_a_server_that_becomes_slower_gets_less() -> None:
    server = BatchServer(on_gpu)
    server.run(500)
    server.seconds_for = on_cpu
    server.run(500)
    server.limits.clear()
    server.run(1000)
    assert server.mean_limit < 1.2 * FLOOR


def test_the_least_is_not_over_the_most() -> None:
    limit = ConcurrencyLimit(floor=32, ceiling=4)
    assert limit.limit == 4


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


async def test_every_response_tells_the_gateway_how_many_permits_there_are() -> None:
    held = Held()
    held.may_end.set()
    async with service(held, min_concurrency=5) as (client, metrics):
        _, response = await ask(client)
        assert response.headers["X-Fovea-Permits"] == "5"
        assert metrics.registry.get_sample_value("fovea_concurrency_limit") == 5
