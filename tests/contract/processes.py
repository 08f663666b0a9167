"""Processes of Fovea, started as `fovea up` starts them, on ports that the system chose."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from services.cli.programs import existing_names
from tests.core.child_processes import ForkedModule, start_module

POLL_S = 0.02
SERVICES = tuple(name for name in existing_names() if name != "gateway")


@dataclass(frozen=True)
class Process:
    """One running process: where it listens and where it logs."""

    process: subprocess.Popen[bytes] | ForkedModule
    log: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> None:
        while not self._is_ready():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(POLL_S)  # another process tells nobody when it is ready

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:  # whatever keeps it from answering now
            return False


@cache
def _input_of_all() -> int:
    """A pipe that says nothing, and ends with this process."""
    reading, _ = os.pipe()
    return reading


def start_process(module: str, log: Path, environment: dict[str, str]) -> Process:
    """Run a module with these settings and none of the caller's; returns once it listens.

    A gateway knows only the services that `environment` names, whatever else listens on this machine.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")}
    no_services = {f"FOVEA_GATEWAY_{name.upper()}_URLS": "" for name in SERVICES}
    settings = {**inherited, **no_services, **environment}
    command = ("services.cli.child", module)
    process: subprocess.Popen[bytes] | ForkedModule
    if module == "gateway":  # which has no torch
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=settings,
                stdin=_input_of_all(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    else:
        log.write_bytes(b"")  # else the port of the process before is read until the new one opens the file
        process = start_module(command, settings, log, stdin=_input_of_all())
    while b'"port"' not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        time.sleep(POLL_S)
    listening = next(line for line in log.read_text().splitlines() if '"port"' in line)
    return Process(process, log, json.loads(listening)["port"])
