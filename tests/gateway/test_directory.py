"""The gateway's information about all services together: models, documentation, readiness."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from gateway import directory, upstream
from gateway.access import digest
from gateway.directory import merge_documents
from gateway.settings import KeyRecord
from tests.gateway.routing.pools import named, pool, write_pools
from tests.gateway.servers import NOWHERE, Service, echo, gateway, metric, respond, serving, until


def service_with(**documents: Any) -> Service:
    """A service with these JSON documents at `/v1/models` and `/openapi.json`; 404 for those not given."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        document = documents.get({"/v1/models": "models", "/openapi.json": "openapi"}.get(scope["path"], ""))
        status = 200 if document is not None else 404
        headers = ((b"content-type", b"application/json"),)
        await respond(json.dumps(document).encode(), status=status, headers=headers)(scope, receive, send)

    return Service(answer)


def models(*ids: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": id_, "object": "model", "created": 1, "owned_by": "x"} for id_ in ids]}


def document(path: str, operation_id: str, **schemas: Any) -> dict[str, Any]:
    name = next(iter(schemas), "None")
    response = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "paths": {path: {"post": {"operationId": operation_id, "responses": {"200": response}}}},
        "components": {"schemas": schemas},
    }


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


async def test_models_are_those_of_all_services_that_answer() -> None:
    embed, score = service_with(models=models("shapes@3")), service_with(models=models("fsc@1"))
    score.answer = service_with(models={**models("fsc@1", "org/fsc")}).answer
    async with (
        serving(embed) as first,
        serving(score) as second,
        serving(service_with()) as third,
        gateway(embed_urls=first, score_urls=second, predict_urls=third) as client,
    ):
        for path in ("/v1/models", "/models"):
            async with client.get(path) as response:
                listed = await response.json()
            assert listed["object"] == "list"
            assert [model["id"] for model in listed["data"]] == ["shapes@3", "fsc@1", "org/fsc"]
        for path in ("/v1/models/org/fsc", "/models/org%2Ffsc"):
            async with client.get(path) as response:
                assert (await response.json())["owned_by"] == "x"
        async with client.get("/v1/models/none") as response:
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "not_found_error"


async def test_versions_of_a_model_are_those_that_its_service_finds_in_the_store() -> None:
    version = {"version": "1", "created": 2, "size_bytes": 3, "aliases": ["latest"], "serving": True}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        found = {"/v1/models": models("fsc"), "/v1/models/fsc/versions": {"followed": "latest", "data": [version]}}
        body = found.get(scope["path"])
        await respond(json.dumps(body).encode(), status=200 if body else 404)(scope, receive, send)

    score = Service(answer)
    async with (
        serving(score) as first,
        serving(service_with(models=models("shapes"))) as second,
        gateway(score_urls=first, embed_urls=second) as client,
    ):
        async with client.get("/v1/models/fsc/versions") as response:
            listed = await response.json()
        assert listed["followed"] == "latest"
        assert listed["data"] == [{**version, "object": "model.version", "refusal": None}]
        for model, status in (("none", 404), ("shapes", 503)):
            async with client.get(f"/v1/models/{model}/versions") as response:
                assert response.status == status


# Answers of a service that is older, newer or broken, as they are sent, by the path at which the gateway asks for them.
NOT_UNDERSTOOD = {
    "/v1/models": (
        b"null",
        b'{"data": null}',
        b'{"data": 1}',
        b'{"data": {"id": 1}}',
        b'{"data": [{"id": "odd", "cost": NaN}]}',
        b'{"data": [{"id": "\\ud800"}]}',
        b"[" * 100_000,
    ),
    "/v1/models/fsc/versions": (
        b"{}",
        b"[]",
        b'{"data": []}',
        b'{"data": null, "followed": "latest"}',
        b'{"data": [{"version": "1"}], "followed": "latest"}',
        b'{"data": [], "followed": null}',
    ),
    "/openapi.json": (
        b"[]",
        b'{"paths": null}',
        b'{"paths": []}',
        b'{"paths": {"/score": null}}',
        b'{"paths": {"/score": {}}, "components": null}',
        b'{"paths": {"/score": {}}, "components": {"schemas": []}}',
        b'{"paths": {"/score": {"post": {"x-cost": Infinity}}}}',
        b'{"paths": {"/score": {"post": {"summary": "\\udc00"}}}}',
    ),
    "/tasks": (b'{"data": null}', b'{"data": [{"model": "nli", "cost": NaN}]}'),
}


