"""A gateway that is asked for more than a service can do: who is let in, and what the others are told."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from gateway.access import digest
from services.core.settings import ProcessSettings
from tests.gateway.servers import Service, echo, gateway, metric, respond, serving, until

KEYS = [
    {"name": name, "sha256": digest(f"fovea-{name}"), "scopes": ["embed", "metrics"]}
    for name in ("hostile", *(f"honest-{number}" for number in range(20)))
]

BURST_S = ProcessSettings.model_fields["burst_s"].default


class Held:
    """A service whose answers wait for the test; `permits` is how many requests at a time it says that it takes."""

    def __init__(self, permits: int | None = None) -> None:
        self.may_answer = asyncio.Event()
        self.asked: Counter[str] = Counter()
        self.headers = () if permits is None else ((b"x-fovea-permits", str(permits).encode()),)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked[scope["path"]] += 1
        if scope["path"] == "/embed":
            await self.may_answer.wait()
        await respond(headers=self.headers)(scope, receive, send)


@asynccontextmanager
async def gateway_to(held: Held, **settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a gateway to this service; whatever the service holds is answered in the end."""
    async with serving(Service(held)) as url, gateway(embed_urls=url, **settings) as client:
        try:
            yield client
        finally:
            held.may_answer.set()


async def ask(client: aiohttp.ClientSession, name: str | None = None) -> int:
    headers = {} if name is None else {"Authorization": f"Bearer fovea-{name}"}
    async with client.post("/embed", data=b"{}", headers=headers) as response:
        if response.status == 503:
            assert int(response.headers["Retry-After"]) >= 1
        return response.status


@pytest.mark.slow
async def test_by_default_32_requests_are_in_flight_and_what_comes_after_the_line_is_refused_at_once() -> None:
    held = Held()
    async with gateway_to(held) as client:
        # as many as may wait without a burst: the test holds however long they take to arrive
        asked = [asyncio.create_task(ask(client)) for _ in range(48)]
        await until_queued(client, 16)
        assert await metric(client, "fovea_gateway_inflight_requests", service="embed") == 32
        await asyncio.sleep(BURST_S)
        assert [await ask(client) for _ in range(5)] == [503] * 5
        assert await metric(client, "fovea_rejected_total", reason="queue_full") == 5
        held.may_answer.set()
        assert await asyncio.gather(*asked) == [200] * 48


@pytest.mark.slow
async def test_five_hundred_requests_at_once_are_all_answered() -> None:
    held = Held()
    async with gateway_to(held, burst_s=60) as client:  # for the last of many on a slow machine
        asked = [asyncio.create_task(ask(client)) for _ in range(500)]
        await until_queued(client, 468)
        held.may_answer.set()
        assert await asyncio.gather(*asked) == [200] * 500


async def until_queued(client: aiohttp.ClientSession, num_requests: int) -> None:
    async def are_queued() -> bool:
        return await metric(client, "fovea_gateway_queued_requests", service="embed") == num_requests

    await until(are_queued)


async def test_a_service_is_given_as_many_requests_as_it_says_that_it_takes_and_clients_are_not_told() -> None:
    held = Held(permits=60)
    async with gateway_to(held) as client:
        async with client.get("/collections") as response:
            assert "x-fovea-permits" not in response.headers
        assert await metric(client, "fovea_gateway_concurrency_limit", service="embed") == 60
        asked = [asyncio.create_task(ask(client)) for _ in range(90)]
        await until_queued(client, 30)
        await until(lambda: held.asked["/embed"] == 60)
        held.may_answer.set()
        await asyncio.gather(*asked)


@pytest.mark.parametrize("permits", ["9" * 5000, "9" * 10, "0", "-1", "\u0663", "many"])
async def test_permits_that_no_service_has_are_not_believed_and_its_answer_is_passed_on(permits: str) -> None:
    service = Service(respond(headers=((b"x-fovea-permits", permits.encode()),)))
    async with serving(service) as url, gateway(embed_urls=url) as client:
        assert await ask(client) == 200
        assert await metric(client, "fovea_gateway_concurrency_limit", service="embed") == 32


async def test_two_instances_are_given_what_both_take() -> None:
    first, second = Held(permits=40), Held()
    async with (
        serving(Service(first)) as one,
        serving(Service(second)) as other,
        gateway(embed_urls=f"{one},{other}") as client,
    ):

        async def announced() -> bool:
            async with client.get("/collections"):
                return await metric(client, "fovea_gateway_concurrency_limit", service="embed") == 40 + 32

        await until(announced)


async def test_a_refusal_comes_before_the_body_is_sent() -> None:
    held = Held()
    never = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"a"
        await never.wait()

    async with gateway_to(held, max_inflight_requests=1, max_queued_requests=0) as client:
        first = asyncio.create_task(ask(client))
        await until(lambda: held.asked["/embed"] == 1)
        async with client.post("/embed", data=endless()) as response:
            assert response.status == 503
            assert "Retry-After" in response.headers
        held.may_answer.set()
        assert await first == 200


async def test_a_hostile_key_that_fills_the_service_keeps_no_honest_key_waiting_or_refused() -> None:
    """The hostile key has every place and all of the line; honest requests pass it by."""
    held = Held()
    async with gateway_to(held, keys=KEYS) as client:
        hostile = [asyncio.create_task(ask(client, "hostile")) for _ in range(100)]
        await until(lambda: held.asked["/embed"] == 32)
        honest = [asyncio.create_task(ask(client, f"honest-{number}")) for number in range(20)]
        # an eighth of the permits is reserved for clients that hold none
        await until(lambda: held.asked["/embed"] == 36)
        held.may_answer.set()
        assert await asyncio.gather(*honest) == [200] * 20
        await asyncio.gather(*hostile)


async def test_what_a_full_instance_refuses_goes_to_another_and_no_further() -> None:
    full = Service(respond(status=503, headers=((b"retry-after", b"1"),)))
    free = Service(echo)
    async with serving(full) as one, serving(free) as other, gateway(embed_urls=f"{one},{other}") as client:
        assert [await ask(client) for _ in range(10)] == [200] * 10
        assert len(free.requests) == 10
        assert len(full.requests) <= 10


@pytest.mark.slow
async def test_a_request_that_would_wait_past_its_deadline_is_refused_before_it_waits() -> None:
    held = Held()
    async with gateway_to(held, max_inflight_requests=1, max_queued_requests=100) as client:
        first = asyncio.create_task(ask(client))
        await until(lambda: held.asked["/embed"] == 1)
        await asyncio.sleep(1.0)  # the time for which a place is held, as the gateway measures it
        held.may_answer.set()
        assert await first == 200
        held.may_answer.clear()
        waiting = [asyncio.create_task(ask(client)) for _ in range(3)]
        await until(lambda: held.asked["/embed"] == 2)
        async with client.post("/embed", data=b"{}", headers={"X-Request-Timeout": "0.5"}) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "deadline_too_near"
        held.may_answer.set()
        assert await asyncio.gather(*waiting) == [200] * 3
