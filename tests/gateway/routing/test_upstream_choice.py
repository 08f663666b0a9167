"""A request goes to the pool that has its model, however the model is named, and to no other."""

import asyncio
import gzip
import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.access import digest
from tests.gateway.routing.pools import answered_by, asked_for, named, pool, write_pools
from tests.gateway.servers import NOWHERE, gateway, metric, serving

EVERY_PATH = {
    "generate": [
        *("/generate", "/v1/chat/completions", "/v1/completions", "/tokenize"),
        *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/v2/chat", "/v1/rerank", "/v2/rerank"),
    ],
    "embed": ["/embed", "/v1/embed", "/v2/embed", "/v1/embeddings"],
    "score": ["/score", "/v1/score"],
    "predict": ["/predict"],
}


def urls_of(service: str, url: str) -> dict[str, Any]:
    return {f"{service}_urls": url}


@pytest.mark.parametrize("service", EVERY_PATH)
async def test_every_route_that_reads_a_model_leads_to_its_pool(service: str, tmp_path: Path) -> None:
    async with serving(named("first")) as first, serving(named("second")) as second, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("first", service, first), pool("second", service, second))
        async with gateway(pools=pools, **urls_of(service, own)) as client:
            for path in EVERY_PATH[service]:
                for model, name in [("first", "first"), ("second", "second"), ("other", "own"), (None, "own")]:
                    body = {"text": '"model": "first"', "inputs": [{"model": "first"}], "model": model}
                    assert await answered_by(client, path, json=body) == name, f"{path} {model}"


@pytest.mark.parametrize("model", ["eyes", "eyes@latest", "eyes@20260101T000000Z-aaaaaaaaaaaa"])
async def test_a_model_is_the_same_by_its_name_an_alias_and_a_version(model: str, tmp_path: Path) -> None:
    async with serving(named("eyes")) as eyes, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", eyes))
        async with gateway(pools=pools, embed_urls=own) as client:
            assert await asked_for(client, "embed", model) == "eyes"
            assert await answered_by(client, "/embed", params={"model": model}, data=b"x") == "eyes"


@pytest.mark.parametrize("service", ["embed", "score"])
async def test_forms_and_parameters_of_the_url_name_models_where_the_service_reads_them(
    service: str, tmp_path: Path
) -> None:
    image = {"Content-Type": "image/png"}
    async with serving(named("eyes")) as eyes, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("eyes", service, eyes))
        async with gateway(pools=pools, **urls_of(service, own)) as client:
            path = f"/{service}"
            for model, name in (("eyes", "eyes"), ("other", "own")):
                form = aiohttp.FormData({"model": model})
                form.add_field("file", os.urandom(1000), filename="a.png")
                assert await answered_by(client, path, data=form) == name
                params = {"condition": "a", "model": model}
                assert await answered_by(client, path, params=params, data=b"png", headers=image) == name
            assert await answered_by(client, path, data=b'{"model": "eyes"}', headers=image) == "own"
            # OpenAI's route has no parameters, and ignores those that it is sent.
            if service == "embed":
                assert await answered_by(client, "/v1/embeddings", params={"model": "eyes"}, json={}) == "own"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"eyes"', b'{"model": 1}', b'{"model": null}', b'{"model": ""}', b'{"text": "x"}', b"\xff"],
)
async def test_a_body_that_names_no_model_reaches_a_service_that_says_what_is_wrong(
    body: bytes, tmp_path: Path
) -> None:
    async with serving(named("eyes")) as eyes, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", eyes))
        for urls, name in ((own, "own"), (None, "eyes")):
            async with gateway(pools=pools, embed_urls=urls) as client:
                headers = {"Content-Type": "application/json"}
                assert await answered_by(client, "/embed", data=body, headers=headers) == name


async def test_without_urls_of_its_own_a_services_first_pool_gets_what_names_no_model(tmp_path: Path) -> None:
    async with serving(named("first")) as first, serving(named("second")) as second:
        pools = write_pools(tmp_path / "pools", pool("first", "embed", first), pool("second", "embed", second))
        for urls in (None, ""):
            async with gateway(pools=pools, embed_urls=urls) as client:
                assert await asked_for(client, "embed", None) == "first"
                assert await asked_for(client, "embed", "second") == "second"
                for path in ("/info", "/collections", "/v1/collections/birds"):
                    async with client.get(path) as response:
                        assert (await response.json())["by"] == "first"