@pytest.mark.parametrize(
    ("path", "answered"), [(path, answer) for path, answers in NOT_UNDERSTOOD.items() for answer in answers]
)
async def test_an_answer_of_a_service_that_is_not_understood_is_left_out_and_logged(
    path: str, answered: bytes, tmp_path: Path
) -> None:
    listed = json.dumps(models("fsc")).encode()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await respond({"/v1/models": listed, path: answered}.get(scope["path"], b"{}"))(scope, receive, send)

    other = service_with(models=models("shapes"), openapi=document("/embed", "run"))
    pools = write_pools(tmp_path / "pools", pool("students", "predict", NOWHERE))
    async with (
        serving(Service(answer)) as url,
        serving(other) as embed_url,
        gateway(pools=pools, score_urls=url, predict_urls=url, embed_urls=embed_url) as client,
    ):
        with capture_logs() as logs:
            async with client.get(path) as response:
                told = json.loads(await response.read(), parse_constant=pytest.fail)
    assert f"{url}{path}" in str([log["reason"] for log in logs if log["event"] == "answer_not_understood"])
    assert (response.status, told.get("error", {}).get("code")) in ((200, None), (503, "service_unavailable"))
    assert (response.status == 503) is path.endswith("/versions")
    assert "/score" not in told.get("paths", {})
    assert ("/embed" in str(told), "shapes" in str(told)) == (path == "/openapi.json", path == "/v1/models")


async def test_the_operation_id_of_a_service_may_be_anything() -> None:
    odd = document("/score", "run")
    odd["paths"]["/score"]["post"]["operationId"] = ["run"]
    async with (
        serving(service_with(openapi=odd)) as url,
        gateway(score_urls=url) as client,
        client.get("/openapi.json") as response,
    ):
        assert (await response.json())["paths"]["/score"] == odd["paths"]["/score"]


@pytest.mark.parametrize(
    "odd",
    [1, None, {"created": 1}, {"id": None}, *({"id": "odd", name: None} for name in ("object", "created", "owned_by"))],
)
async def test_a_model_that_is_not_understood_hides_no_other_of_its_service(odd: Any) -> None:
    listed = models("fsc", "odd", "clip")
    listed["data"][1] = odd
    async with (
        serving(service_with(models=listed)) as url,
        gateway(score_urls=url) as client,
        client.get("/v1/models") as response,
    ):
        assert [model["id"] for model in (await response.json())["data"]] == ["fsc", "clip"]


