"""A review behind the gateway: what needs a key of which scope, and when it is told of."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.access import digest
from gateway.settings import GatewaySettings, KeyRecord, Scope
from tests.gateway.servers import NOWHERE, Service, gateway, serving, until


def key(name: str, scope: Scope) -> KeyRecord:
    return KeyRecord(name=name, sha256=digest(name), scopes=frozenset({scope}))


async def status(client: Any, method: str, path: str, name: str = "") -> int:
    async with client.request(method, path, headers={"X-API-Key": name} if name else {}) as response:
        return int(response.status)


async def test_its_pages_files_need_no_key_and_all_else_one_of_its_scope() -> None:
    review = Service()
    keys = (key("anna", "review"), key("reader", "review:read"), key("other", "embed"))
    async with serving(review) as url, gateway(review_url=url, keys=keys) as client:
        assert await status(client, "GET", "/review/page/review.js") == 200
        assert (review.header("x-fovea-key-name"), review.header("x-fovea-client")) == (None, "client:127.0.0.1")
        assert await status(client, "POST", "/review/page/review.js") == 405
        for method, path in (("GET", "/review/turn?reviewer=Anna"), ("POST", "/review/verdicts")):
            assert await status(client, method, path) == 401
            assert await status(client, method, path, "other") == 403
            assert await status(client, method, path, "anna") == 200
            assert review.header("x-fovea-key-name") == "anna"
        assert review.requests[-1]["path"] == "/review/verdicts"
        assert await status(client, "GET", "/review/verdicts.jsonl", "reader") == 200
        assert await status(client, "POST", "/review/session", "reader") == 200
        assert await status(client, "POST", "/review/undo", "reader") == 403


async def test_a_gateway_without_one_has_no_such_paths() -> None:
    async with gateway() as client:
        assert await status(client, "GET", "/review/turn") == 404
        assert await status(client, "GET", "/review/page/review.js") == 404


async def test_readiness_tells_of_it_while_it_runs_and_nobody_is_woken_for_it() -> None:
    review = Service()

    async def is_told() -> bool:
        async with client.get("/readyz") as response:
            return "review" in (await response.json())["checks"]

    async def is_not_told() -> bool:
        return not await is_told()

    async with serving(review) as url, gateway(review_url=url, probe_interval_s=0.01) as client:
        await until(is_told)
        review.is_ready = False
        await until(is_not_told)
        async with client.get("/metrics") as response:
            assert 'fovea_upstream_ready_addresses{service="review"}' not in await response.text()


async def test_one_that_is_not_running_is_told_with_its_command_and_its_setting() -> None:
    async with gateway(review_url=NOWHERE) as client, client.get("/review/turn") as response:
        message = (await response.json())["error"]["message"]
    assert response.status == 503
    assert "fovea curate review" in message
    assert "FOVEA_GATEWAY_REVIEW_URL" in message


async def test_its_routes_are_in_the_document_while_it_runs() -> None:
    document = {"openapi": "3.1.0", "info": {}, "paths": {"/review/turn": {"get": {}}, "/": {"get": {}}}}

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})

    async with (
        serving(Service(answer)) as url,
        gateway(review_url=url) as client,
        client.get("/openapi.json") as response,
    ):
        paths = (await response.json())["paths"]
    assert "/review/turn" in paths
    assert "/" not in paths


@pytest.mark.parametrize("url", ["elsewhere", "http://review:8090/below"])
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="review_url"):
        GatewaySettings(review_url=url)
