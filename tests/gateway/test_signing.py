"""Everything that the gateway asks of a service is signed, and a service that refuses the signature is told."""

import json
import re
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from gateway.access import digest
from gateway.settings import GatewaySettings, KeyRecord
from services.core.errors import FoveaError
from services.core.http import signatures
from services.core.http.signatures import SigningSecrets
from tests.gateway.routing.pools import named, pool, write_pools
from tests.gateway.served_service import EchoSettings, create_echo
from tests.gateway.servers import Service, gateway, respond, serving, until
from tests.kept_port import kept_port

SECRET, NEXT = "a" * 64, "b" * 64
KEY = KeyRecord(name="w\u00ebb site ", sha256=digest("KEY"), scopes=frozenset({"admin"}), tenant="north")
VERSIONS: dict[str, Any] = {"object": "list", "followed": "latest", "data": []}


class Verifying:
    """A service that holds each request, probes among them, to its signature."""

    def __init__(self, inner: Service, secrets: Path) -> None:
        checked = SigningSecrets.of(GatewaySettings(signing_secret_file=secrets))
        assert checked is not None
        self.inner, self.secrets = inner, checked
        self.asked: set[str] = set()
        self.refused: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            target = f"{scope['method']} {scope['raw_path'].decode()}?{scope['query_string'].decode()}".rstrip("?")
            self.asked.add(target)
            try:
                self.secrets.check(scope)
            except FoveaError as refusal:
                self.refused.append((target, refusal.message))
        await self.inner(scope, receive, send)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "signing.secret"
    path.write_text(SECRET)
    return path


def write(path: Path, content: str) -> None:
    path.write_text(content)


async def ask(client: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
    headers = {"Authorization": "Bearer KEY", **options.pop("headers", {})}
    async with client.request(method, path, headers=headers, **options) as response:
        await response.read()
        return response.status


async def test_everything_that_the_gateway_asks_is_signed(secrets: Path, tmp_path: Path) -> None:
    lists = {
        "/v1/models": {"object": "list", "data": [{"id": "eyes"}]},
        "/v1/models/eyes/versions": VERSIONS,
        "/tasks": {"data": [{"model": "eyes"}]},
        "/openapi.json": {"paths": {}},
    }
    own, canary, apart, pooled, drafts, review = (
        Verifying(named(name, lists), secrets) for name in ("own", "canary", "apart", "pooled", "drafts", "review")
    )
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(one)) for one in (own, canary, apart, pooled, drafts, review)]
        pools = write_pools(
            tmp_path / "pools.json", pool("pooled", "generate", urls[3]), pool("drafts", "predict", urls[4])
        )
        client = await stack.enter_async_context(
            gateway(
                embed_urls=urls[0],
                canary_urls={"embed": [urls[1]]},
                collections_urls=urls[2],
                score_urls=urls[0],
                predict_urls=urls[0],
                review_url=urls[5],
                pools=pools,
                keys=(KEY,),
                signing_secret_file=secrets,
                probe_interval_s=0.01,
            )
        )
        requests: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "/embed?condition=a%20b&x=%C3%BC", {"json": {}}),
            ("POST", "/v1/embeddings?", {"data": BytesIO(b"x" * 3_000_000)}),
            ("POST", "/embed", {"json": {}, "headers": {"X-Fovea-Canary": "true"}}),
            ("PUT", "/v1/collections/b%C3%BCcher", {}),
            ("DELETE", "/collections/b/images/a%2Fb%20c", {}),
            ("POST", "/collections/b/search", {"json": {}}),
            ("POST", "/generate", {"json": {"model": "pooled"}}),
            ("POST", "/predict", {"json": {"model": "drafts"}}),
            ("POST", "/score", {"data": b"x"}),
            ("GET", "/review/turn?reviewer=me", {}),
            ("GET", "/v1/models", {}),
            ("GET", "/v1/models/eyes/versions", {}),
            ("GET", "/tasks", {}),
            ("GET", "/openapi.json", {}),
        ]
        for method, path, options in requests:
            assert await ask(client, method, path, **options) == 200, path
    services = (own, canary, apart, pooled, drafts, review)
    assert [one.refused for one in services] == [[]] * 6
    assert all("GET /readyz" in one.asked for one in services)
    assert {"POST /embed?condition=a%20b&x=%C3%BC", "GET /v1/models/eyes/versions", "GET /openapi.json"} <= own.asked
    assert {"PUT /v1/collections/b%C3%BCcher", "DELETE /collections/b/images/a%2Fb%20c"} <= apart.asked
    assert ("POST /embed" in canary.asked, "GET /tasks" in drafts.asked) == (True, True)
    assert ("POST /generate" in pooled.asked, "GET /review/turn?reviewer=me" in review.asked) == (True, True)