async def test_a_model_that_nobody_has_is_404_and_names_those_that_the_pools_have(tmp_path: Path) -> None:
    async with serving(named("pool")) as url:
        pools = write_pools(
            tmp_path / "pools",
            pool("large", "generate", url, models=["vicuna", "tulu"]),
            pool("small", "generate", url),
            pool("eyes", "embed", url),
        )
        async with gateway(pools=pools, generate_urls=None) as client:
            async with client.post("/v1/chat/completions", json={"model": "eyes@1"}) as response:
                assert response.status == 404
                assert response.headers["x-should-retry"] == "false"
                error = (await response.json())["error"]
            assert error == {
                "message": "There is no model 'eyes@1': the pools of generate serve 'tulu', 'vicuna', 'small'.",
                "type": "not_found_error",
                "param": "model",
                "code": "model_not_found",
            }
            # Jina's clients read another field.
            async with client.post("/v1/rerank", json={"model": "eyes@1"}) as response:
                assert response.status == 404
                assert (await response.json())["detail"] == error["message"]


async def test_where_a_pool_is_down_only_its_model_is_missed(tmp_path: Path) -> None:
    names = ("vicuna", "tulu", "eyes", "words", "nli", "claims", "maths")
    services = dict(zip(names, ["generate"] * 2 + ["embed"] * 2 + ["predict"] * 3, strict=True))
    async with serving(named("up")) as up:
        pools = [pool(name, service, NOWHERE if name == "tulu" else up) for name, service in services.items()]
        path = write_pools(tmp_path / "pools", *pools)
        unset: dict[str, Any] = {f"{service}_urls": None for service in services.values()}
        async with gateway(pools=path, **unset) as client:
            asked = [(name, service) for name, service in services.items() for _ in range(20)]
            answers = await asyncio.gather(*(asked_for(client, service, name) for name, service in asked))
            found = Counter((name, answer) for (name, _), answer in zip(asked, answers, strict=True))
            assert found == {(name, "503" if name == "tulu" else "up"): 20 for name in names}
            async with client.post("/generate", json={"model": "tulu"}) as response:
                error = (await response.json())["error"]
                assert "Retry-After" in response.headers
            assert error["message"].startswith("The pool tulu is not running: no response from 127.0.0.1:1.")
            assert "FOVEA_GATEWAY_POOLS" in error["message"]
            assert await metric(client, "fovea_gateway_unserved_requests_total", service="tulu") == 21
            assert await metric(client, "fovea_gateway_unserved_requests_total", service="vicuna") == 0
            for name in names:
                recent = await metric(client, "fovea_gateway_recent_requests", service=name)
                assert recent == (21 if name == "tulu" else 20)


async def test_a_pool_that_is_down_is_not_replaced_by_the_services_own_processes(tmp_path: Path) -> None:
    async with serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("tulu", "generate", NOWHERE))
        async with gateway(pools=pools, generate_urls=own) as client:
            assert await asked_for(client, "generate", "tulu") == "503"
            assert await asked_for(client, "generate", None) == "own"


async def test_a_request_that_names_a_task_and_no_model_goes_to_the_pool_of_the_task(tmp_path: Path) -> None:
    async with serving(named("first")) as first, serving(named("second")) as second, serving(named("own")) as own:
        pools = write_pools(
            tmp_path / "pools",
            pool("first", "predict", first, tasks=["maths"]),
            pool("second", "predict", second, tasks=["nli", "claims"]),
        )
        for urls, rest in ((own, "own"), (None, "first")):
            async with gateway(pools=pools, predict_urls=urls) as client:
                for body, name in [
                    ({"task": "maths"}, "first"),
                    ({"task": "claims"}, "second"),
                    ({"task": "claims", "model": None}, "second"),
                    ({"task": "maths", "model": "second"}, "second"),
                    ({"task": "other"}, rest),
                    ({"inputs": ["a text in TEI's form"]}, rest),
                ]:
                    assert await answered_by(client, "/predict", json=body) == name


