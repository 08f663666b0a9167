"""The servers under comparison: how each is started, asked and stopped. One runs at a time."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.peers.models import FOVEA_MODEL, ModelFolders
from benchmarks.served import free_port

ROOT = Path(__file__).parents[2]
PEERS = ("fovea", "fastapi", "litserve", "infinity")
POLL_S = 0.1
START_TIMEOUT_S = 180.0
# Requests on a loaded machine take longer than servers' default timeouts; none should time out.
REQUEST_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0
LITSERVE_PYTHON = "FOVEA_BENCH_LITSERVE_PYTHON"
INFINITY_PYTHON = "FOVEA_BENCH_INFINITY_PYTHON"
# No downloads and no telemetry while measuring.
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}


@dataclass(frozen=True)
class Server:
    """One setting of one peer; `command` has `{port}` in place of the port."""

    peer: str
    setting: str
    command: Sequence[str]
    path: str = "/v1/embeddings"
    ready_path: str = "/health"
    num_threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[Sequence[str]], dict[str, Any]] = lambda uris: {
        "input": [{"image": uri} for uri in uris],
        "encoding_format": "base64",
    }


def available_servers(folders: ModelFolders, num_threads: int) -> tuple[list[Server], list[str]]:
    """Return all settings of all peers that have an interpreter, Fovea first, and the names of those without one.

    Every server computes with `num_threads` threads: one process with all of them, or as many processes with one.
    """
    servers = [_fovea(folders, num_threads), _fastapi(folders, num_threads)]
    missing = []
    for peer, variable, settings in (
        ("litserve", LITSERVE_PYTHON, _litserve),
        ("infinity", INFINITY_PYTHON, _infinity),
    ):
        if python := os.environ.get(variable):
            servers += settings(python, folders, num_threads)
        else:
            missing.append(peer)
    return servers, missing


def _fovea(folders: ModelFolders, num_threads: int) -> Server:
    root = folders.store.parent
    return Server(
        "fovea",
        "default",
        [sys.executable, "-m", "services.embed"],
        ready_path="/readyz",
        num_threads=num_threads,
        environment={
            "FOVEA_STORE_URL": folders.store.as_uri(),
            "FOVEA_CHECKPOINT_CACHE_DIR": str(root / "checkpoints"),
            "FOVEA_EMBED_COLLECTIONS_DIR": str(root / "collections"),
            "FOVEA_EMBED_MODELS": FOVEA_MODEL,
            "FOVEA_EMBED_PORT": "{port}",
            "FOVEA_LOG_LEVEL": "warning",
            "FOVEA_REQUEST_TIMEOUT_S": str(REQUEST_TIMEOUT_S),
        },
    )


def _fastapi(folders: ModelFolders, num_threads: int) -> Server:
    command = [sys.executable, "-m", "benchmarks.peers.fastapi_server", str(folders.open_clip), "{port}"]
    return Server("fastapi", "a thread a request", command, num_threads=num_threads)


def _litserve(python: str, folders: ModelFolders, num_threads: int) -> list[Server]:
    def setting(max_batch_size: int, batch_timeout_s: float, num_workers: int) -> Server:
        numbers = [str(max_batch_size), str(batch_timeout_s), str(num_workers)]
        return Server(
            "litserve",
            f"batch {max_batch_size}, timeout {batch_timeout_s:g} s, workers {num_workers}",
            [python, "-m", "benchmarks.peers.litserve_server", str(folders.open_clip), "{port}", *numbers],
            num_threads=max(1, num_threads // num_workers),
        )

    settings = [setting(1, 0.0, 1), setting(32, 0.01, 1)]
    if num_threads > 1:
        settings += [setting(1, 0.0, num_threads), setting(16, 0.01, num_threads)]
    return settings


def _infinity(python: str, folders: ModelFolders, num_threads: int) -> list[Server]:
    def setting(batch_size: int) -> Server:
        options = {
            "--model-id": str(folders.transformers),
            "--served-model-name": "clip",
            "--engine": "torch",
            "--device": "cpu",
            "--dtype": "float32",
            "--batch-size": str(batch_size),
            "--host": "127.0.0.1",
            "--port": "{port}",
            "--log-level": "warning",
        }
        flat = [word for option in options.items() for word in option]
        return Server(
            "infinity",
            f"batch {batch_size}",
            [python, "-c", "from infinity_emb.cli import cli; cli()", "v2", *flat],
            path="/embeddings",
            num_threads=num_threads,
            body=_infinity_body,
        )

    # --compile was tried: it starts a minute later and embeds no faster on a CPU
    return [setting(8), setting(32)]


def _infinity_body(uris: Sequence[str]) -> dict[str, Any]:
    return {"model": "clip", "modality": "image", "input": list(uris), "encoding_format": "base64"}


@asynccontextmanager
async def running(server: Server, log: Path) -> AsyncIterator[str]:
    """Start the server; yields the URL to post to once it is ready. Its process and all children end with the block.

    Raises RuntimeError with the end of its output where it ends before, or is not ready in time.
    """
    port = str(free_port())
    threads = {"OMP_NUM_THREADS": str(server.num_threads)}
    # Fovea would refuse the benchmark's own variables as unknown settings
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")}
    environment = {name: value.format(port=port) for name, value in server.environment.items()}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 nothing else runs yet
            [word.replace("{port}", port) for word in server.command],
            env={**inherited, **OFFLINE, **threads, **environment},
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session:
            await _wait_until_ready(session, url + server.ready_path, process, log)
        yield url + server.path
    finally:
        _stop(process)


async def _wait_until_ready(
    session: aiohttp.ClientSession, url: str, process: "subprocess.Popen[bytes]", log: Path
) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await _is_ready(session, url):
                if process.poll() is not None:
                    raise RuntimeError(f"a server ended before it was ready:\n{_end_of(log)}")
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise RuntimeError(f"a server was not ready within {START_TIMEOUT_S:g} s:\n{_end_of(log)}") from None


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the whole session of the process, since some servers do not end their workers."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_TIMEOUT_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
