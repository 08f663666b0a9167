"""The score service in this process, over a store with a tiny checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.score.app import create_score
from services.score.model.checkpoint import FSC_CLIP_KIND
from services.score.settings import ScoreSettings
from tests.embed.tiny import wait_until_ready
from tests.score.tiny import write_tiny_checkpoint

MODEL = "tiny"
LOCAL_WEIGHT = 0.25


def publish(store_url: str, checkpoint: Path, *, kind: str = FSC_CLIP_KIND) -> str:
    """A checkpoint as the version `latest` of the served model; returns its id."""
    return Store.open(store_url).publish(MODEL, checkpoint, CheckpointInfo(kind=kind)).id


def publish_tiny(folder: Path) -> str:
    """A store below `folder` that holds a tiny checkpoint; returns its URL."""
    store_url = (folder / "store").as_uri()
    publish(store_url, write_tiny_checkpoint(folder / "checkpoint", local_weight=LOCAL_WEIGHT))
    return store_url


@contextmanager
def served_tiny(store_url: str, folder: Path, *, probe: str = "/readyz", **settings: Any) -> Iterator[TestClient]:
    """A client of the service, once `probe` answers 200."""
    given = {"models": (MODEL,), "device": "cpu", "num_threads": 1, **settings}
    served = ScoreSettings(store_url=store_url, checkpoint_cache_dir=folder / "checkpoints", **given)
    with TestClient(create_score(served), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get(probe).status_code == 200)
        yield client
