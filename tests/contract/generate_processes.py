"""A generate process over a store with a tiny checkpoint, and the gateway before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.contract.processes import Process, start_process
from tests.generate.served_tiny import MODEL, publish_tiny


@dataclass(frozen=True)
class GenerateSystem:
    """The service itself and the gateway that clients speak to."""

    service: Process
    gateway: Process


@contextmanager
def running_system(folder: Path, **settings: str) -> Iterator[GenerateSystem]:
    """Both processes, ready; `settings` are environment variables. Checks that both end well."""
    environment = {
        "FOVEA_STORE_URL": publish_tiny(folder),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_GENERATE_MODEL": MODEL,
        "FOVEA_GENERATE_DEVICE": "cpu",
        "FOVEA_GENERATE_DTYPE": "float32",
        "FOVEA_GENERATE_NUM_THREADS": "1",
        "FOVEA_GENERATE_PORT": "0",
        "FOVEA_GATEWAY_PORT": "0",
        **settings,
    }
    service = start_process("services.generate", folder / "service.log", environment)
    gateway: Process | None = None
    try:
        service.wait_until_ready()
        gateway = start_process(
            "gateway", folder / "gateway.log", {**environment, "FOVEA_GATEWAY_GENERATE_URLS": service.url}
        )
        gateway.wait_until_ready()
        yield GenerateSystem(service, gateway)
        assert gateway.stop() == 0, gateway.log.read_text()
        assert service.stop() == 0, service.log.read_text()
    finally:
        for process in (gateway, service):
            if process is not None:
                process.process.kill()
