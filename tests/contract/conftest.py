"""Real servers for real clients."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.contract.embed_processes import tiny_environment
from tests.contract.predict_processes import running_predict
from tests.contract.processes import Process, start_process
from tests.contract.served_system import System


@pytest.fixture(autouse=True, scope="module")
def objects_of_other_modules() -> None:
    """A collection after each test looks at what this module has made, not at all libraries again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def sockets_of_clients(objects_of_other_modules: None) -> Iterator[None]:
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
    environment = tiny_environment(folder, FOVEA_EMBED_DEVICE="cpu", FOVEA_EMBED_PORT="0")
    server = start_process("services.embed", folder / "log", environment)
    try:
        server.wait_until_ready()
        yield server
        assert server.stop() == 0, server.log.read_text()
    finally:
        server.process.kill()
