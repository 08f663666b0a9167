"""Load on one URL and its results: by wrk where it is installed, by a client of our own otherwise."""

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import aiohttp

WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = io.open("%s", "rb"):read("*all")
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('{"p50_us": %%f, "requests": %%d, "duration_us": %%f, "failed": %%d}\\n',
    latency:percentile(50), summary.requests, summary.duration, failed))
end
"""


@dataclass(frozen=True)
class Load:
    """POSTs of a body, said to be JSON, `concurrency` at a time, for `duration_s` seconds."""

    concurrency: int
    duration_s: float
    body: bytes = b"x" * 2000


@dataclass(frozen=True)
class Measured:
    """Median latency in microseconds, and requests per second."""

    p50_us: float
    requests_per_s: float


def load_generator() -> str:
    return "wrk" if shutil.which("wrk") else "aiohttp"


def measure(url: str, load: Load) -> Measured:
    """Run the load. Raises RuntimeError where any request failed: the figures would mean nothing."""
    if load_generator() == "wrk":
        return _measure_with_wrk(url, load)
    return asyncio.run(_measure_with_client(url, load))


def _measure_with_wrk(url: str, load: Load) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        script, body = Path(folder) / "post.lua", Path(folder) / "body"
        body.write_bytes(load.body)
        script.write_text(WRK_SCRIPT % body)
        options = ["-t1", f"-c{load.concurrency}", f"-d{load.duration_s:g}s", "-s", str(script)]
        output = subprocess.run(["wrk", *options, url], capture_output=True, text=True, check=True).stdout
    seen = json.loads(output.splitlines()[-1])
    if seen["failed"]:
        raise RuntimeError(f"{seen['failed']} requests to {url} failed")
    return Measured(seen["p50_us"], seen["requests"] / seen["duration_us"] * 1e6)


async def _measure_with_client(url: str, load: Load) -> Measured:
    latencies: list[float] = []
    headers = {"Content-Type": "application/json"}
    began = time.perf_counter()

    async def ask_again_and_again(session: aiohttp.ClientSession) -> None:
        while (asked := time.perf_counter()) < began + load.duration_s:
            async with session.post(url, data=BytesIO(load.body), headers=headers) as response:
                await response.read()
                if response.status != 200:
                    raise RuntimeError(f"{url} answered {response.status}")
            latencies.append(time.perf_counter() - asked)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask_again_and_again(session) for _ in range(load.concurrency)))
    elapsed_s = time.perf_counter() - began
    return Measured(sorted(latencies)[len(latencies) // 2] * 1e6, len(latencies) / elapsed_s)
