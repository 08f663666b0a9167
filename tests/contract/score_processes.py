"""A score process over a store with a tiny checkpoint, and the gateway before it."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.contract.served_system import System, running_behind_gateway
from tests.score.served_tiny import MODEL, publish_tiny


def running_score(folder: Path, **settings: str) -> AbstractContextManager[System]:
    """Both processes, ready; `settings` are environment variables."""
    own = {
        "FOVEA_STORE_URL": settings.get("FOVEA_STORE_URL") or publish_tiny(folder),
        "FOVEA_SCORE_MODELS": MODEL,
        "FOVEA_SCORE_DEVICE": "cpu",
        "FOVEA_SCORE_DTYPE": "float32",
        "FOVEA_SCORE_NUM_THREADS": "1",
    }
    return running_behind_gateway("score", folder, {**own, **settings})
