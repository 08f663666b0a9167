"""Access control: keys, scopes and public paths, at a real gateway."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi.routing import APIRoute
from structlog.testing import capture_logs

from gateway.access import KeyRing, digest, new_key
from gateway.app import create_gateway
from gateway.routes import OWN_SCOPES, PUBLIC_PATHS, ROUTES
from gateway.settings import GatewaySettings, KeyRecord
from services.core.settings import SettingsError, read_settings
from tests.gateway.servers import Service, gateway, metric, respond, serving, until

KEY = "fovea-a-key-for-tests"


def record(key: str, *scopes: str, **fields: Any) -> dict[str, Any]:
    return {"name": key, "sha256": digest(key), "scopes": list(scopes), **fields}


def write_keys(path: Path, *records: dict[str, Any]) -> None:
    path.write_text(json.dumps({"keys": records}))


def bearer(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def status(client: aiohttp.ClientSession, path: str, headers: dict[str, str] | None = None) -> int:
    async with client.post(path, headers=headers) as response:
        return response.status


def keys(*scopes: str) -> tuple[KeyRecord, ...]:
    return (KeyRecord.model_validate(record(KEY, *scopes)),)


def every_path() -> list[str]:
    """Return all paths of the gateway's own routes and of the route table, with and without `/v1`."""
    app = create_gateway(GatewaySettings())
    own = list(app.openapi()["paths"]) + [route.path for route in app.router.routes if isinstance(route, APIRoute)]
    table = [route.path.replace("**", "x/images/y") for route in ROUTES]
    spellings = {f"/v1{path}" for path in [*own, *table]} | {path.removeprefix("/v1") for path in own} | {*own, *table}
    return sorted(path.replace("{model_id}", "x") for path in spellings)


async def test_every_path_but_the_public_ones_needs_a_key() -> None:
    paths = every_path()
    assert len(paths) > 2 * len(ROUTES)
    async with gateway(keys=keys("admin"), failed_key_limit="") as client:
        for path in [*paths, "/nothing", "/docs/x", "/metrics/", "/embed/", "/v1/v1/embed"]:
            for method in ("GET", "POST", "HEAD"):
                async with client.request(method, path) as response:
                    is_public = path in {*PUBLIC_PATHS, "/v1/openapi.json"}
                    assert (response.status == 401) != is_public, f"{method} {path} is {response.status}"


async def test_without_keys_nothing_needs_one() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url) as client:
        assert await status(client, "/embed") == 200
        async with client.get("/metrics") as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"bearer  {KEY}"},
        {"Authorization": KEY},
        {"X-API-Key": KEY},
        {"Authorization": "Basic dXNlcjpwYXNz", "X-API-Key": KEY},
    ],
)
@pytest.mark.slow
async def test_a_key_is_taken_in_each_of_its_spellings(headers: dict[str, str]) -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, keys=keys("embed")) as client:
        assert await status(client, "/embed", headers) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {digest(KEY)}"},
        {"Authorization": "Bearer ÿ"},
        {"X-API-Key": "no"},
    ],
)
async def test_no_key_or_an_unknown_one_is_401(headers: dict[str, str]) -> None:
    service = Service()
    async with serving(service) as url, gateway(embed_urls=url, keys=keys("embed", "metrics")) as client:
        async with client.post("/embed", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert response.headers["x-should-retry"] == "false"
            error = (await response.json())["error"]
            assert error["type"] == "authentication_error"
            told = (
                "The key is invalid."
                if any(headers.values())
                else "send `Authorization: Bearer KEY` or `X-API-Key: KEY`."
            )
            assert error["message"].endswith(told)
        client.headers.update(bearer())
        assert await metric(client, "fovea_rejected_total", reason="unauthenticated") == 1
    assert not service.requests


@pytest.mark.parametrize(
    ("path", "members"), [("/v1/messages", {"type", "error"}), ("/v1/rerank", {"error", "detail"})]
)
async def test_a_missing_key_is_told_in_the_form_of_the_route(path: str, members: set[str]) -> None:
    async with gateway(generate_urls="", keys=keys("generate")) as client, client.post(path) as response:
        assert response.status == 401
        assert (await response.json()).keys() == members


async def test_a_key_opens_its_scopes_and_no_others() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, score_urls=url, keys=keys("embed")) as client:
        assert await status(client, "/v1/embeddings", bearer()) == 200
        async with client.post("/score", headers=bearer()) as response:
            assert response.status == 403
            error = (await response.json())["error"]
        async with client.get("/metrics", headers=bearer()) as response:
            assert response.status == 403
        async with client.get("/v1/models", headers=bearer()) as response:
            assert response.status == 200
    assert error["type"] == "permission_error"
    assert "'score'" in error["message"]


