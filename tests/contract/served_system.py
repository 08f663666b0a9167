"""One service and the gateway before it."""

import http.client
import json
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.contract.processes import Process, start_process

NUM_ATTEMPTS = 50


@dataclass(frozen=True)
class System:
    """The service itself and the gateway that clients speak to."""

    service: Process
    gateway: Process

    def metric(self, name: str, *, of: Process | None = None) -> float:
        """A metric, of the service unless another is named; 0 for one that nothing was counted under."""
        lines = requests.get(f"{(of or self.service).url}/metrics", timeout=30).text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def hang_up_in_the_middle_of(self, path: str, body: Mapping[str, Any]) -> float:
        """Ask the gateway, hang up while items wait in the service's queue, and return how many batches were computed.

        A service that is faster than this process may answer before it can hang up; then it is asked again.
        """
        name = 'fovea_cancelled_total{reason="disconnect"}'
        before = self.metric(name)
        for _ in range(NUM_ATTEMPTS):
            computed = self.metric("fovea_batch_size_count")
            with closing(http.client.HTTPConnection("127.0.0.1", self.gateway.port)) as connection:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                wait_until(lambda: self.metric("fovea_queue_depth") > 0 or _is_answered(connection))
            wait_until(lambda: self.metric("fovea_inflight_requests") == 0)
            # A batch that was prepared while another ran waits for the end of that one.
            wait_until(lambda: self.metric("fovea_queue_depth") == 0)
            if self.metric(name) > before:
                return self.metric("fovea_batch_size_count") - computed
        raise AssertionError(f"no hang-up was noticed in {NUM_ATTEMPTS} requests")

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The service does nothing meanwhile, so that a time passes that its work would not take."""
        self.service.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.service.process.send_signal(signal.SIGCONT)


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


def _is_answered(connection: http.client.HTTPConnection) -> bool:
    readable, _, _ = select.select([connection.sock], [], [], 0)
    return bool(readable)


def wait_until(is_so: Callable[[], bool], within_s: float = 60.0) -> None:
    give_up = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < give_up, f"not within {within_s} s"
        time.sleep(0.02)  # metrics tell nobody that they changed
