"""A predict process over a store with tiny students, and the gateway before it."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.contract.served_system import System, running_behind_gateway
from tests.predict.served_tiny import MODELS, publish_tiny


def running_predict(folder: Path, **settings: str) -> AbstractContextManager[System]:
    """Both processes, ready; `settings` are environment variables."""
    own = {
        "FOVEA_STORE_URL": settings.get("FOVEA_STORE_URL") or publish_tiny(folder),
        "FOVEA_PREDICT_MODELS": MODELS,
        "FOVEA_PREDICT_DEVICE": "cpu",
        "FOVEA_PREDICT_NUM_THREADS": "1",
    }
    return running_behind_gateway("predict", folder, {**own, **settings})
