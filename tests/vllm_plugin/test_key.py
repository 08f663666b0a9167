"""A server of vLLM with a key, which nobody gets past who does not have it."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from tests.vllm_plugin.engine import Server, served
from tests.vllm_plugin.services_over import TINY, generate_service, publish_tiny, question, wait_for

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("key")


@pytest.fixture(scope="module")
def vllm(folder: Path) -> Iterator[Server]:
    with served(publish_tiny(folder), folder / "vllm.log", "--api-key", KEY) as server:
        yield server


def test_without_the_key_every_route_but_health_and_metrics_answers_401(vllm: Server) -> None:
    with httpx2.Client(base_url=vllm.url, timeout=300) as client:
        described = client.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"}).json()["paths"]
        routes = {(method, path) for path, methods in described.items() for method in methods}
        assert {("post", "/fovea/attention"), ("post", "/invocations"), ("post", "/v1/completions")} <= routes
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
            asked = {
                (method, path): client.request(method.upper(), path, headers=headers).status_code
                for method, path in routes
            }
            open_routes = {route for route, status in asked.items() if status != 401}
            assert open_routes <= {("get", "/health"), ("get", "/metrics")}
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def test_generate_with_the_key_answers_and_with_another_says_why_not(vllm: Server, folder: Path) -> None:
    address = {"engine": "vllm", "vllm_url": vllm.url}
    with generate_service(folder, TINY, **address, vllm_key=SecretStr(KEY)) as client:
        wait_for(client)
        assert client.post("/generate", json=question(1)).status_code == 200
    with generate_service(folder, TINY, **address, vllm_key=SecretStr("another")) as client:
        wait_for(client, "FOVEA_GENERATE_VLLM_KEY", status=503)
