"""A version on trial beside the one that serves: no client gets results of two models unasked."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.access import digest
from gateway.admission import TrackRecord
from tests.gateway.routing.pools import pool, write_pools
from tests.gateway.servers import NOWHERE, Service, gateway, metric, respond, serving, until

STABLE, CANDIDATE = "eyes@20260101T000000Z-aaaaaaaaaaaa", "eyes@20260201T000000Z-bbbbbbbbbbbb"
ASKING = {"X-Fovea-Canary": "true"}


def answering_as(model: str) -> Service:
    return Service(respond(headers=((b"x-fovea-model", model.encode()),)))


async def test_the_canary_answers_those_who_ask_for_it_and_nobody_else() -> None:
    async with (
        serving(answering_as(STABLE)) as stable,
        serving(answering_as(CANDIDATE)) as candidate,
        gateway(embed_urls=stable, canary_urls={"embed": [candidate]}) as client,
    ):
        for headers, model in (({}, STABLE), ({"X-Fovea-Canary": "false"}, STABLE), (ASKING, CANDIDATE)):
            for path in ("/embed", "/v1/embed", "/v1/embeddings"):
                answered: Counter[str] = Counter()
                for _ in range(10):
                    async with client.post(path, data=b"{}", headers=headers) as response:
                        answered.update(response.headers.getall("X-Fovea-Model"))
                assert answered == {model: 10}


@pytest.mark.parametrize(("headers", "status"), [({}, 200), (ASKING, 503)])
async def test_neither_stands_in_for_the_other_where_one_is_gone(headers: dict[str, str], status: int) -> None:
    async with (
        serving(answering_as(STABLE)) as stable,
        gateway(embed_urls=stable, canary_urls={"embed": [NOWHERE]}) as client,
    ):
        async with client.post("/embed", data=b"{}", headers=headers) as response:
            assert response.status == status
        async with client.get("/metrics") as response:
            # What scales embed by its load, and wakes people for it, sees nothing of its canary.
            assert 'fovea_upstream_ready_addresses{service="embed-canary"}' not in await response.text()
    async with (
        serving(answering_as(CANDIDATE)) as candidate,
        gateway(embed_urls=NOWHERE, canary_urls={"embed": [candidate]}) as client,
        client.post("/embed", data=b"{}", headers=headers) as response,
    ):
        assert response.status == (503 if status == 200 else 200)


@pytest.mark.parametrize(
    ("method", "path", "value", "complaint"),
    [
        ("POST", "/score", "true", "score service has no canary"),
        ("GET", "/collections", "true", "Collections have no canary"),
        ("POST", "/v1/collections/birds/search", "true", "Collections have no canary"),
        ("POST", "/embed", "always", "`true` or `false`"),
    ],
)
async def test_what_has_no_version_on_trial_says_so_instead_of_answering_with_another(
    method: str, path: str, value: str, complaint: str
) -> None:
    async with (
        serving(answering_as(STABLE)) as url,
        gateway(embed_urls=url, score_urls=url, canary_urls={"embed": [url]}) as client,
        client.request(method, path, headers={"X-Fovea-Canary": value}) as response,
    ):
        assert response.status == 400
        error = (await response.json())["error"]
        assert error["param"] == "X-Fovea-Canary"
        assert complaint in error["message"]


async def test_attempts_are_compared_only_where_a_canary_stands_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(TrackRecord, "add", lambda self, code, model: compared.append(code))
    async with (
        serving(answering_as(STABLE)) as url,
        gateway(embed_urls=url, score_urls=url, canary_urls={"embed": [url]}) as client,
    ):
        for path, headers in (("/embed", {}), ("/embed", ASKING), ("/score", {})):
            async with client.post(path, data=b"{}", headers=headers) as response:
                assert response.status == 200
    assert compared == ["200", "200"]


def keys_file(folder: Path) -> Path:
    """Two keys: `tester` is marked for canaries, `shop` is not."""
    records = [{"name": name, "sha256": digest(name), "scopes": ["admin"]} for name in ("tester", "shop")]
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [records[0] | {"canary": True}, records[1]]}))
    return path


async def model_of(client: aiohttp.ClientSession, path: str, key: str, **headers: str) -> str | None:
    """The model that answers a key, None where none does."""
    sent = {"Authorization": f"Bearer {key}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post(path, json={"model": "eyes"}, headers=sent) as response:
        return response.headers.get("X-Fovea-Model")


async def test_a_marked_key_gets_the_canary_unless_a_header_says_otherwise(tmp_path: Path) -> None:
    async with (
        serving(answering_as(STABLE)) as stable,
        serving(answering_as(CANDIDATE)) as candidate,
        gateway(
            keys_file=keys_file(tmp_path),
            embed_urls=stable,
            score_urls=stable,
            canary_urls={"embed": [candidate]},
        ) as client,
    ):
        assert await model_of(client, "/v1/embeddings", "tester") == CANDIDATE
        assert await model_of(client, "/v1/embeddings", "tester", X_Fovea_Canary="false") == STABLE
        assert await model_of(client, "/v1/embeddings", "shop") == STABLE
        assert await model_of(client, "/v1/embeddings", "shop", X_Fovea_Canary="true") == CANDIDATE
        # Where there is no canary, the key is like any other.
        assert await model_of(client, "/score", "tester") == STABLE
        assert await model_of(client, "/collections/birds/search", "tester") == STABLE


async def test_a_marked_key_gets_the_stable_version_while_no_canary_is_ready(tmp_path: Path) -> None:
    canary = answering_as(CANDIDATE)
    canary.is_ready = False
    async with (
        serving(answering_as(STABLE)) as stable,
        serving(canary) as candidate,
        gateway(
            keys_file=keys_file(tmp_path),
            embed_urls=stable,
            canary_urls={"embed": [candidate]},
            probe_interval_s=0.001,
        ) as client,
    ):
        assert await model_of(client, "/embed", "tester") == STABLE
        canary.is_ready = True

        async def is_answered_by(model: str) -> bool:
            return await model_of(client, "/embed", "tester") == model

        await until(lambda: is_answered_by(CANDIDATE))
        canary.is_ready = False
        await until(lambda: is_answered_by(STABLE))


async def codes_of(client: aiohttp.ClientSession, key: str, times: int, **headers: str) -> list[int]:
    """The statuses of a key's requests, one after the other."""
    sent = {"Authorization": f"Bearer {key}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    codes = []
    for _ in range(times):
        async with client.post("/embed", json={}, headers=sent) as response:
            codes.append(response.status)
    return codes


@asynccontextmanager
async def on_trial(folder: Path, stable: Service, canary: Service) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        serving(stable) as stable_url,
        serving(canary) as canary_url,
        gateway(keys_file=keys_file(folder), embed_urls=stable_url, canary_urls={"embed": [canary_url]}) as client,
    ):
        yield client


