import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from fastapi import APIRouter, Request

from services.core.admission.bodies import FREE_BODY_BYTES
from services.core.http.app import AppParts, create_app
from services.core.http.bodies import read_json
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.settings import ServiceSettings

LARGE = 9 * 1024 * 1024


class Exchange:
    """One request to the application itself, whose body comes as the test sends it."""

    def __init__(self, app: Any, *, length: int | None, client: str = "alice", path: str = "/hold") -> None:
        self.num_read = 0
        self.status: int | None = None
        self.body = b""
        self.headers: dict[bytes, bytes] = {}
        self._pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        framing = (b"transfer-encoding", b"chunked") if length is None else (b"content-length", b"%d" % length)
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), framing, (b"x-fovea-client", client.encode())],
            "client": ("127.0.0.1", 1),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    def sends(self, piece: bytes, *, more: bool = True) -> None:
        self._pieces.put_nowait((piece, more))

    async def _receive(self) -> dict[str, Any]:
        piece, more = await self._pieces.get()
        self.num_read += 1
        return {"type": "http.request", "body": piece, "more_body": more}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        self.body += message.get("body", b"")


class Holding:
    """An application that answers each request once it may."""

    def __init__(self, *, max_held_body_bytes: int = 2**28, max_json_values: int = 262_144) -> None:
        self.may_answer = asyncio.Event()
        router = APIRouter()

        @router.post("/hold")
        async def hold(request: Request) -> int:
            body = await read_json(request)
            await self.may_answer.wait()
            return len(body)

        self.metrics = Metrics("test")
        parts = AppParts("test", "Test", self.metrics, Health(), routers=[router])
        self.app = create_app(
            ServiceSettings(port=0, max_held_body_bytes=max_held_body_bytes, max_json_values=max_json_values), parts
        )


@pytest.fixture
async def holding() -> AsyncIterator[Holding]:
    yield Holding(max_held_body_bytes=LARGE)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def error_of(exchange: Exchange) -> Any:
    return orjson.loads(exchange.body)["error"]


async def test_a_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    app = Holding().app
    exchange = Exchange(app, length=50_000_000)
    exchange.sends(b'{"texts":["a"')
    for _ in range(700):
        exchange.sends(b',"a"' * 16_384)
    await exchange.task
    assert exchange.status == 413
    assert error_of(exchange)["param"] == "texts"
    assert "262144" in error_of(exchange)["message"]
    assert exchange.num_read == 1 + 16  # of 701 pieces


async def test_values_of_a_body_of_unknown_length_are_counted_too() -> None:
    exchange = Exchange(Holding(max_json_values=10).app, length=None)
    exchange.sends(b'{"texts":[1,2,3,4,5,6,7,8,9,10,11]}', more=False)
    await exchange.task
    assert (exchange.status, error_of(exchange)["param"]) == (413, "texts")


@pytest.mark.parametrize("length", [LARGE, None], ids=["announced", "chunked"])
async def test_a_large_body_is_left_unread_while_another_is_held(holding: Holding, length: int | None) -> None:
    first = Exchange(holding.app, length=LARGE)
    first.sends(b'{"a": 1}' + b" " * (LARGE - 8), more=False)
    await settled()
    second = Exchange(holding.app, length=length)
    for _ in range(20):
        second.sends(b" " * 65_536)
    second.sends(b"{}", more=False)
    await settled()
    assert second.num_read * 65_536 <= (0 if length else FREE_BODY_BYTES + 65_536)
    holding.may_answer.set()
    await asyncio.gather(first.task, second.task)
    assert (first.status, second.status) == (200, 200)


async def test_small_and_medium_bodies_are_read_while_large_ones_are_held(holding: Holding) -> None:
    Exchange(holding.app, length=LARGE).sends(b'{"a": 1}' + b" " * (LARGE - 8), more=False)
    await settled()
    others = [Exchange(holding.app, length=length) for length in (2, FREE_BODY_BYTES + 1)]
    for other, length in zip(others, (2, FREE_BODY_BYTES + 1), strict=True):
        other.sends(b"{}" + b" " * (length - 2), more=False)
    await settled()
    assert [other.num_read for other in others] == [1, 1]
    holding.may_answer.set()
    await asyncio.gather(*(other.task for other in others))
    assert [other.status for other in others] == [200, 200]


async def test_a_client_with_too_much_waiting_is_refused_at_once_and_another_waits(holding: Holding) -> None:
    exchanges = [Exchange(holding.app, length=LARGE) for _ in range(3)]
    other = Exchange(holding.app, length=LARGE, client="bob")
    await settled()
    refused = exchanges[2]
    await refused.task
    assert (refused.status, error_of(refused)["code"]) == (503, "bodies_full")
    assert int(refused.headers[b"retry-after"]) >= 1
    assert holding.metrics.registry.get_sample_value("fovea_rejected_total", {"reason": "bodies_full"}) == 1
    holding.may_answer.set()
    for exchange in (*exchanges[:2], other):
        exchange.sends(b"{}" + b" " * (LARGE - 2), more=False)
    await asyncio.gather(*(exchange.task for exchange in (*exchanges[:2], other)))
    assert other.status == 200


async def test_a_request_that_is_given_up_while_it_waits_leaves_its_place(holding: Holding) -> None:
    first, second, third = (Exchange(holding.app, length=LARGE, client=name) for name in ("alice", "bob", "carol"))
    await settled()
    for exchange in (second, first):
        exchange.task.cancel()
        await asyncio.gather(exchange.task, return_exceptions=True)
    holding.may_answer.set()
    third.sends(b"{}" + b" " * (LARGE - 2), more=False)
    await third.task
    assert third.status == 200
