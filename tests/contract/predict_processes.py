"""A predict process over a store with tiny students, and the gateway before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.contract.processes import Process, start_process
from tests.predict.served_tiny import MODELS, publish_tiny


@dataclass(frozen=True)
class PredictSystem:
    """The service itself and the gateway that clients speak to."""

    service: Process
    gateway: Process

    def metric(self, name: str) -> float:
        """A metric of the service; 0 for one that nothing was counted under."""
        lines = requests.get(f"{self.service.url}/metrics", timeout=30).text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextmanager
def running_predict(folder: Path, **settings: str) -> Iterator[PredictSystem]:
    """Both processes, ready; `settings` are environment variables. Checks that both end well."""
    environment = {
        "FOVEA_STORE_URL": settings.get("FOVEA_STORE_URL") or publish_tiny(folder),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_PREDICT_MODELS": MODELS,
        "FOVEA_PREDICT_DEVICE": "cpu",
        "FOVEA_PREDICT_NUM_THREADS": "1",
        "FOVEA_PREDICT_PORT": "0",
        "FOVEA_GATEWAY_PORT": "0",
        **settings,
    }
    service = start_process("services.predict", folder / "service.log", environment)
    gateway: Process | None = None
    try:
        service.wait_until_ready()
        gateway = start_process(
            "gateway", folder / "gateway.log", {**environment, "FOVEA_GATEWAY_PREDICT_URLS": service.url}
        )
        gateway.wait_until_ready()
        yield PredictSystem(service, gateway)
        assert gateway.stop() == 0, gateway.log.read_text()
        assert service.stop() == 0, service.log.read_text()
    finally:
        for process in (gateway, service):
            if process is not None:
                process.process.kill()