async def test_what_depends_on_no_model_is_not_asked_for_one(tmp_path: Path) -> None:
    async with serving(named("eyes")) as eyes, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("eyes", "score", eyes))
        async with gateway(pools=pools, score_urls=own) as client:
            assert await answered_by(client, "/hard-negatives", json={"model": "eyes"}) == "own"


async def test_collections_stay_where_they_are(tmp_path: Path) -> None:
    async with serving(named("eyes")) as eyes, serving(named("own")) as own, serving(named("apart")) as apart:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", eyes))
        for collections, name in (("", "own"), (apart, "apart")):
            async with gateway(pools=pools, embed_urls=own, collections_urls=collections) as client:
                path = "/collections/birds/search"
                assert await answered_by(client, path, json={"model": "eyes"}) == name


async def test_a_request_for_the_canary_goes_there_whatever_its_model(tmp_path: Path) -> None:
    async with serving(named("eyes")) as eyes, serving(named("trial")) as trial:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", eyes))
        async with gateway(pools=pools, embed_urls=None, canary_urls={"embed": [trial]}) as client:
            canary = {"X-Fovea-Canary": "true"}
            assert await answered_by(client, "/embed", json={"model": "eyes"}, headers=canary) == "trial"
            assert await answered_by(client, "/embed", json={"model": "eyes"}) == "eyes"


@pytest.mark.parametrize("size", [100, 300_000, 20_000_000])
async def test_a_model_is_found_behind_a_body_of_any_size_which_passes_unchanged(size: int, tmp_path: Path) -> None:
    eyes = named("eyes")
    async with serving(eyes) as url, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", url))
        async with gateway(pools=pools, embed_urls=own) as client:
            body = json.dumps({"images": ["A" * size], "model": "eyes"}).encode()
            headers = {"Content-Type": "application/json"}
            assert await answered_by(client, "/embed", data=io.BytesIO(body), headers=headers) == "eyes"
            assert eyes.header("content-length") == str(len(body))


async def test_a_compressed_body_names_a_model_too(tmp_path: Path) -> None:
    async with serving(named("eyes")) as eyes, serving(named("own")) as own:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", eyes))
        async with gateway(pools=pools, embed_urls=own) as client:
            headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            body = gzip.compress(b'{"model": "eyes"}')
            assert await answered_by(client, "/embed", data=body, headers=headers) == "eyes"


async def test_a_key_opens_a_service_with_all_of_its_pools_and_no_other(tmp_path: Path) -> None:
    keys: Any = ({"name": "a", "sha256": digest("a"), "scopes": ["embed"]},)
    async with serving(named("pool")) as url:
        pools = write_pools(tmp_path / "pools", pool("eyes", "embed", url), pool("vicuna", "generate", url))
        async with gateway(pools=pools, keys=keys, embed_urls=None, generate_urls=None) as client:
            client.headers["Authorization"] = "Bearer a"
            assert await asked_for(client, "embed", "eyes") == "pool"
            assert await asked_for(client, "embed", None) == "pool"
            for model in ("vicuna", "eyes", "nobody's", None):
                assert await asked_for(client, "generate", model) == "403"


async def test_a_full_pool_refuses_its_own_requests_alone(tmp_path: Path) -> None:
    leave = asyncio.Event()
    slow = named("slow")
    answer = slow.answer

    async def wait(*request: Any) -> None:
        await leave.wait()
        await answer(*request)

    slow.answer = wait
    async with serving(slow) as url, serving(named("quick")) as other:
        pools = write_pools(tmp_path / "pools", pool("slow", "embed", url), pool("quick", "embed", other))
        async with gateway(
            pools=pools, embed_urls=None, max_inflight_requests=1, max_queued_requests=0, burst_s=0
        ) as client:
            first = asyncio.create_task(asked_for(client, "embed", "slow"))
            while await metric(client, "fovea_gateway_inflight_requests", service="slow") == 0:
                pass
            async with client.post("/embed", json={"model": "slow"}) as response:
                assert response.status == 503
                assert "The pool slow" in (await response.json())["error"]["message"]
            assert await asked_for(client, "embed", "quick") == "quick"
            leave.set()
            assert await first == "slow"
