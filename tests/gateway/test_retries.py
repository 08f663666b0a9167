"""Requests that are retried, their new addresses, and requests that are not retried."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from io import BytesIO

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from gateway.addresses import EjectionPolicy
from gateway.proxy import UNCOUNTED_BYTES
from gateway.upstream import MAX_ONE_WRITE_BYTES
from tests.gateway.servers import (
    Service,
    echo,
    gateway,
    listening,
    metric,
    read_request,
    respond,
    serving,
    until,
)
from tests.kept_port import kept_port

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LONG_BODY_BYTES = UNCOUNTED_BYTES + MAX_ONE_WRITE_BYTES
# Readiness is asked once, as the gateway starts.
NEVER_S = 3600
DRAINING = respond(b"draining", status=503, headers=((b"retry-after", b"1"),))


class FickleService:
    """Answers the first request of each connection and closes the connection when the second arrives."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if request.startswith(b"POST"):
            self.num_connections += 1
            self.num_requests += 1
            writer.write(ANSWER)
            if await read_request(reader):
                self.num_requests += 1
        writer.close()


async def retries(client: aiohttp.ClientSession) -> float:
    return await metric(client, "fovea_retries_total", service="embed")


async def ejections(client: aiohttp.ClientSession) -> float:
    return await metric(client, "fovea_upstream_ejections_total", service="embed")


async def until_queued(client: aiohttp.ClientSession, num_requests: int) -> None:
    async def are_queued() -> bool:
        return await metric(client, "fovea_gateway_queued_requests", service="embed") >= num_requests

    await until(are_queued)


async def test_a_refused_connection_is_tried_at_another_address_with_any_body_and_soon_no_more() -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"streamed"

    doomed = AsyncExitStack()
    with kept_port() as port:
        url_of_doomed = await doomed.enter_async_context(serving(Service(echo), port=port))
        async with (
            serving(Service(echo)) as healthy,
            gateway(embed_urls=f"{url_of_doomed},{healthy}", probe_interval_s=NEVER_S) as client,
        ):
            await doomed.aclose()
            for _ in range(30):
                async with client.post("/embed", data=upload()) as response:
                    assert await response.read() == b"streamed"
            assert await retries(client) == EjectionPolicy().failures
            assert await ejections(client) == 1


async def test_a_refused_connection_with_no_other_address_is_503_at_once() -> None:
    async with gateway() as client:
        async with client.post("/embed", data=b"{}") as response:
            assert response.status == 503
        assert await retries(client) == 0
        assert await metric(client, "fovea_upstream_requests_total", service="embed", code="unreachable") == 1


async def test_an_idle_connection_that_closes_as_it_is_used_again_costs_no_request() -> None:
    fickle = FickleService()
    async with listening(fickle) as url, gateway(embed_urls=url) as client:
        for _ in range(4):
            async with client.post("/embed", data=b"{}") as response:
                assert await response.read() == b"ok"
        assert await retries(client) == 3
    assert fickle.num_connections == 4


async def test_a_long_body_is_sent_again_as_a_short_one_is() -> None:
    fickle = FickleService()

    async with listening(fickle) as url, gateway(embed_urls=url) as client:
        async with client.post("/embed", data=b"{}") as response:
            assert response.status == 200
        async with client.post("/embed", data=BytesIO(bytes(LONG_BODY_BYTES))) as response:
            assert response.status == 200
        assert await retries(client) == 1


async def test_a_service_that_dies_over_a_request_is_not_given_it_again() -> None:
    num_requests = 0

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_requests
        if (await read_request(reader)).startswith(b"POST"):
            num_requests += 1
        writer.close()

    async with listening(die) as url, gateway(embed_urls=url) as client, client.post("/embed", data=b"{}") as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "upstream_failed"
    assert num_requests == 1


async def test_what_a_draining_instance_refuses_another_answers() -> None:
    draining = Service(DRAINING)
    async with (
        serving(draining) as first,
        serving(Service(echo)) as second,
        gateway(embed_urls=f"{first},{second}") as client,
    ):
        while len(draining.requests) < 5:
            async with client.post("/embed", data=b"hello") as response:
                assert await response.read() == b"hello"
        assert await retries(client) == len(draining.requests)


