"""`served_app` in a process of its own, behind a real socket."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

POLL_S = 0.02


async def until(condition: Callable[[], bool]) -> None:
    """Poll until it holds, since another process sends no events; the test's timeout bounds the wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


class ServedProcess:
    """Starts at once; `await started()` before using it, and `kill()` in the end whatever happened."""

    def __init__(self, log_file: Path, *, environment: dict[str, str] | None = None, **settings: Any) -> None:
        self._log_file = log_file
        arguments = json.dumps({"port": 0, **settings})
        with log_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.core.served_app", arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        """Every line so far; one that is no JSON object fails the test."""
        return [json.loads(line) for line in self._log_file.read_text().splitlines()]

    def text(self) -> str:
        return self._log_file.read_text()

    async def started(self) -> None:
        """Listening and past its start-up."""
        await until(lambda: "\n" in self.text() or self.process.poll() is not None)
        self.port = json.loads(self.text().splitlines()[0])["port"]
        # Connections are taken from the first line on, and answered once the lifespan has begun.
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/livez") as response:
            assert response.status == 200

    async def until_count(self, name: str, count: int = 1) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self.url}/counts") as response:
                    if (await response.json()).get(name, 0) >= count:
                        return
                await asyncio.sleep(POLL_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def exit_status(self) -> int:
        await until(lambda: self.process.poll() is not None)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