READING = [
    ("POST", "/embed"),
    ("POST", "/v1/embeddings"),
    ("GET", "/collections"),
    ("GET", "/collections/x"),
    ("GET", "/collections/x/images/a/search"),
    ("POST", "/collections/x/search"),
    ("POST", "/v1/collections/x/search"),
]
CHANGING = [
    ("PUT", "/collections/x"),
    ("PUT", "/collections/x/search"),
    ("DELETE", "/v1/collections/x"),
    ("DELETE", "/collections/x/search"),
    ("PATCH", "/collections/x/images/a"),
    ("POST", "/collections/x/images"),
    ("POST", "/collections/x/search/"),
    ("POST", "/collections/x/images/search"),
    ("POST", "/collections/search"),
]


@pytest.mark.parametrize("scope", ["embed", "embed:read", "embed:write", "embed:admin", "admin", "score:admin"])
async def test_a_scope_opens_the_routes_up_to_its_level(scope: str) -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, keys=keys(scope)) as client:
        for requests, is_open in (
            (READING, scope != "score:admin"),
            (CHANGING, scope not in ("score:admin", "embed:read")),
        ):
            for method, path in requests:
                async with client.request(method, path, headers=bearer()) as response:
                    assert response.status == (200 if is_open else 403), f"{method} {path}"


@pytest.mark.parametrize("header", [b"queue;dur=1.5, infer;dur=8", b'cache;desc="a hit"'])
@pytest.mark.parametrize(("scope", "is_told"), [("embed", False), ("embed:admin", True), ("admin", True), (None, True)])
async def test_stages_are_told_to_administrators_and_where_no_key_is_needed(
    header: bytes, scope: str | None, *, is_told: bool
) -> None:
    service = Service(respond(headers=((b"server-timing", header),)))
    settings: dict[str, Any] = {"keys": keys(scope)} if scope else {}
    async with (
        serving(service) as url,
        gateway(embed_urls=url, **settings) as client,
        client.post("/embed", headers=bearer()) as response,
    ):
        assert response.status == 200
        assert ("Server-Timing" in response.headers) == is_told


async def test_an_admin_key_opens_everything() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, score_urls=url, keys=keys("admin")) as client:
        assert await status(client, "/embed", bearer()) == 200
        assert await status(client, "/score", bearer()) == 200
        for path in OWN_SCOPES:
            async with client.get(path, headers=bearer()) as response:
                assert response.status == 200


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # of which nothing is on the disk


@pytest.mark.parametrize(
    ("replace", "reason"),
    # the opening of a pipe would wait for a writer
    [pytest.param(os.mkfifo, "regular", id="pipe"), pytest.param(make_huge, "bytes", id="huge")],
)
async def test_what_cannot_be_read_as_the_keys_file_holds_nothing_up_and_a_key_revoked_later_is_out(
    tmp_path: Path, replace: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "keys.json"
    write_keys(path, record(KEY, "embed"))
    with capture_logs() as logs:
        async with (
            serving(Service()) as url,
            gateway(embed_urls=url, keys_file=path, keys_poll_s=0.01) as client,
        ):
            path.unlink()
            replace(path)

            async def is_reported() -> bool:
                return any(one["event"] == "keys_not_reloaded" and reason in one["reason"] for one in logs)

            await until(is_reported)
            assert await status(client, "/embed", bearer()) == 200
            async with client.get("/readyz") as response:
                report = await response.json()
            assert (response.status, report["checks"]["keys file"]["ok"]) == (200, False)
            path.unlink()
            write_keys(path)

            async def is_out() -> bool:
                return await status(client, "/embed", bearer()) == 401

            await until(is_out)


async def test_a_changed_keys_file_is_followed_and_a_broken_one_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_keys(path, record("first", "embed"))
    async with (
        serving(Service()) as url,
        gateway(embed_urls=url, keys_file=path, keys_poll_s=0.01, keys=keys("metrics")) as client,
    ):

        def is_let_in(key: str) -> Any:
            async def asked() -> bool:
                return await status(client, "/embed", bearer(key)) == 200

            return asked

        assert await is_let_in("first")()
        assert not await is_let_in("second")()
        write_keys(path, record("first", "embed"), record("second", "embed"))
        await until(is_let_in("second"))
        path.write_text("{")
        other = tmp_path / "other.json"
        write_keys(other, record("third", "embed"))
        assert await is_let_in("first")()
        other.replace(path)
        await until(is_let_in("third"))
        assert not await is_let_in("first")()
        write_keys(path)

        async def is_shut() -> bool:
            return not await is_let_in("third")()

        await until(is_shut)


def test_a_keys_file_that_could_not_be_read_is_read_as_soon_as_it_can_be(tmp_path: Path) -> None:
    """Mended without another time, size or inode, as `chmod` mends a file of the wrong mode."""
    path = tmp_path / "keys.json"

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))

    write_keys(path, record("first", "embed"))
    first = path.read_bytes()
    write_keys(path, record("other", "embed"))
    other = path.read_bytes()
    assert len(first) == len(other)
    write(first)
    keys = KeyRing(GatewaySettings(keys_file=path))
    path.write_bytes(b" " * len(first))
    with pytest.raises(ValueError, match=":1: not JSON"):
        keys.reload()
    stamp = path.stat().st_mtime_ns
    path.write_bytes(other)
    os.utime(path, ns=(stamp, stamp))
    assert keys.reload()
    assert keys.find("other") is not None
    assert keys.find("first") is None


