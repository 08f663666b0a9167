"""The slowest pace at which a body may arrive, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.core.http.protocol import BoundedHeadProtocol
from services.core.settings import ProcessSettings
from tests.core.served_app import create
from tests.gateway.raw_client import Answer, RawConnection, connected
from tests.gateway.servers import serving

HEAD = b"POST /bytes HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"X-Request-Timeout: 600\r\nTransfer-Encoding: chunked\r\n\r\n"
# For a body that is to come in time on a machine that is kept busy by others.
FOREVER_S = 3600


@asynccontextmanager
async def connection(**settings: Any) -> AsyncIterator[RawConnection]:
    app = create(ProcessSettings(port=0, log_level="error", **settings))
    async with serving(app, http=BoundedHeadProtocol) as url, connected(url) as connection:
        yield connection


async def trickle(connection: RawConnection, piece: bytes, pause_s: float) -> Answer | None:
    """The answer to a body that goes on until it comes."""
    answer = asyncio.create_task(connection.answer())
    while not answer.done():
        connection.write(piece)
        await asyncio.wait([answer], timeout=pause_s)
    return await answer


def check_refusal(answer: Answer | None) -> None:
    assert answer is not None
    assert answer.status == 408
    assert answer.headers["connection"] == "close"
    error = json.loads(answer.body)["error"]
    assert error["type"] == "timeout_error"
    assert error["code"] == "body_timeout"
    assert "FOVEA_BODY_TIMEOUT_S" in error["message"]
    assert "FOVEA_MIN_BODY_BYTES_PER_S" in error["message"]


@pytest.mark.parametrize(
    "head",
    [CHUNKED, HEAD + b"X-Request-Timeout: 600\r\nContent-Length: 100\r\n\r\n"],
    ids=["of unknown length", "of announced length"],
)
async def test_a_body_that_stalls_is_refused_whatever_deadline_it_asks_for(head: bytes) -> None:
    async with connection(body_timeout_s=0.2) as stalled:
        stalled.write(head)
        check_refusal(await stalled.answer())
        assert await stalled.rest() == b""


@pytest.mark.slow
async def test_a_body_that_never_stalls_but_comes_too_slowly_is_refused() -> None:
    async with connection(body_timeout_s=0.5, min_body_bytes_per_s=10_000) as slow:
        slow.write(CHUNKED)
        check_refusal(await trickle(slow, b"1\r\na\r\n", 0.02))


@pytest.mark.slow
async def test_what_came_quickly_buys_no_longer_stall_later() -> None:
    async with connection(body_timeout_s=0.5, min_body_bytes_per_s=1) as stalled:
        stalled.write(CHUNKED + b"fff0\r\n" + b"a" * 0xFFF0 + b"\r\n")
        check_refusal(await stalled.answer())


async def test_a_body_in_many_pieces_that_comes_fast_enough_is_read() -> None:
    async with connection(body_timeout_s=FOREVER_S, min_body_bytes_per_s=1) as patient:
        patient.write(CHUNKED)
        for _ in range(20):
            patient.write(b"1\r\na\r\n")
            await asyncio.sleep(0.01)
        patient.write(b"0\r\n\r\n")
        answer = await patient.answer()
        assert answer is not None
        assert json.loads(answer.body) == {"size": 20}


@pytest.mark.slow
async def test_a_request_that_runs_longer_than_its_body_may_stall_is_answered() -> None:
    async with connection(body_timeout_s=0.2) as slow:
        slow.write(b"POST /slow?seconds=0.6 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na")
        answer = await slow.answer()
        assert answer is not None
        assert answer.status == 200
