"""One client for all servers: the same files, sent in the same way."""

import asyncio
import base64
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import orjson

from benchmarks.peers.servers import Server
from benchmarks.photographs import Photographs

Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Load:
    """`num_requests` of `images_per_request` images each, `concurrency` at a time."""

    images_per_request: int
    concurrency: int
    num_requests: int

    @property
    def name(self) -> str:
        return f"{self.images_per_request} a request, concurrency {self.concurrency}"


@dataclass(frozen=True)
class Measured:
    """The results of one load in one round; a latency, in milliseconds, for each request."""

    images_per_s: float
    latencies_ms: list[float]


async def measure(session: aiohttp.ClientSession, url: str, server: Server, load: Load, files: Photographs) -> Measured:
    """Run a load, with every body made before the clock starts. Raises RuntimeError where a request fails."""
    bodies = iter([_body(server, files.take(load.images_per_request)) for _ in range(load.num_requests)])
    latencies_ms: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_ask_until_done(session, url, bodies, latencies_ms) for _ in range(load.concurrency)))
    num_images = load.num_requests * load.images_per_request
    return Measured(num_images / (time.perf_counter() - began), latencies_ms)


async def embed(session: aiohttp.ClientSession, url: str, server: Server, files: Sequence[bytes]) -> Rows:
    """Return this server's vectors, (B, E)."""
    answer = orjson.loads(await _post(session, url, _body(server, files)))
    ordered = sorted(answer["data"], key=lambda one: int(one["index"]))
    return np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in ordered])


async def _ask_until_done(
    session: aiohttp.ClientSession, url: str, bodies: Iterator[bytes], latencies_ms: list[float]
) -> None:
    for body in bodies:
        asked = time.perf_counter()
        await _post(session, url, body)
        latencies_ms.append((time.perf_counter() - asked) * 1e3)


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> bytes:
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
        answer = await response.read()
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {answer[:500].decode(errors='replace')}")
        return answer


def _body(server: Server, files: Sequence[bytes]) -> bytes:
    uris = [f"data:image/jpeg;base64,{base64.b64encode(file).decode()}" for file in files]
    return orjson.dumps(server.body(uris))
