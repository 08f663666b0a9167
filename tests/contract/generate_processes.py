"""A generate process over a store with a checkpoint, and the gateway before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.contract.processes import Process, start_process
from tests.generate.served_tiny import MODEL, publish_tiny


@dataclass(frozen=True)
class GenerateSystem:
    """The service itself and the gateway that clients speak to."""

    service: Process
    gateway: Process

    def metric(self, name: str) -> float:
        """A metric of the service; 0 for one that nothing was counted under."""
        lines = requests.get(f"{self.service.url}/metrics", timeout=30).text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextmanager
def running_system(folder: Path, **settings: str) -> Iterator[GenerateSystem]:
    """Both processes, ready; `settings` are environment variables. Checks that both end well.

    They serve the tiny checkpoint, unless the settings name another store.
    """
    environment = {
        "FOVEA_STORE_URL": settings.get("FOVEA_STORE_URL") or publish_tiny(folder),
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
