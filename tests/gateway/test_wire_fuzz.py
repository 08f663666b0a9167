"""Each client gets its own answers, whatever bytes a connection is sent, and services see what was sent.

`FOVEA_TEST_CASES` sets how many connections are made up for each server; a few hundred by default.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import orjson
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from hypothesis import HealthCheck, Phase, given, note, settings

from services.core.errors import NotFound
from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.http.protocol import BoundedHeadProtocol
from services.core.metrics import Metrics
from services.core.serving.server import KEEP_ALIVE_S
from tests.gateway.raw_client import Answer, RawConnection, connected, url_of
from tests.gateway.served_service import EchoSettings
from tests.gateway.servers import gateway, serving
from tests.gateway.wire_cases import EARLY_PATH, MAX_BODY_BYTES, UNKNOWN_PATH, Case, Sent, cases

NUM_CASES = int(os.environ.get("FOVEA_TEST_CASES", "300"))
# A probe would be seen among the requests.
NEVER_S = 3600
# For one connection to be answered to its end.
PATIENCE_S = float(os.environ.get("FOVEA_TEST_PATIENCE_S", "30"))
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
ABOUT_ONE_CONNECTION = {"transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "proxy-connection", "x-trailer"}

# Which of them a gateway answers is told by other tests.
ANY_HOST = ("*",)


class EchoService:
    """A service as it is really run that answers with what it saw, and keeps it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def app(self) -> FastAPI:
        router = APIRouter()

        @router.api_route("/{path:path}", methods=METHODS)
        async def echo(request: Request) -> Response:
            scope = request.scope
            query = scope["query_string"].decode("latin-1")
            saw = {
                "nonce": request.headers.get("x-request-id"),
                "method": scope["method"],
                "target": scope["raw_path"].decode("latin-1") + (f"?{query}" if query else ""),
                "headers": sorted({name.decode("latin-1") for name, _ in scope["headers"]}),
                "tenant": request.headers.get("x-fovea-tenant"),
            }
            if scope["path"] == EARLY_PATH:
                self.seen.append(saw)
                raise NotFound("early")
            saw["body"] = hashlib.sha256(await request.body()).hexdigest()
            self.seen.append(saw)
            return Response(orjson.dumps(saw), media_type="application/json")

        parts = AppParts(service="embed", title="Echo", metrics=Metrics("embed"), health=Health(), routers=[router])
        return create_app(EchoSettings(log_level="error", max_body_bytes=MAX_BODY_BYTES, allowed_hosts=ANY_HOST), parts)


@pytest.fixture
async def service() -> AsyncIterator[tuple[EchoService, str]]:
    echo = EchoService()
    async with serving(echo.app(), http=BoundedHeadProtocol, timeout_keep_alive=KEEP_ALIVE_S) as url:
        yield echo, url


