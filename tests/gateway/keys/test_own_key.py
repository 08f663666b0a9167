"""Facts that a key is told of itself."""

import json
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.access import digest
from gateway.settings import KeyRecord
from tests.gateway.servers import Service, gateway, gone, respond, serving

# The window ends with the year of the clock.
RATE = "5/year"
KEYS = (
    KeyRecord(
        name="anna", sha256=digest("a"), scopes=frozenset({"embed:read", "score"}), rate_limit=RATE, tenant="lab"
    ),
    KeyRecord(name="ben", sha256=digest("b"), scopes={"metrics"}),
)


async def own(client: Any, key: str) -> Any:
    async with client.get("/v1/key", headers={"X-API-Key": key} if key else {}) as response:
        assert response.status == 200
        return await response.json()


async def test_a_key_is_told_its_scopes_what_its_limit_leaves_and_what_it_asked_for() -> None:
    embed = Service()
    async with serving(embed) as url, gateway(embed_urls=url, keys=KEYS) as client:
        for path, refusal, expected in (("/embed", 200, 200), ("/embed", 422, 422), ("/predict", 200, 403)):
            embed.answer = respond(status=refusal)
            async with client.post(path, headers={"X-API-Key": "a"}) as response:
                assert response.status == expected
        found = await own(client, "a")
        assert (found["name"], found["tenant"], found["scopes"]) == ("anna", "lab", ["embed:read", "score"])
        limit = found["rate_limit"]
        assert (limit["rate"], limit["limit"], limit["remaining"]) == (RATE, 5, 1)
        assert limit["reset_s"] > 0
        assert found["usage"] == {
            "embed": {"requests": 2, "errors": 1},
            "predict": {"requests": 1, "errors": 1},
            "gateway": {"requests": 1, "errors": 0},
        }
        other = await own(client, "b")
        assert (other["name"], other["rate_limit"]) == ("ben", None)
        assert other["usage"] == {"gateway": {"requests": 1, "errors": 0}}
        async with client.get("/v1/key") as response:
            assert response.status == 401


async def test_a_key_is_told_its_limits_in_tokens_and_by_model_and_its_tenants_where_they_leave_less(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    models = {"big": {"rate_limit": RATE, "token_limit": "100/year"}, "small": {"token_limit": "10/year"}}
    key = {"name": "a", "sha256": digest("a"), "scopes": ["generate"], "tenant": "lab", "models": models}
    tenant = {"token_limit": "70/year", "models": {"big": {"token_limit": "60/year"}}}
    file.write_text(json.dumps({"keys": [{**key, "token_limit": "1000/year"}], "tenants": {"lab": tenant}}))
    told = ((b"x-fovea-tokens", b"50"), (b"x-fovea-model", b"big@1"))
    async with serving(Service(respond(headers=told))) as url, gateway(generate_urls=url, keys_file=file) as client:
        async with client.post("/generate", headers={"X-API-Key": "a"}, json={"model": "big"}) as response:
            assert response.status == 200
        for _ in range(2):  # nothing is taken by asking
            found = await own(client, "a")
            assert found["rate_limit"] is None
            assert left(found["token_limit"]) == ("70/year", 70, 20)
            by_model = {
                name: {kind: left(one) for kind, one in limits.items()} for name, limits in found["models"].items()
            }
            assert by_model == {
                "big": {"rate_limit": (RATE, 5, 4), "token_limit": ("60/year", 60, 10)},
                "small": {"rate_limit": None, "token_limit": ("10/year", 10, 10)},
            }


def left(limit: Any) -> tuple[str, int, int] | None:
    return limit and (limit["rate"], limit["limit"], limit["remaining"])


async def test_a_request_that_is_answered_at_its_deadline_counts_as_an_error() -> None:
    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        await gone(receive)

    async with serving(Service(hang)) as url, gateway(embed_urls=url, keys=KEYS) as client:
        headers = {"X-API-Key": "a", "X-Request-Timeout": "0.05"}
        async with client.post("/embed", headers=headers) as response:
            assert response.status == 504
        assert (await own(client, "a"))["usage"]["embed"] == {"requests": 1, "errors": 1}


async def test_without_keys_it_has_no_name_and_the_requests_of_all_count() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, rate_limit=RATE) as client:
        async with client.post("/embed") as response:
            assert response.status == 200
        found = await own(client, "")
    assert (found["name"], found["scopes"], found["tenant"]) == (None, None, "default")
    assert found["rate_limit"]["remaining"] == 3
    assert found["usage"]["embed"] == {"requests": 1, "errors": 0}