async def test_streams_and_retries_at_another_address_are_signed(secrets: Path) -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": number < 2})

    draining = Verifying(Service(respond(status=503, headers=((b"retry-after", b"1"),))), secrets)
    streaming = Verifying(Service(stream), secrets)
    with kept_port() as nobody:
        async with serving(draining) as first, serving(streaming) as second:
            urls = f"{first},{second},http://127.0.0.1:{nobody}"
            async with gateway(generate_urls=urls, signing_secret_file=secrets) as client:
                for _ in range(20):
                    async with client.post("/generate", json={"stream": True}) as response:
                        if response.status == 200:
                            assert (await response.read()).count(b"data: ") == 3
    assert (draining.refused, streaming.refused) == ([], [])
    assert ("POST /generate" in draining.asked, "POST /generate" in streaming.asked) == (True, True)


async def test_a_clients_own_headers_are_not_signed_for_it(secrets: Path) -> None:
    service = Service()
    forged = {"X-Fovea-Tenant": "south", "X-Fovea-Signature": "t=1,v1=0", "Forwarded": "for=127.0.0.1"}
    async with serving(service) as url, gateway(embed_urls=url, keys=(KEY,), signing_secret_file=secrets) as client:
        assert await ask(client, "POST", "/embed", headers=forged) == 200
    assert service.header("x-fovea-tenant") == "north"
    assert re.fullmatch(r"t=\d{10},v1=[0-9a-f]{64}", service.header("x-fovea-signature") or "")
    assert service.header("forwarded") is None


async def test_without_a_secret_nothing_is_signed_and_a_clients_signature_is_not_passed_on() -> None:
    service = Service()
    async with serving(service) as url, gateway(embed_urls=url) as client:
        assert await ask(client, "POST", "/embed", headers={"X-Fovea-Signature": "t=1,v1=0"}) == 200
    assert service.header("x-fovea-signature") is None


@pytest.mark.parametrize("of_gateway", [None, NEXT])
async def test_a_service_that_refuses_the_gateways_signature_is_unavailable_and_no_clients_key_is_blamed(
    secrets: Path, tmp_path: Path, of_gateway: str | None
) -> None:
    own: dict[str, Any] = {}
    if of_gateway is not None:
        own["signing_secret_file"] = tmp_path / "other.secret"
        own["signing_secret_file"].write_text(of_gateway)
    echo = create_echo(EchoSettings(signing_secret_file=secrets, log_level="error"))
    with capture_logs() as logs:
        async with serving(echo) as url, gateway(embed_urls=url, **own) as client:
            async with client.post("/embed", data=b"{}") as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (503, "service_unavailable")
            assert "FOVEA_SIGNING_SECRET_FILE" in error["message"]
    assert {"event": "signature_refused", "address": url, "log_level": "error"} in logs


async def test_a_gateway_signs_with_the_first_secret_of_its_file_as_that_changes(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "POLL_S", 0.01)
    of_service = secrets.with_name("service.secret")
    of_service.write_text(NEXT)
    echo = create_echo(EchoSettings(signing_secret_file=of_service, log_level="error"))
    async with serving(echo) as url, gateway(embed_urls=url, signing_secret_file=secrets) as client:
        assert await ask(client, "POST", "/embed", data=b"{}") == 503
        write(secrets, f"{NEXT}\n{SECRET}\n")

        async def is_answered() -> bool:
            return await ask(client, "POST", "/embed", data=b"{}") == 200

        await until(is_answered)
        write(secrets, "no secret")

        async def is_reported() -> bool:
            async with client.get("/readyz") as response:
                checks = json.loads(await response.text())["checks"]
                return response.status == 200 and not checks["signing secrets file"]["ok"]

        await until(is_reported)
        assert await ask(client, "POST", "/embed", data=b"{}") == 200
