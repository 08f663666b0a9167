"""The generate service in this process over one store, with its own engine or over a server of vLLM; its requests."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.app import create_generate
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.model.profile import CalibrationProfile, write_profile
from services.generate.settings import GenerateSettings
from services.nn.devices import DeviceOptions
from services.nn.reference_outputs import REFERENCE_FILE, make_reference
from tests.embed.tiny import wait_until_ready
from tests.vllm_plugin.engine import Server
from tests.vllm_plugin.own_answers import save

CPU = DeviceOptions(device="cpu", dtype="float32", num_threads=1)
TINY = "tiny-llama"
PROFILE = CalibrationProfile(enabled=True, bias="exact", temperature=0.02, layers=(2, 3), rel_layers=(0, 1, 2, 3))
TEXT = "the keeper of lighthouse was called Ada harbour island who traded until 1931 built by people"
TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|{{ message['role'] }}|>
{{ message['content'] }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} \
{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
TOLERANCE = 1e-4


def publish(folder: Path, checkpoint: Path, name: str) -> Path:
    """Publish a checkpoint with its reference outputs into a store below `folder`; returns the folder."""
    if not (checkpoint / REFERENCE_FILE).exists():
        engine = GenerateEngine.load(checkpoint, EngineOptions(device=CPU))
        (checkpoint / REFERENCE_FILE).write_bytes(make_reference(engine))
    Store.open((folder / "store").as_uri()).publish(name, checkpoint, CheckpointInfo(kind="causal-lm"))
    return folder


@contextmanager
def generate_service(folder: Path, name: str, **settings: Any) -> Iterator[TestClient]:
    """A client of the service, ready or not."""
    asked = GenerateSettings(
        store_url=(folder / "store").as_uri(),
        checkpoint_cache_dir=folder / "checkpoints",
        models=(name,),
        device="cpu",
        dtype="float32",
        num_threads=1,
        store_poll_s=1,
        **settings,
    )
    with TestClient(create_generate(asked), raise_server_exceptions=False, base_url="http://localhost") as client:
        yield client


@contextmanager
def own_and_vllm(folder: Path, name: str, url: str) -> Iterator[tuple[TestClient, TestClient]]:
    """Clients of both services, once they are ready."""
    with generate_service(folder, name) as own:
        wait_for(own)  # alone, because transformers cannot be imported by two threads at a time
        with generate_service(folder, name, engine="vllm", vllm_url=url) as over_vllm:
            wait_for(over_vllm)
            yield own, over_vllm


def wait_for(client: TestClient, text: str = "", status: int = 200) -> None:
    """Wait until the service's readiness has this status, and this in its text."""

    def is_told() -> bool:
        response = client.get("/readyz")
        return response.status_code == status and text in response.text

    wait_until_ready(is_told)


def publish_tiny(folder: Path) -> Path:
    """Publish a tiny model with `PROFILE` and `TEMPLATE` into a store below `folder`; returns the checkpoint."""
    checkpoint = save(folder, "llama").rename(folder / TINY)
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    write_profile(PROFILE, checkpoint)
    publish(folder, checkpoint, TINY)
    return checkpoint


def text_of(draw: random.Random, longest: int) -> str:
    return " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, longest)))


def question(seed: int, **fields: Any) -> dict[str, Any]:
    """A question over documents of unequal lengths, some with titles; calibrated in one of several ways."""
    draw = random.Random(seed)
    documents: list[Any] = [text_of(draw, 12) for _ in range(draw.randint(2, 5))]
    documents[0] = {"title": text_of(draw, 3), "text": documents[0], "id": "first"}
    calibration = draw.choice(({}, {"bias": "single"}, {"bias": "query"}, {"dummy": "whole"}, {"layers": [1, 2, 3]}))
    return {
        "query": text_of(draw, 6),
        "documents": documents,
        "calibration": calibration,
        "max_tokens": 12,
        **fields,
    }


@dataclass(frozen=True)
class Served:
    """A server of vLLM, and the service over the own engine and over vLLM."""

    vllm: Server
    own: TestClient
    over_vllm: TestClient
    folder: Path


def answered(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if name not in ("id", "created")}


def chat(seed: int, **fields: Any) -> dict[str, Any]:
    asked = question(seed)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked["query"]}]
    return {
        "messages": messages,
        "documents": asked["documents"],
        "calibration": asked["calibration"],
        "max_tokens": 10,
        **fields,
    }


def streamed(client: TestClient, body: dict[str, Any]) -> list[Any]:
    response = client.post("/v1/chat/completions", json=body | {"stream": True})
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [{**json.loads(one), "id": None, "created": None} for one in events]


def assert_alike(found: Any, expected: Any, *, tolerance: float = TOLERANCE) -> None:
    """Equal but for the last digits of numbers, and for the tokens that a cache saved."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if name != "cached_tokens":
                assert_alike(found[name], value, tolerance=tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other, tolerance=tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerance, rel=1e-4)
    else:
        assert found == expected


def both(case: Served, path: str, bodies: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Answers over vLLM, many at a time, and those of the own engine."""
    with ThreadPoolExecutor(8) as threads:
        over_vllm = list(threads.map(lambda body: answered(case.over_vllm, path, body), bodies))
    return [(found, answered(case.own, path, body)) for found, body in zip(over_vllm, bodies, strict=True)]
