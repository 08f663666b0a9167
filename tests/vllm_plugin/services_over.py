"""The generate service in this process over one store, with its own engine or over a server of vLLM."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.app import create_generate
from services.generate.engine import GenerateEngine
from services.generate.generation.options import EngineOptions
from services.generate.settings import GenerateSettings
from services.nn.devices import DeviceOptions
from services.nn.reference_outputs import REFERENCE_FILE, make_reference
from tests.embed.tiny import wait_until_ready

CPU = DeviceOptions(device="cpu", dtype="float32", num_threads=1)


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
