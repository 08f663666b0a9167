"""Real servers for real clients."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.core.manifest import CheckpointInfo
from services.core.store import Store
from tests.embed.tiny import wait_until_ready, write_tiny_checkpoint

MODEL = "tiny"


@dataclass(frozen=True)
class Server:
    """One served process: its base URL, its process, and where it logs."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path


@pytest.fixture(scope="session")
def embed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`python -m services.embed` on a free port, over a store that holds a tiny checkpoint."""
    folder = tmp_path_factory.mktemp("embed-server")
    store_url = (folder / "store").as_uri()
    checkpoint = write_tiny_checkpoint(folder / "checkpoint")
    Store.open(store_url).publish(MODEL, checkpoint, CheckpointInfo(kind="focallens-clip"))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")},
        "FOVEA_STORE_URL": store_url,
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_MODEL": MODEL,
        "FOVEA_EMBED_DEVICE": "cpu",
        "FOVEA_EMBED_PORT": "0",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.embed"], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_ready(lambda: b'"port"' in log.read_bytes() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        listening = next(line for line in log.read_text().splitlines() if '"port"' in line)
        url = f"http://127.0.0.1:{json.loads(listening)['port']}"
        wait_until_ready(lambda: _is_ready(url) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield Server(url, process, log)
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
