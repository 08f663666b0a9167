"""Processes of Fovea under measurement, on free ports."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

POLL_S = 0.05


@asynccontextmanager
async def served(module: str, port_setting: str, settings: Mapping[str, str]) -> AsyncIterator[str]:
    """Run `python -m module` with these settings and none of the caller's; yields its URL once it is ready."""
    port = free_port()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")}
    environment = {**inherited, "FOVEA_LOG_LEVEL": "warning", **settings, port_setting: str(port)}
    async with running([sys.executable, "-m", module], environment, f"http://127.0.0.1:{port}") as url:
        yield url


@asynccontextmanager
async def running(
    command: Sequence[str], environment: Mapping[str, str], url: str, *, ready: str = "/readyz"
) -> AsyncIterator[str]:
    """Run a server until the block ends; yields its URL once the path `ready` answers 200."""
    process = subprocess.Popen(command, env=environment)  # noqa: ASYNC220 nothing else runs yet
    try:
        async with aiohttp.ClientSession() as session:
            while not await _is_ready(session, f"{url}{ready}"):
                assert process.poll() is None, f"{' '.join(command[:3])} ended before it was ready"
                await asyncio.sleep(POLL_S)
        yield url
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def served_embed(folder: Path, **settings: str) -> AsyncIterator[str]:
    """Run the embed service with all its data under `folder`."""
    own = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
    }
    async with served("services.embed", "FOVEA_EMBED_PORT", {**own, **settings}) as url:
        yield url


@asynccontextmanager
async def served_gateway(embed_url: str) -> AsyncIterator[str]:
    """Run a gateway in front of one embed service."""
    async with served("gateway", "FOVEA_GATEWAY_PORT", {"FOVEA_GATEWAY_EMBED_URLS": embed_url}) as url:
        yield url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False