async def is_withdrawn(client: aiohttp.ClientSession) -> float:
    async with client.get("/metrics", headers={"Authorization": "Bearer shop"}) as response:
        (line,) = [one for one in (await response.text()).splitlines() if one.startswith("fovea_canary_withdrawn{")]
    assert 'service="embed-canary"' in line
    return float(line.rpartition(" ")[2])


async def test_a_canary_that_fails_is_withdrawn_from_marked_keys_until_another_version_answers(tmp_path: Path) -> None:
    canary = answering_as(CANDIDATE)
    async with on_trial(tmp_path, answering_as(STABLE), canary) as client:
        assert await codes_of(client, "shop", 20) == [200] * 20
        assert await model_of(client, "/embed", "tester") == CANDIDATE
        canary.answer = respond(status=500)
        assert await codes_of(client, "tester", 10) == [500] * 6 + [200] * 4
        assert await is_withdrawn(client) == 1
        # Nobody stands in for it where a request asks for it.
        assert await codes_of(client, "shop", 1, X_Fovea_Canary="true") == [500]
        # The version that failed does not come back by answering once.
        canary.answer = answering_as(CANDIDATE).answer
        assert await model_of(client, "/embed", "shop", X_Fovea_Canary="true") == CANDIDATE
        assert await model_of(client, "/embed", "tester") == STABLE
        canary.answer = answering_as("eyes@20260301T000000Z-cccccccccccc").answer
        assert await codes_of(client, "shop", 1, X_Fovea_Canary="true") == [200]
        assert await is_withdrawn(client) == 0
        assert await model_of(client, "/embed", "tester") == "eyes@20260301T000000Z-cccccccccccc"


