"""A generate process over a store with a checkpoint, and the gateway before it."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.contract.served_system import System, running_behind_gateway
from tests.generate.served_tiny import MODEL, publish_tiny


def running_system(folder: Path, **settings: str) -> AbstractContextManager[System]:
    """Both processes, ready; `settings` are environment variables.

    They serve the tiny checkpoint, unless the settings name another store.
    """
    own = {
        "FOVEA_STORE_URL": settings.get("FOVEA_STORE_URL") or publish_tiny(folder),
        "FOVEA_GENERATE_MODELS": MODEL,
        "FOVEA_GENERATE_DEVICE": "cpu",
        "FOVEA_GENERATE_DTYPE": "float32",
        "FOVEA_GENERATE_NUM_THREADS": "1",
        "FOVEA_GENERATE_MAX_WAIT_S": "600",
        "FOVEA_BURST_S": "60",  # a slow machine takes more than a second to read what hundreds of clients send
    }
    return running_behind_gateway("generate", folder, {**own, **settings})
