"""A version on trial beside the one that serves: no client gets results of two models unasked."""

from collections import Counter

import pytest

from tests.gateway.servers import NOWHERE, Service, gateway, metric, respond, serving

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
