import gc
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Request
from starlette.testclient import TestClient

from services.core.http.app import AppParts, create_app
from services.core.http.bodies import MAX_INLINE_BYTES, JsonRoute, parse_json
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings


@pytest.fixture
def client() -> Iterator[TestClient]:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/echo")
    async def echo(request: Request, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        assert await request.json() == body, "a handler that asks again is told the same"
        return body

    parts = AppParts("test", "Test", Metrics("test"), Health(), routers=[router])
    with TestClient(create_app(ProcessSettings(port=0), parts), base_url="http://localhost") as client:
        yield client


def post(client: TestClient, body: str) -> Any:
    return client.post("/echo", content=body.encode(), headers={"content-type": "application/json"})


@pytest.mark.parametrize("text", ["plain", "caf\u00e9 \U0001f600", "x" * 2 * MAX_INLINE_BYTES], ids=len)
def test_a_body_is_what_its_json_says(client: TestClient, text: str) -> None:
    response = client.post("/echo", json={"text": text, "numbers": [1, -2.5, None]})

    assert response.json() == {"text": text, "numbers": [1, -2.5, None]}


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "1e999", '"\\ud800"', '["\\udc00\\ud800"]', '{"\\ud83d": 1}', '"', "1,", "'a'"]
)
def test_what_is_no_json_is_refused_saying_where(client: TestClient, value: str) -> None:
    response = post(client, f'{{"text": {value}}}')

    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]
    assert "at character" in response.json()["error"]["message"]


def test_the_halves_of_one_character_are_put_together(client: TestClient) -> None:
    assert post(client, '{"text": "\\ud83d\\ude00"}').json() == {"text": "\U0001f600"}


def test_a_large_body_that_is_no_json_is_refused_too(client: TestClient) -> None:
    assert post(client, '{"text": "' + "x" * 2 * MAX_INLINE_BYTES).status_code == 400


def test_the_garbage_is_left_until_a_body_is_parsed() -> None:
    # each collection would look at all objects of the process, while no other thread runs
    collected: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    gc.callbacks.append(note)
    try:
        lists = parse_json(b"[[]" + b",[]" * 100_000 + b"]")
        assert collected.count("start") <= 1  # once all is there
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(note)
    assert len(lists) == 100_001
