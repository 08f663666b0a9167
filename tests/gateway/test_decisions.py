"""`/v1/decisions`, which several services answer: the model decides which, and a key needs that service's scope."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import directory
from gateway.access import digest
from gateway.settings import KeyRecord
from tests.gateway.routing.pools import answered_by, named, pool, write_pools
from tests.gateway.servers import gateway, metric, serving, until


def listing(*ids: str) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": one} for one in ids]}}


async def decided_by(client: aiohttp.ClientSession, model: Any, **request: Any) -> str:
    body = {"model": model, "input": "x", "questions": []}
    return await answered_by(client, "/v1/decisions", json=body, **request)


async def refusal(client: aiohttp.ClientSession, body: Any, **request: Any) -> tuple[int, Any]:
    async with client.post("/v1/decisions", json=body, **request) as response:
        return response.status, (await response.json())["error"]


async def test_the_service_that_lists_the_model_decides() -> None:
    predict, generate = named("predict", listing("tickets")), named("generate", listing("vicuna"))
    async with (
        serving(predict) as first,
        serving(generate) as second,
        serving(named("score", listing("clip"))) as third,
        gateway(predict_urls=first, generate_urls=second, score_urls=third) as client,
    ):
        models = ["tickets", "vicuna", "clip", "clip@stable", "vicuna@0123456789ab"]
        found = [await decided_by(client, model) for model in models]
        assert found == ["predict", "generate", "score", "score", "generate"]
        assert await answered_by(client, "/decisions", json={"questions": [], "model": "clip"}) == "score"
        assert await metric(client, "fovea_upstream_requests_total", service="score", code="200") == 3
        status, error = await refusal(client, {"model": "missing"})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"questions": [{"model": "tickets"}]}])
async def test_a_request_that_names_no_model_is_refused(body: Any) -> None:
    async with serving(named("predict", listing("tickets"))) as url, gateway(predict_urls=url) as client:
        status, error = await refusal(client, body)
        assert (status, error["param"]) == (422, "model")


async def test_a_model_that_a_service_may_have_that_is_down_is_worth_another_try() -> None:
    async with serving(named("predict", listing("tickets"))) as url, gateway(predict_urls=url) as client:
        status, error = await refusal(client, {"model": "vicuna"})
        assert (status, error["code"]) == (503, "service_unavailable")
        assert "list none now: generate, score" in error["message"]
        # An autoscaler that has scaled them to zero sees that they are wanted.
        assert await metric(client, "fovea_gateway_recent_requests", service="generate") == 1


async def test_a_request_waits_for_a_service_that_is_coming_up_and_may_have_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MODELS_AGE_S", 0.0)
    predict, lists = named("predict", listing("tickets")), dict[str, Any]()
    async with (
        serving(predict) as first,
        serving(named("generate", lists)) as second,
        gateway(predict_urls=first, generate_urls=second, score_urls="", wait_for_service_s=3600) as client,
    ):
        asking = asyncio.create_task(decided_by(client, "vicuna"))
        mistaken = asyncio.create_task(refusal(client, {"model": "missing"}))

        async def is_seen() -> bool:
            return await metric(client, "fovea_gateway_recent_requests", service="generate") == 2

        await until(is_seen)
        assert not asking.done()
        assert await decided_by(client, "tickets") == "predict"
        lists.update(listing("vicuna"))
        assert await asking == "generate"
        assert (await mistaken)[0] == 404


async def test_the_wait_for_a_service_ends_with_the_request_s_deadline_or_its_own() -> None:
    async with serving(named("predict", listing("tickets"))) as url:
        async with gateway(predict_urls=url, wait_for_service_s=3600) as client:
            status, _ = await refusal(client, {"model": "vicuna"}, headers={"X-Request-Timeout": "0.5"})
            assert status == 504
        async with gateway(predict_urls=url, wait_for_service_s=0.3) as client:
            status, error = await refusal(client, {"model": "vicuna"})
            assert (status, "list none now" in error["message"]) == (503, True)


async def test_a_model_of_a_service_that_decides_nothing_is_refused_as_such() -> None:
    services = {name: named(name, listing(f"of-{name}")) for name in ("predict", "generate", "embed", "score")}
    async with AsyncExitStack() as running:
        urls: Any = {f"{name}_urls": await running.enter_async_context(serving(one)) for name, one in services.items()}
        client = await running.enter_async_context(gateway(**urls))
        for model in ("of-embed", "of-embed@latest"):
            status, error = await refusal(client, {"model": model})
            assert (status, error["param"]) == (422, "model")
            assert error["message"] == "model: 'of-embed' is a model of embed, which decides nothing."


async def test_a_service_that_is_too_busy_to_list_its_models_has_those_that_it_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MODELS_AGE_S", 0.0)
    lists = listing("tickets")
    async with serving(named("predict", lists)) as url, gateway(predict_urls=url) as client:
        assert await decided_by(client, "tickets") == "predict"
        lists.clear()
        assert await decided_by(client, "tickets") == "predict"
        status, error = await refusal(client, {"model": "another"})
        assert (status, "predict" in error["message"]) == (503, True)


async def test_a_pool_has_the_models_that_it_claims(tmp_path: Path) -> None:
    async with (
        serving(named("own", listing("clip"))) as own,
        serving(named("large", listing("llama"))) as large,
        gateway(
            score_urls=own, pools=write_pools(tmp_path / "pools", pool("llama", "generate", large)), generate_urls=None
        ) as client,
    ):
        assert [await decided_by(client, model) for model in ("clip", "llama", "llama@1")] == ["own", "large", "large"]


async def test_a_key_needs_the_scope_of_the_service_that_decides() -> None:
    keys = [
        KeyRecord(name=name, sha256=digest(name), scopes=frozenset(scopes))
        for name, scopes in (("of-both", ("predict", "score:read")), ("of-score", ("score",)), ("of-embed", ("embed",)))
    ]
    predict, score = named("predict", listing("tickets")), named("score", listing("clip"))
    async with (
        serving(predict) as first,
        serving(score) as second,
        gateway(predict_urls=first, score_urls=second, keys=tuple(keys)) as client,
    ):

        def sent_by(name: str) -> dict[str, Any]:
            return {"headers": {"Authorization": f"Bearer {name}"}}

        assert await decided_by(client, "tickets", **sent_by("of-both")) == "predict"
        assert await decided_by(client, "clip", **sent_by("of-score")) == "score"
        for name, model in (("of-score", "tickets"), ("of-embed", "clip")):
            num_asked = len(predict.requests) + len(score.requests)
            status, error = await refusal(client, {"model": model}, **sent_by(name))
            assert (status, error["code"]) == (403, "missing_scope")
            asked = (predict.requests + score.requests)[num_asked:]
            assert [one for one in asked if one["path"] != "/v1/models"] == []
        async with client.get("/v1/key", **sent_by("of-score")) as response:
            usage = (await response.json())["usage"]
        assert usage["score"] == {"requests": 1, "errors": 0}
        assert usage["gateway"] == {"requests": 2, "errors": 1}


async def test_the_document_describes_the_shared_route_once() -> None:
    def document(summary: str) -> dict[str, Any]:
        paths = {"/v1/decisions": {"post": {"operationId": "decisions", "summary": summary, "responses": {}}}}
        return {"/openapi.json": {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths}}

    async with (
        serving(named("generate", document("of generate"))) as first,
        serving(named("score", document("of score"))) as second,
        gateway(generate_urls=first, score_urls=second) as client,
        client.get("/openapi.json") as response,
    ):
        operation = (await response.json())["paths"]["/v1/decisions"]["post"]
        assert (operation["operationId"], operation["summary"]) == ("decisions", "of generate")