@pytest.mark.parametrize("settings", [{"keys": keys("embed"), "failed_key_limit": "2/hour"}, {"rate_limit": "2/hour"}])
async def test_public_paths_count_against_the_limit_of_their_client_but_probes_do_not(
    settings: dict[str, Any],
) -> None:
    async with gateway(**settings) as client:

        async def asked(path: str, headers: dict[str, str]) -> int:
            async with client.get(path, headers=headers) as response:
                return response.status

        assert [await asked("/livez", {}) for _ in range(4)] == [200] * 4
        assert [await asked(path, {}) for path in ("/openapi.json", "/docs", "/openapi.json")] == [200, 200, 429]
        if "keys" in settings:
            assert await asked("/openapi.json", bearer()) == 200
        assert [await asked(path, {}) for path in ("/livez", "/readyz")] == [200, 200]


async def test_a_keys_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_keys(path)
    async with serving(Service()) as url, gateway(embed_urls=url, keys_file=path) as client:
        assert await status(client, "/embed") == 401
        assert await status(client, "/embed", bearer()) == 401


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "fovea keys create"),
        ("{", ":1: not JSON"),
        ('{"key": []}', "key: Extra inputs"),
        ('{"keys": [{"name": "a", "sha256": "fovea-plain", "scopes": []}]}', r"keys\.0\.sha256"),
        (
            json.dumps({"keys": [record("a", "embed", rate_limit="often")]}),
            r"rate_limit: 'often' is not one rate",
        ),
        (json.dumps({"keys": [record("a", "paint")]}), r"keys\.0\.scopes"),
        (
            json.dumps({"keys": [record("a", "generate", models={"big@latest": {}})]}),
            r"keys\.0\.models: 'big@latest' can't be limited: a limit is of a model's name without a version",
        ),
    ],
)
def test_a_gateway_does_not_start_open_because_its_keys_file_is_wrong(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=complaint):
        create_gateway(GatewaySettings(keys_file=path))


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("RATE_LIMIT", "5/min", "RATE_LIMIT: '5/min' is not one rate: write a number from 1 and a second, minute"),
        ("FAILED_KEY_LIMIT", "1/second; 5/minute", "FAILED_KEY_LIMIT: '1/second; 5/minute' is not one rate: "),
        ("KEYS", json.dumps([record("a", "embed", token_limit="5")]), "KEYS.0.token_limit: '5' is not one rate: "),
    ],
)
def test_a_limit_that_is_no_rate_is_told_with_its_variable_and_the_forms(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FOVEA_GATEWAY_{variable}", value)
    with pytest.raises(SettingsError) as refused:
        read_settings(GatewaySettings)
    assert str(refused.value).startswith(f"FOVEA_GATEWAY_{told}")


def test_keys_are_long_random_and_different() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert min(len(key) for key in made) >= len("fovea-") + 43
