"""The generate service in this process, over a store with a tiny calibrated checkpoint."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.app import create_generate
from services.generate.engine import GenerateEngine
from services.generate.generation.input_processor import Item
from services.generate.generation.ranking import ItemResult
from services.generate.model.profile import CalibrationProfile, write_profile
from services.generate.settings import GenerateSettings
from tests.embed.tiny import wait_until_ready
from tests.generate.tiny_models import save_tiny

MODEL = "tiny-llama"
CONTEXT = 4096  # tokens, of the tiny model
PROFILE = CalibrationProfile(enabled=True, bias="tree", temperature=1e-3, layers=(2, 3), rel_layers=(0, 1, 2, 3))


def publish_tiny(folder: Path, profile: CalibrationProfile | None = PROFILE) -> str:
    """A store below `folder` that holds the checkpoint as `MODEL`; returns its URL."""
    store_url = (folder / "store").as_uri()
    checkpoint = save_tiny(folder / "checkpoint")
    if profile is not None:
        write_profile(profile, checkpoint)
    Store.open(store_url).publish(MODEL, checkpoint, CheckpointInfo(kind="causal-lm"))
    return store_url


@contextmanager
def served_tiny(folder: Path, profile: CalibrationProfile | None = PROFILE, **settings: Any) -> Iterator[TestClient]:
    """A client of the service, once that answers."""
    served = GenerateSettings(
        store_url=publish_tiny(folder, profile),
        checkpoint_cache_dir=folder / "checkpoints",
        models=(MODEL,),
        device="cpu",
        num_threads=1,
        **settings,
    )
    with TestClient(create_generate(served), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client


STEP_S = 0.1


def broken_off(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """A stream's response whose deadline came after its first event; of an answer of 100 tokens, long before its last.

    However slow the machine is: what misses its deadline before anything came is asked again with twice the time.
    """
    step = GenerateEngine.step

    def slow_step(engine: GenerateEngine) -> list[tuple[Item, ItemResult, bool]]:
        time.sleep(STEP_S)  # so that no machine is fast enough to end in time
        return step(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerateEngine, "step", slow_step)
        for doubling in range(7):
            headers = {"x-request-timeout": str(STEP_S * 2**doubling)}
            response = client.post(path, json={**body, "stream": True}, headers=headers)
            if response.status_code == 504:  # nothing had come before the deadline: it has its own status
                assert response.json()["error"]["type"] == "timeout_error"
            elif response.text.count("data: ") > 1:  # else the client was still to take the first event
                return response
    raise AssertionError("nothing ever came")
