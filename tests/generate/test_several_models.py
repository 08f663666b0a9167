"""Several language models in one generate service: a request names one, streams of both run at once."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.app import create_generate
from services.generate.settings import GenerateSettings
from services.nn.devices import DeviceOptions, parameter_bytes
from tests.embed.tiny import wait_until_ready
from tests.generate.tiny_models import save_tiny

MODELS = {"vicuna": "llama", "tulu": "qwen2"}
ASKED = {"prompt": "The keeper of the", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two models of different families."""
    folder = tmp_path_factory.mktemp("models")
    for seed, (name, family) in enumerate(MODELS.items()):
        checkpoint = save_tiny(folder / name, family, seed=seed)
        Store.open((folder / "store").as_uri()).publish(name, checkpoint, CheckpointInfo(kind="causal-lm"))
    return folder


def serving(folder: Path, models: tuple[str, ...], **settings: Any) -> TestClient:
    served = GenerateSettings(
        store_url=(folder / "store").as_uri(),
        checkpoint_cache_dir=folder / "copies",
        models=models,
        device="cpu",
        num_threads=1,
        **settings,
    )
    return TestClient(create_generate(served), raise_server_exceptions=False, base_url="http://localhost")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with serving(folder, tuple(MODELS)) as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, str]:
    """The answer of each model in a service of its own."""
    answers = {}
    for name in MODELS:
        with serving(folder, (name,)) as client:
            wait_until_ready(lambda client=client: client.get("/readyz").status_code == 200)  # type: ignore[misc]
            answers[name] = complete(client, model=name)
    assert answers["vicuna"] != answers["tulu"]
    return answers


def complete(client: TestClient, **fields: Any) -> str:
    response = client.post("/v1/completions", json={**ASKED, **fields})
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def stream(client: TestClient, model: str) -> str:
    response = client.post("/v1/completions", json={**ASKED, "model": model, "stream": True})
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


@pytest.mark.slow
def test_streams_of_two_models_run_at_once_and_each_gets_its_own_answer(
    client: TestClient, alone: dict[str, str]
) -> None:
    asked = [list(MODELS)[place % 2] for place in range(12)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda name: stream(client, name), asked))
    assert answers == [alone[name] for name in asked]


@pytest.mark.slow
def test_a_request_without_a_model_is_answered_by_the_first(client: TestClient, alone: dict[str, str]) -> None:
    assert complete(client) == alone["vicuna"]
    assert complete(client, model="tulu@latest") == alone["tulu"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/generate", "/rerank", "/v1/chat/completions", "/tokenize"])
def test_every_route_takes_the_name_of_a_model(client: TestClient, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/generate": {"query": "Who?", "documents": ["He."], "max_tokens": 2},
        "/rerank": {"query": "Who?", "documents": ["He.", "She."]},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2},
        "/tokenize": {"prompt": "Who?"},
    }
    answered = client.post(path, json={**bodies[path], "model": "tulu"})
    assert answered.status_code == 200, answered.text
    assert answered.headers["x-fovea-model"].startswith("tulu@")
    refused = client.post(path, json={**bodies[path], "model": "llama"})
    assert refused.status_code == 404
    assert "this service serves 'vicuna', 'tulu'" in refused.text


@pytest.mark.slow
def test_the_cache_of_each_model_is_measured_apart(client: TestClient) -> None:
    metrics = client.get("/metrics").text
    for name in MODELS:
        assert f'fovea_kv_cache_usage_ratio{{name="{name}"}} 0.0' in metrics


@pytest.mark.slow
def test_where_only_one_has_room_they_take_turns(folder: Path, alone: dict[str, str]) -> None:
    device = DeviceOptions("cpu", "float32")
    memory = max(parameter_bytes(folder / name, device) for name in MODELS)
    with serving(folder, tuple(MODELS), memory_bytes=memory) as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        for name in ("vicuna", "tulu", "vicuna"):
            assert complete(client, model=name) == alone[name]
            loaded = [one["id"] for one in client.get("/v1/models").json()["data"] if one["loaded"]]
            assert loaded == [name]
