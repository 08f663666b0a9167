"""Real servers for real clients."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from services.core.manifest import CheckpointInfo
from services.core.store import Store
from tests.contract.predict_processes import running_predict
from tests.contract.processes import Process, start_process
from tests.contract.served_system import System
from tests.embed.tiny import write_tiny_checkpoint

MODEL = "tiny"


@pytest.fixture(autouse=True)
def sockets_of_clients() -> Iterator[None]:
    """Clients that keep connections alive leave them to the garbage collector: by the end of the test, none later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.fixture(scope="session")
def predict_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """`python -m services.predict` with tiny students, and the gateway before it."""
    with running_predict(tmp_path_factory.mktemp("predict")) as system:
        yield system


@pytest.fixture(scope="session")
def embed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """`python -m services.embed` on a free port, over a store that holds a tiny checkpoint."""
    folder = tmp_path_factory.mktemp("embed-server")
    environment = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
        "FOVEA_EMBED_MODEL": MODEL,
        "FOVEA_EMBED_DEVICE": "cpu",
        "FOVEA_EMBED_PORT": "0",
    }
    checkpoint = write_tiny_checkpoint(folder / "checkpoint")
    Store.open(environment["FOVEA_STORE_URL"]).publish(MODEL, checkpoint, CheckpointInfo(kind="focallens-clip"))
    server = start_process("services.embed", folder / "log", environment)
    try:
        server.wait_until_ready()
        yield server
        assert server.stop() == 0, server.log.read_text()
    finally:
        server.process.kill()
