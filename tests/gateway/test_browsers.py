"""Requests that web pages of other sites make a browser send to a gateway, and to the services beside it."""

from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from gateway.access import digest
from gateway.settings import GatewaySettings, KeyRecord
from services.core.settings import ProcessSettings
from tests.core.served_app import create
from tests.gateway.servers import Service, gateway, metric, serving

EVIL = "https://evil.example"
KEYS = (KeyRecord(name="a", sha256=digest("a"), scopes=frozenset({"embed"})),)
FORM = "multipart/form-data; boundary=x"


async def post(client: aiohttp.ClientSession, path: str = "/embed", **headers: str) -> tuple[int, dict[str, Any]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post(path, data=b"--x--", headers={"Content-Type": FORM, **named}) as response:
        return response.status, await response.json(content_type=None)


def origin_of(client: aiohttp.ClientSession) -> str:
    return str(client._base_url).rstrip("/")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://127.0.0.1:3000"},
        {"Sec_Fetch_Site": "cross-site", "Origin": EVIL},
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_form_of_another_site_reaches_no_service(headers: dict[str, str], host: str) -> None:
    service = Service()
    async with serving(service) as url, gateway(embed_urls=url, host=host) as client:
        status, body = await post(client, **headers)
        assert (status, body["error"]["code"]) == (403, "foreign_origin")
        assert "FOVEA_GATEWAY_ALLOWED_ORIGINS" in body["error"]["message"]
        assert await metric(client, "fovea_rejected_total", reason="foreign_origin") == 1
    assert not service.requests


@pytest.mark.parametrize("site", ["same-origin", "none", None])
async def test_a_page_of_the_gateways_own_and_what_is_no_browser_are_served(site: str | None) -> None:
    service = Service()
    async with serving(service) as url, gateway(embed_urls=url) as client:
        headers = {"Origin": origin_of(client), **({"Sec_Fetch_Site": site} if site else {})}
        assert (await post(client, **headers))[0] == 200
        assert (await post(client))[0] == 200
        assert service.header("origin") is None
        assert service.header("sec-fetch-site") is None


async def test_only_probes_and_documentation_can_be_linked_to() -> None:
    async with gateway() as client:
        for path, status in (("/docs", 200), ("/openapi.json", 200), ("/readyz", 200), ("/v1/models", 403)):
            async with client.get(path, headers={"Sec-Fetch-Site": "cross-site"}) as response:
                assert response.status == status


async def test_where_keys_are_needed_the_origin_does_not_matter() -> None:
    async with serving(Service()) as url, gateway(embed_urls=url, keys=KEYS) as client:
        assert (await post(client, Origin=EVIL, X_API_Key="a"))[0] == 200
        assert (await post(client, Origin=EVIL))[0] == 401


@pytest.mark.parametrize("keys", [(), KEYS])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil", "x"])
async def test_on_loopback_a_foreign_host_is_refused(host: str, keys: tuple[KeyRecord, ...]) -> None:
    service = Service()
    async with serving(service) as url, gateway(embed_urls=url, keys=keys) as client:
        status, body = await post(client, Host=host, X_API_Key="a")
        assert (status, body["error"]["code"]) == (403, "foreign_host")
        assert "FOVEA_GATEWAY_ALLOWED_HOSTS" in body["error"]["message"]
    assert not service.requests


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "fovea.localhost", "127.0.0.1:1", "[::1]:8080", "10.0.0.7"]
)
async def test_on_loopback_this_machine_and_addresses_are_served(host: str) -> None:
    async with serving(Service()) as url, gateway(embed_urls=url) as client:
        assert (await post(client, Host=host))[0] == 200


async def test_elsewhere_any_host_is_served_unless_a_list_is_given() -> None:
    async with serving(Service()) as url:
        async with gateway(embed_urls=url, host="0.0.0.0") as client:
            assert (await post(client, Host="gateway.fovea.svc:8080"))[0] == 200
        async with gateway(embed_urls=url, host="0.0.0.0", allowed_hosts="api.example, .example.org") as client:
            statuses = [
                (await post(client, Host=f"{name}:80"))[0] for name in ("api.example", "a.example.org", "b.org")
            ]
            assert statuses == [200, 200, 403]
        async with gateway(embed_urls=url, allowed_hosts="*") as client:
            assert (await post(client, Host="evil.example"))[0] == 200


async def test_a_service_that_is_asked_directly_refuses_the_same() -> None:
    async with serving(create(ProcessSettings(port=0))) as url, aiohttp.ClientSession(url) as client:
        assert (await post(client, "/bytes"))[0] == 200
        assert (await post(client, "/bytes", Origin=EVIL))[0] == 403
        assert (await post(client, "/bytes", Host="evil.example"))[0] == 403


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize("keys", [(), KEYS])
async def test_pages_of_allowed_origins_may_ask_and_read_answers_and_errors(keys: tuple[KeyRecord, ...]) -> None:
    origin = {"Origin": "https://app.example"}
    async with (
        serving(Service()) as url,
        gateway(embed_urls=url, keys=keys, allowed_origins=origin["Origin"]) as client,
    ):
        async with client.options("/embed", headers={**origin, **PREFLIGHT}) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == origin["Origin"]
            assert "authorization" in response.headers["Access-Control-Allow-Headers"]
        for path, status in (("/embed", 200), ("/nowhere", 404)):
            async with client.post(
                path, headers={**origin, "Sec-Fetch-Site": "cross-site", "X-API-Key": "a"}
            ) as response:
                assert response.status == status
                assert response.headers["Access-Control-Allow-Origin"] == origin["Origin"]
                exposed = response.headers["Access-Control-Expose-Headers"].split(", ")
                limits = {f"x-ratelimit-{name}-tokens" for name in ("limit", "remaining", "reset")}
                assert {"X-Request-ID", "Retry-After", "x-should-retry", "RateLimit-Remaining"} | limits <= set(exposed)
        async with client.options("/embed", headers={"Origin": EVIL, **PREFLIGHT}) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers
            assert "error" in await response.json()


@pytest.mark.parametrize("keys", [(), KEYS])
async def test_without_allowed_origins_a_preflight_is_told_the_setting_and_is_no_failed_key(
    keys: tuple[KeyRecord, ...],
) -> None:
    async with gateway(keys=keys, failed_key_limit="1/minute") as client:
        for _ in range(3):
            async with client.options("/embed", headers={"Origin": EVIL, **PREFLIGHT}) as response:
                assert response.status == 403
                assert "Access-Control-Allow-Origin" not in response.headers
                error = (await response.json())["error"]
                assert (error["code"], "FOVEA_GATEWAY_ALLOWED_ORIGINS" in error["message"]) == ("foreign_origin", True)
        assert (await post(client))[0] == (401 if keys else 503)


async def test_browsers_are_told_not_to_guess_what_a_body_is() -> None:
    async with serving(create(ProcessSettings(port=0))) as url, gateway(embed_urls=url) as client:
        for path in ("/embed", "/readyz"):
            async with client.get(path) as response:
                assert response.headers.getall("X-Content-Type-Options") == ["nosniff"]


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://app.example/path"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin"):
        GatewaySettings(allowed_origins=origin)