async def test_an_instance_that_says_it_is_not_ready_is_passed_over() -> None:
    draining = Service(DRAINING)
    draining.is_ready = False
    async with (
        serving(draining) as first,
        serving(Service(echo)) as second,
        gateway(embed_urls=f"{first},{second}") as client,
    ):
        for _ in range(10):
            async with client.post("/embed", data=b"hello") as response:
                assert await response.read() == b"hello"
    assert not draining.requests


async def test_an_overloaded_service_with_one_address_answers_for_itself() -> None:
    async with serving(Service(DRAINING)) as url, gateway(embed_urls=url) as client:
        async with client.post("/embed", data=b"{}") as response:
            assert (response.status, await response.read()) == (503, b"draining")
            assert response.headers["Retry-After"] == "1"
        assert await retries(client) == 0


async def test_an_instance_that_refused_gets_its_share_again() -> None:
    recovering = Service(DRAINING)
    async with (
        serving(recovering) as first,
        serving(Service(echo)) as second,
        gateway(embed_urls=f"{first},{second}") as client,
    ):
        while len(recovering.requests) < 5:
            async with client.post("/embed", data=b"hello") as response:
                assert await response.read() == b"hello"
        recovering.answer = echo
        while len(recovering.requests) < 10:
            async with client.post("/embed", data=b"hello") as response:
                assert await response.read() == b"hello"


async def test_an_error_of_the_service_is_the_answer_and_enough_of_them_eject() -> None:
    broken = Service(respond(b"defect", status=500))
    async with (
        serving(broken) as first,
        serving(Service(echo)) as second,
        gateway(embed_urls=f"{first},{second}") as client,
    ):
        num_errors = 0
        while not await ejections(client):
            async with client.post("/embed", data=b"{}") as response:
                num_errors += response.status == 500
                assert await response.read() == (b"defect" if response.status == 500 else b"{}")
    assert num_errors == len(broken.requests) == EjectionPolicy().failures


@pytest.mark.parametrize("status", [503, 504, 429])
async def test_too_much_work_or_too_little_time_does_not_eject(status: int) -> None:
    busy = Service(respond(status=status))
    async with (
        serving(busy) as first,
        serving(Service(echo)) as second,
        gateway(embed_urls=f"{first},{second}") as client,
    ):
        while len(busy.requests) < 2 * EjectionPolicy().failures:
            async with client.post("/embed", data=b"{}") as response:
                assert response.status in (200, status)
        assert await ejections(client) == 0


async def test_retries_end_with_their_budget() -> None:
    draining = Service(DRAINING)
    async with (
        serving(draining) as first,
        serving(draining) as second,
        gateway(embed_urls=f"{first},{second}") as client,
    ):
        for _ in range(60):
            async with client.post("/embed", data=b"{}") as response:
                assert response.status == 503
    num_retries = len(draining.requests) - 60
    # 20 saved, one for every fifth request, and two a second.
    assert 20 <= num_retries < 60


@pytest.mark.slow
async def test_a_request_waits_for_a_service_that_is_coming_up_and_is_counted_meanwhile() -> None:
    with kept_port() as port:
        async with gateway(embed_urls=f"http://127.0.0.1:{port}", wait_for_service_s=60) as client:

            async def ask() -> bytes:
                async with client.post("/embed", data=b"hello") as response:
                    return await response.read()

            async def is_held_back() -> bool:
                """Every now and then it is tried, and in flight for a moment."""
                await until_queued(client, 1)
                return await metric(client, "fovea_gateway_inflight_requests", service="embed") == 0

            asking = asyncio.create_task(ask())
            await until(is_held_back)
            async with serving(Service(echo), port=port):
                assert await asking == b"hello"
            assert await metric(client, "fovea_gateway_queued_requests", service="embed") == 0


async def test_nobody_waits_for_a_service_that_the_gateway_does_not_have() -> None:
    """The wait is longer than this test may take."""
    async with gateway(score_urls="", wait_for_service_s=3600) as client:
        async with asyncio.timeout(60), client.post("/score", data=b"{}") as response:
            assert response.status == 503
            assert "no score service" in (await response.json())["error"]["message"]
        assert await metric(client, "fovea_gateway_queued_requests", service="score") == 0