@pytest.mark.parametrize(
    ("stable", "canary", "times"),
    [(200, 500, 5), (200, 422, 20), (500, 500, 20)],
    ids=["it has failed a few times", "the requests are wrong", "the stable version fails as often"],
)
async def test_a_canary_stays_on_trial_where(stable: int, canary: int, times: int, tmp_path: Path) -> None:
    services = [Service(respond(status=status)) for status in (stable, canary)]
    async with on_trial(tmp_path, *services) as client:
        assert await codes_of(client, "shop", 20) == [stable] * 20
        assert await codes_of(client, "tester", times) == [canary] * times
        services[1].answer = answering_as(CANDIDATE).answer
        assert await model_of(client, "/embed", "tester") == CANDIDATE
        assert await is_withdrawn(client) == 0


@pytest.mark.parametrize(("num_well", "minutes", "is_worse"), [(0, 0, True), (600, 0, False), (0, 60, False)])
def test_failures_weigh_by_their_share_and_less_with_time(num_well: int, minutes: int, *, is_worse: bool) -> None:
    now = 0.0
    record = TrackRecord(lambda: now)
    record.add("200", CANDIDATE)
    for code in ("500", "unreachable", "broken", "503", "504", "hung"):
        record.add(code, "")
    now = minutes * 60.0
    for _ in range(num_well):
        record.add("200", CANDIDATE)
    assert record.is_worse_than(TrackRecord()) == is_worse


async def test_a_marked_key_gets_the_pool_of_the_model_that_it_names(tmp_path: Path) -> None:
    async with (
        serving(answering_as(STABLE)) as stable,
        serving(answering_as("eyes@pooled")) as pooled,
        serving(answering_as(CANDIDATE)) as candidate,
        gateway(
            keys_file=keys_file(tmp_path),
            embed_urls=stable,
            canary_urls={"embed": [candidate]},
            pools=write_pools(tmp_path / "pools", pool("eyes", "embed", pooled)),
        ) as client,
    ):
        assert await model_of(client, "/embed", "tester") == "eyes@pooled"
        async with client.post("/embed", json={}, headers={"Authorization": "Bearer tester"}) as response:
            assert response.headers["X-Fovea-Model"] == CANDIDATE


async def test_requests_are_counted_by_the_version_that_answered_and_by_the_pool_that_was_asked() -> None:
    async with (
        serving(answering_as(STABLE)) as stable,
        serving(answering_as(CANDIDATE)) as candidate,
        gateway(embed_urls=stable, canary_urls={"embed": [candidate]}) as client,
    ):
        for headers in ({}, {}, ASKING):
            async with client.post("/embed", data=b"{}", headers=headers) as response:
                assert response.status == 200
        for model, pool, times in ((STABLE, "embed", 2), (CANDIDATE, "embed-canary", 1)):
            labels = {"route": "/embed", "version": model.rpartition("@")[2]}
            assert await metric(client, "fovea_requests_total", code="200", method="POST", **labels) == times
            assert await metric(client, "fovea_request_seconds_count", **labels) == times
            assert await metric(client, "fovea_upstream_requests_total", service=pool, code="200") == times
