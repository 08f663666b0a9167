"""One service and the gateway before it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.contract.processes import Process, start_process


@dataclass(frozen=True)
class System:
    """The service itself and the gateway that clients speak to."""

    service: Process
    gateway: Process

    def metric(self, name: str) -> float:
        """A metric of the service; 0 for one that nothing was counted under."""
        lines = requests.get(f"{self.service.url}/metrics", timeout=30).text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextmanager
def running_behind_gateway(name: str, folder: Path, settings: Mapping[str, str]) -> Iterator[System]:
    """Both processes, ready; `settings` are environment variables. Checks that both end well."""
    environment = {
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        f"FOVEA_{name.upper()}_PORT": "0",
        "FOVEA_GATEWAY_PORT": "0",
        **settings,
    }
    service = start_process(f"services.{name}", folder / "service.log", environment)
    gateway: Process | None = None
    try:
        service.wait_until_ready()
        urls = {f"FOVEA_GATEWAY_{name.upper()}_URLS": service.url}
        gateway = start_process("gateway", folder / "gateway.log", {**environment, **urls})
        gateway.wait_until_ready()
        yield System(service, gateway)
        assert gateway.stop() == 0, gateway.log.read_text()
        assert service.stop() == 0, service.log.read_text()
    finally:
        for process in (gateway, service):
            if process is not None:
                process.process.kill()
