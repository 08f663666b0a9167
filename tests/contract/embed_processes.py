"""Fixtures of embed processes: a store with a tiny checkpoint, and their folders."""

from pathlib import Path

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from tests.embed.tiny import write_tiny_checkpoint

MODEL = "tiny"
INFO = CheckpointInfo(kind="focallens-clip", source={"matryoshka_dimensions": "12,16"})


def tiny_environment(folder: Path, **settings: str) -> dict[str, str]:
    """Publish the checkpoint below `folder`; the environment that serves it from there, `settings` included."""
    store_url = (folder / "store").as_uri()
    Store.open(store_url).publish(MODEL, write_tiny_checkpoint(folder / "checkpoint"), INFO)
    return {
        "FOVEA_STORE_URL": store_url,
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
        "FOVEA_EMBED_MODELS": MODEL,
        **settings,
    }