@pytest.mark.slow
async def test_a_request_waits_for_a_service_that_listens_and_is_still_loading() -> None:
    service = Service(echo)
    service.is_ready = False
    async with serving(service) as url, gateway(embed_urls=url, wait_for_service_s=30) as client:

        async def ask() -> bytes:
            async with client.post("/embed", data=b"hello") as response:
                return await response.read()

        asking = asyncio.create_task(ask())
        await until_queued(client, 1)
        assert not service.requests
        service.is_ready = True
        assert await asking == b"hello"


async def test_a_request_that_finds_its_service_asleep_has_the_time_to_wake_it_beside_its_own() -> None:
    """The deadlines of a service that does not scale to zero, and of who names one, stay as they are."""
    sleeping, other = Service(echo), Service(echo)
    sleeping.is_ready = other.is_ready = False
    async with (
        serving(sleeping) as url,
        serving(other) as other_url,
        gateway(
            embed_urls=url, score_urls=other_url, wait_for_service_s=60, wake_s={"embed": 60}, request_timeout_s=1
        ) as client,
    ):

        async def ask(path: str, **headers: str) -> int:
            async with client.post(path, data=b"hello", headers=headers) as response:
                return response.status

        asking = asyncio.create_task(ask("/embed"))
        await until_queued(client, 1)
        assert await ask("/score") == 504
        assert await ask("/embed", **{"X-Request-Timeout": "1"}) == 504
        assert not asking.done()
        sleeping.is_ready = True
        assert await asking == 200
    (request,) = [one for one in sleeping.requests if one["path"] == "/embed"]
    assert 0 < float(dict(request["headers"])[b"x-request-timeout"]) <= 1


async def test_a_service_that_stays_unready_is_asked_when_the_wait_is_over_and_says_why() -> None:
    service = Service(DRAINING)
    service.is_ready = False
    async with (
        serving(service) as url,
        gateway(embed_urls=url, wait_for_service_s=0.3) as client,
        client.post("/embed", data=b"hello") as response,
    ):
        assert (response.status, await response.read()) == (503, b"draining")


@pytest.mark.parametrize("is_killed_before_head", [True, False])
async def test_other_requests_go_on_when_an_instance_dies(is_killed_before_head: bool) -> None:
    """One of two instances resets every connection; clients see that of the requests it had, and no others."""
    held: list[asyncio.StreamWriter] = []
    holding = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            if request.startswith(b"GET"):
                writer.write(ANSWER)
                continue
            if not is_killed_before_head:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            held.append(writer)
            holding.set()

    async with (
        listening(hold) as doomed,
        serving(Service(echo)) as healthy,
        gateway(embed_urls=f"{doomed},{healthy}") as client,
    ):

        async def ask() -> bool:
            async with client.post("/embed", data=b"hello") as response:
                return response.status == 200 and await response.read() == b"hello"

        asked = [asyncio.create_task(ask()) for _ in range(8)]
        await holding.wait()
        await until(lambda: sum(task.done() for task in asked) + len(held) >= len(asked))
        for writer in held:
            writer.transport.abort()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(answer is True for answer in answers) >= len(asked) - len(held) > 0


async def test_as_many_requests_as_allowed_are_in_flight_and_the_rest_wait_in_line_or_are_refused() -> None:
    release = asyncio.Event()
    order: list[bytes] = []

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        order.append(scope["query_string"])
        await release.wait()
        await echo(scope, receive, send)

    async with (
        serving(Service(wait)) as url,
        gateway(embed_urls=url, max_inflight_requests=1, max_queued_requests=2) as client,
    ):

        async def ask(name: str) -> int:
            async with client.post(f"/embed?{name}", data=b"{}") as response:
                return response.status

        asked = []
        for num_asked, name in enumerate("abc"):
            asked.append(asyncio.create_task(ask(name)))
            await until_queued(client, num_asked)
        assert await metric(client, "fovea_gateway_inflight_requests", service="embed") == 1
        assert await ask("d") == 503
        assert await metric(client, "fovea_rejected_total", reason="queue_full") == 1
        release.set()
        assert await asyncio.gather(*asked) == [200, 200, 200]
    assert order == [b"a", b"b", b"c"]