@asynccontextmanager
async def fronted(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with gateway(
        embed_urls=url, max_body_bytes=MAX_BODY_BYTES, probe_interval_s=NEVER_S, allowed_hosts=ANY_HOST
    ) as client:
        yield client


FUZZED = settings(
    max_examples=NUM_CASES,
    derandomize="FOVEA_TEST_CASES" not in os.environ,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.timeout(3600)
@FUZZED
@given(case=cases())
@pytest.mark.slow
async def test_behind_the_gateway_every_client_gets_its_own_answers_and_the_service_sees_what_was_sent(
    gateway_and_service: tuple[aiohttp.ClientSession, EchoService], case: Case
) -> None:
    client, echo = gateway_and_service
    note(f"{case.pieces()}")
    echo.seen.clear()
    answers, *_ = await asyncio.gather(converse(url_of(client), case), be_served(client), be_served(client))
    await be_served(client)
    check_answers(case, answers)
    check_seen(case, echo)
    for saw in echo.seen:
        assert not ABOUT_ONE_CONNECTION & set(saw["headers"])
        assert saw["tenant"] == "default"


@pytest.mark.timeout(3600)
@FUZZED
@given(case=cases())
@pytest.mark.slow
async def test_a_service_answers_every_connection_in_order_and_sees_what_was_sent(
    service: tuple[EchoService, str], case: Case
) -> None:
    echo, url = service
    note(f"{case.pieces()}")
    echo.seen.clear()
    check_answers(case, await converse(url, case), has_routes=False)
    check_seen(case, echo, has_routes=False)


@pytest.fixture
async def gateway_and_service(
    service: tuple[EchoService, str],
) -> AsyncIterator[tuple[aiohttp.ClientSession, EchoService]]:
    echo, url = service
    async with fronted(url) as client:
        yield client, echo


victims = count()


async def be_served(client: aiohttp.ClientSession) -> None:
    """An honest client's request gets its own answer."""
    nonce = f"victim-{next(victims)}"
    async with client.post(f"/embed?{nonce}", data=nonce.encode(), headers={"X-Request-ID": nonce}) as response:
        assert response.status == 200
        saw = orjson.loads(await response.read())
    assert (saw["nonce"], saw["target"]) == (nonce, f"/embed?{nonce}")
    assert saw["body"] == hashlib.sha256(nonce.encode()).hexdigest()


async def converse(url: str, case: Case) -> list[Answer]:
    """Return the answers on one connection until it ends, or the due ones where it is to stay open."""
    async with connected(url) as connection:
        reading = asyncio.create_task(read_answers(connection, case))
        for piece in case.pieces():
            connection.write(piece)
            # One read apart at the other side, or together with the next: both are to happen.
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            return await reading


async def read_answers(connection: RawConnection, case: Case) -> list[Answer]:
    answers: list[Answer] = []
    for sent in case.requests:
        if not sent.is_whole:
            return answers
        answer = await connection.answer(sent.method)
        if answer is None:
            return answers
        answers.append(answer)
    assert await connection.rest() == b""
    return answers


def check_answers(case: Case, answers: list[Answer], *, has_routes: bool = True) -> None:
    """As many answers as are due, in order, each to its own request."""
    num_due = 0
    for sent in case.requests:
        if not sent.is_whole:
            break
        if num_due == len(answers):
            before = case.requests[num_due - 1]
            assert num_due
            assert before.may_close, "an answer is missing"
            return
        check_answer(sent, answers[num_due], has_routes=has_routes)
        num_due += 1
        if sent.closes:
            break
    assert len(answers) == num_due, "there are more answers than requests"


def check_answer(sent: Sent, answer: Answer, *, has_routes: bool) -> None:
    if sent.target == UNKNOWN_PATH and not has_routes:
        assert answer.status == 200
        return
    assert answer.status in sent.statuses
    if answer.status == 400:
        assert answer.headers["connection"] == "close"
        return
    assert answer.headers["x-request-id"] == sent.nonce
    if answer.status == 200:
        saw = orjson.loads(answer.body)
        assert (saw["nonce"], saw["method"], saw["target"]) == (sent.nonce, sent.method, sent.target)
        assert saw["body"] == hashlib.sha256(sent.body).hexdigest()


def check_seen(case: Case, echo: EchoService, *, has_routes: bool = True) -> None:
    """The service saw requests that were sent, as they were sent, and no other."""
    sent_by_nonce = {sent.nonce: sent for sent in case.requests}
    nonces = [saw["nonce"] for saw in echo.seen if not saw["nonce"].startswith("victim-")]
    assert len(nonces) == len(set(nonces))
    for saw in echo.seen:
        if saw["nonce"].startswith("victim-"):
            continue
        sent = sent_by_nonce[saw["nonce"]]
        assert sent.reaches or (sent.target == UNKNOWN_PATH and not has_routes)
        assert (saw["method"], saw["target"]) == (sent.method, sent.target)
        if "body" in saw:
            assert saw["body"] == hashlib.sha256(sent.body).hexdigest()
        assert "of-a-trailer" not in str(saw)