@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json"])
async def test_many_who_ask_at_once_cost_a_service_one_question(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the test takes.
    monkeypatch.setattr(directory, "MODELS_AGE_S", 3600)
    monkeypatch.setattr(directory, "DOCUMENT_AGE_S", 3600)
    embed = service_with(models=models("shapes@3"), openapi=document("/embed", "run"))
    async with serving(embed) as url, gateway(embed_urls=url) as client:

        async def ask() -> dict[str, Any]:
            async with client.get(path) as response:
                answer: dict[str, Any] = await response.json()
                return answer

        first, *others = await asyncio.gather(*(ask() for _ in range(50)))
    assert "shapes@3" in str(first) or "/embed" in first["paths"]
    assert all(other == first for other in others)
    assert len(embed.requests) == 1


async def test_what_a_service_says_of_a_model_beyond_openais_fields_is_kept() -> None:
    listed = models("llm")
    listed["data"][0]["max_model_len"] = 4096
    async with (
        serving(service_with(models=listed)) as url,
        gateway(generate_urls=url) as client,
        client.get("/v1/models/llm") as response,
    ):
        assert (await response.json())["max_model_len"] == 4096


async def test_one_document_describes_the_routes_of_all_services_that_run() -> None:
    embed = service_with(openapi=document("/embed", "run", Answer={"type": "object", "title": "Embed"}))
    score = service_with(openapi=document("/score", "run", Answer={"type": "object", "title": "Score"}))
    async with (
        serving(embed) as first,
        serving(score) as second,
        gateway(embed_urls=first, score_urls=second) as client,
    ):
        async with client.get("/openapi.json") as response:
            merged = await response.json()
        async with client.get("/docs") as response:
            assert response.status == 200
            assert "/openapi.json" in await response.text()
    assert {"/embed", "/score", "/v1/models", "/readyz", "/metrics"} <= merged["paths"].keys()
    assert "/predict" not in merged["paths"]
    assert "security" not in merged
    operations = [operation for methods in merged["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)


async def test_the_document_of_a_busy_service_and_its_versions_may_take_longer_than_a_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "PROBE_TIMEOUT", aiohttp.ClientTimeout(total=0.5))
    found = {"/v1/models": models("shapes"), "/openapi.json": document("/embed", "run")}
    found["/v1/models/shapes/versions"] = {"data": [], "followed": "latest"}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/v1/models":
            await asyncio.sleep(1)
        await respond(json.dumps(found[scope["path"]]).encode())(scope, receive, send)

    async with serving(Service(answer)) as url, gateway(embed_urls=url) as client:
        async with client.get("/openapi.json") as response:
            assert "/embed" in (await response.json())["paths"]
        async with client.get("/v1/models/shapes/versions") as response:
            assert response.status == 200


async def test_the_documentation_needs_no_key_and_no_other_host() -> None:
    keys = (KeyRecord(name="a", sha256=digest("a"), scopes=frozenset({"embed"})),)
    async with gateway(keys=keys) as client:
        async with client.get("/docs") as response:
            page = await response.text()
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        addresses = re.findall(r"""(?:src|href|url)(?:=|: )["']([^"']+)""", page)
        assert len(addresses) == 4
        for address in addresses:
            assert address.startswith("./")  # so that it holds behind a proxy that adds a prefix
            async with client.get(address.removeprefix(".")) as response:
                assert response.status == 200
    assert "://" not in page


async def test_the_document_asks_for_a_key_where_one_is_needed() -> None:
    keys = (KeyRecord(name="a", sha256=digest("a"), scopes=frozenset({"embed"})),)
    async with gateway(keys=keys) as client, client.get("/openapi.json") as response:
        merged = await response.json()
    assert merged["security"] == [{"key": []}]
    assert merged["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert merged["paths"]["/readyz"]["get"]["security"] == []
    assert "security" not in merged["paths"]["/v1/models"]["get"]


def test_schemas_that_differ_get_two_names_and_equal_ones_share_theirs() -> None:
    error = {"type": "object", "title": "Error"}
    own = document("/own", "own", Error=error)
    embed = document("/embed", "embed", Answer={"type": "object"}, Error=error)
    score = document("/score", "score", Answer={"type": "array"}, Error=error)
    merged = merge_documents(own, {"embed": embed, "score": score}, lambda service, path: True)
    assert merged["components"]["schemas"] == {
        "Answer": {"type": "object"},
        "Error": error,
        "ScoreAnswer": {"type": "array"},
    }
    response = merged["paths"]["/score"]["post"]["responses"]["200"]
    assert response["content"]["application/json"]["schema"] == ref("ScoreAnswer")


def test_a_schema_that_refers_to_one_that_differs_differs_too() -> None:
    embed = document("/embed", "embed", List={"items": ref("Item")}, Item={"type": "string"})
    score = document("/score", "score", List={"items": ref("Item")}, Item={"type": "number"})
    schemas = merge_documents({}, {"embed": embed, "score": score}, lambda service, path: True)["components"]["schemas"]
    assert schemas["List"] == {"items": ref("Item")}
    assert schemas["ScoreList"] == {"items": ref("ScoreItem")}
    assert schemas["ScoreItem"] == {"type": "number"}


def test_paths_that_the_gateway_does_not_route_to_a_service_are_left_out() -> None:
    embed = document("/embed", "embed") | {"paths": {"/embed": {}, "/livez": {}, "/score": {}}}
    merged = merge_documents({"paths": {}}, {"embed": embed}, lambda service, path: path == f"/{service}")
    assert list(merged["paths"]) == ["/embed"]


async def test_readiness_names_each_service_and_does_not_depend_on_them() -> None:
    embed = Service(echo)
    async with serving(embed) as url, gateway(embed_urls=url, probe_interval_s=0.01) as client:

        async def checks() -> dict[str, Any]:
            async with client.get("/readyz") as response:
                assert response.status == 200
                report: dict[str, Any] = await response.json()
            assert report["status"] == "ok"
            found: dict[str, Any] = report["checks"]
            return found

        found = await checks()
        assert found["embed"] == {"ok": True, "detail": "1 of 1 addresses ready"}
        assert found["score"] == {"ok": False, "detail": "0 of 1 addresses ready"}
        assert await metric(client, "fovea_upstream_ready_addresses", service="embed") == 1
        embed.is_ready = False

        async def is_told() -> bool:
            return not (await checks())["embed"]["ok"]

        await until(is_told)


async def test_probes_answer_at_the_gateway() -> None:
    async with gateway() as client:
        for path in ("/livez", "/readyz", "/startupz", "/health"):
            async with client.get(path) as response:
                assert response.status == 200


async def listed(client: aiohttp.ClientSession, path: str) -> list[dict[str, Any]]:
    async with client.get(path) as response:
        assert response.status == 200
        found: list[dict[str, Any]] = (await response.json())["data"]
        return found


async def test_models_of_pools_are_listed_once_as_the_pool_has_them_that_gets_their_requests(tmp_path: Path) -> None:
    def listing(owner: str, *ids: str) -> Service:
        answer = models(*ids)
        for one in answer["data"]:
            one["owned_by"] = owner
        return named(owner, {"/v1/models": answer})

    async with (
        serving(listing("own", "reader", "vicuna", "tulu@1")) as own,
        # Of its models `alias` is not claimed, so no request for it would come here.
        serving(listing("first", "vicuna", "alias", "reader")) as first,
        serving(listing("second", "vicuna", "tulu@2")) as second,
        serving(listing("eyes", "eyes", "vicuna")) as eyes,
    ):
        path = write_pools(
            tmp_path / "pools",
            pool("first", "generate", first, models=["vicuna"]),
            pool("second", "generate", second, models=["tulu", "missing"]),
            pool("down", "generate", NOWHERE, models=["reader"]),
        )
        async with gateway(pools=path, generate_urls=own, embed_urls=eyes) as client:
            found = [(one["id"], one["owned_by"]) for one in await listed(client, "/v1/models")]
            assert found == [("vicuna", "first"), ("tulu@2", "second"), ("eyes", "eyes"), ("vicuna", "eyes")]
            async with client.get("/v1/models/tulu@2") as response:
                assert (await response.json())["owned_by"] == "second"
            for absent in ("tulu@1", "alias", "missing"):
                async with client.get(f"/v1/models/{absent}") as response:
                    assert response.status == 404, absent
            async with client.get("/v1/models/reader") as response:
                message = (await response.json())["error"]["message"]
                assert response.status == 503
                assert message.endswith("down, which has the model 'reader', is not available.")


async def test_tasks_are_those_of_all_pools_of_predict(tmp_path: Path) -> None:
    def listing(**tasks: str) -> Service:
        data = [{"id": task, "model": model, "fields": ["x"]} for task, model in tasks.items()]
        return named("predict", {"/tasks": {"object": "list", "data": data}})

    async with (
        serving(listing(maths="word-problems@1", nli="old@3")) as own,
        serving(listing(nli="inferences@2", maths="word-problems@2")) as first,
        serving(listing(claims="claims@1")) as second,
    ):
        path = write_pools(
            tmp_path / "pools",
            pool("first", "predict", first, models=["inferences"]),
            pool("second", "predict", second, models=["claims"]),
            pool("down", "predict", NOWHERE, models=["lost"]),
        )
        expected = [("nli", "inferences@2"), ("claims", "claims@1")]
        of_own = [("maths", "word-problems@1"), ("nli", "old@3")]
        for urls, more in ((None, []), (own, of_own)):
            async with gateway(pools=path, predict_urls=urls) as client:
                for asked in ("/tasks", "/v1/tasks"):
                    found = await listed(client, asked)
                    assert [(one["id"], one["model"]) for one in found] == more + expected
                    assert found[0]["fields"] == ["x"]
                async with client.post("/tasks") as response:
                    assert response.status == 405


async def test_tasks_of_a_predict_without_pools_pass_as_they_are(tmp_path: Path) -> None:
    tasks = named("predict", {"/tasks": {"data": [{"id": "no model"}], "more": 1}, "/v1/tasks": {"more": 2}})
    path = write_pools(tmp_path / "pools", pool("vicuna", "generate", NOWHERE))
    async with serving(tasks) as url, gateway(pools=path, predict_urls=url) as client:
        async with client.get("/tasks") as response:
            assert await response.json() == {"data": [{"id": "no model"}], "more": 1}
        async with client.get("/v1/tasks") as response:
            assert await response.json() == {"more": 2}


async def test_a_key_needs_the_scope_of_predict_for_its_tasks(tmp_path: Path) -> None:
    keys = (KeyRecord(name="a", sha256=digest("a"), scopes=frozenset({"embed"})),)
    path = write_pools(tmp_path / "pools", pool("students", "predict", NOWHERE))
    async with gateway(pools=path, predict_urls=None, keys=keys) as client:
        for headers, status in (({}, 401), ({"Authorization": "Bearer a"}, 403)):
            async with client.get("/tasks", headers=headers) as response:
                assert response.status == status


async def test_the_document_has_each_service_once_from_the_first_that_answers(tmp_path: Path) -> None:
    first = service_with(openapi=document("/generate", "first"))
    second = service_with(openapi=document("/generate", "second"))
    async with serving(first) as one, serving(second) as other:
        path = write_pools(
            tmp_path / "pools",
            pool("down", "generate", NOWHERE),
            pool("first", "generate", one),
            pool("second", "generate", other),
        )
        async with gateway(pools=path, generate_urls=None) as client, client.get("/openapi.json") as response:
            merged = await response.json()
    assert merged["paths"]["/generate"]["post"]["operationId"] == "first"
    assert "/tasks" not in merged["paths"]
    assert not second.requests


async def test_readiness_names_each_pool(tmp_path: Path) -> None:
    async with serving(Service()) as url:
        path = write_pools(tmp_path / "pools", pool("vicuna", "generate", url), pool("tulu", "generate", NOWHERE))
        async with gateway(pools=path, generate_urls=None) as client, client.get("/readyz") as response:
            assert response.status == 200
            checks = (await response.json())["checks"]
    assert checks["vicuna"] == {"ok": True, "detail": "1 of 1 addresses ready"}
    assert checks["tulu"] == {"ok": False, "detail": "0 of 1 addresses ready"}
    assert "generate" not in checks
