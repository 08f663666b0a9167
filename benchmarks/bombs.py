"""Effect of requests that cost far more than their bytes on a process's memory and on other requests' latency.

python -m benchmarks.bombs [--seconds 15] [--at-once 8] [--only wide-texts,webps]

The gateway and one service at a time run on the starters. Small honest requests are sent, one after the other, first
alone and then while a process of its own sends bombs, `--at-once` at a time. Reported are the peak resident memory of
service and gateway above that before, the honest requests' median and 99th percentile alone and beside the bombs, and
the answers to the bombs. The last line is JSON.
"""

import argparse
import asyncio
import base64
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import orjson
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from benchmarks.served import served

PORTS = {name: f"FOVEA_{name.upper()}_PORT" for name in ("embed", "predict", "score", "generate", "gateway")}
PAUSE_S = 0.02
MULTIPART = "multipart/form-data; boundary=bomb"


@dataclass(frozen=True)
class Bomb:
    """A body and its target."""

    service: str
    path: str
    make: Callable[[], bytes]
    content_type: str = "application/json"


def flat_webps() -> bytes:
    """1,000 images of 64 million pixels in 3.4 MB."""
    file = io.BytesIO()
    Image.new("RGB", (8000, 8000)).save(file, "WEBP", lossless=True)
    image = base64.b64encode(file.getvalue()).decode()
    return orjson.dumps({"images": [image] * 1000})


def form_of_photographs() -> bytes:
    """60 MB of files with random bytes."""
    noise = random.Random(0).randbytes(15_000)
    head = b'--bomb\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return (head + noise + b"\r\n") * 4000 + b"--bomb--\r\n"


BOMBS = {
    "wide-texts": Bomb("embed", "/embed", lambda: b'{"texts":["a"' + b',"a"' * 13_000_000 + b"]}"),
    "webps": Bomb("embed", "/embed", flat_webps),
    "form": Bomb("embed", "/embed", form_of_photographs, MULTIPART),
    "long-texts": Bomb("embed", "/embed", lambda: orjson.dumps({"texts": ["a dog, " * 2_000] * 4_000})),
    "empty-lists": Bomb("predict", "/predict", lambda: b'{"inputs":[[]' + b",[]" * 1_000_000 + b"]}"),
    "captions": Bomb("score", "/score", lambda: b'{"image":"","captions":["a"' + b',"a"' * 13_000_000 + b"]}"),
    "documents": Bomb("generate", "/generate", lambda: b'{"query":"a","documents":["a"' + b',"a"' * 13_000_000 + b"]}"),
}


async def honest_body(session: aiohttp.ClientSession, service: str, url: str) -> Callable[[], dict[str, Any]]:
    """Return a maker of small requests, all different, so that no cache answers them."""
    if service == "predict":
        async with session.get(f"{url}/tasks") as answer:
            task = (await answer.json())["data"][0]
        return lambda: {"task": task["id"], "inputs": [{field: _words() for field in task["fields"]}]}
    if service == "generate":
        return lambda: {"query": _words(), "documents": [_words()], "max_tokens": 1}
    if service == "score":
        return lambda: {"image": _picture(), "captions": [_words(), _words()]}
    return lambda: {"images": [_picture()], "condition": "what color is it?"}


def _words() -> str:
    return " ".join(random.choices(["red", "blue", "circle", "square", "left", "right", "of", "a"], k=6))


def _picture() -> str:
    file = io.BytesIO()
    Image.effect_noise((96, 96), random.uniform(20, 200)).convert("RGB").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


async def latencies(session: aiohttp.ClientSession, bomb: Bomb, url: str, seconds: float) -> tuple[list[float], int]:
    """Measure milliseconds of each honest request, one after the other, and count those not answered with 200."""
    make = await honest_body(session, bomb.service, url)
    taken, num_failed = [], 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        body = orjson.dumps(make())
        began = time.perf_counter()
        async with session.post(url + bomb.path, data=body, headers={"Content-Type": "application/json"}) as answer:
            await answer.read()
            num_failed += answer.status != 200
        taken.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(PAUSE_S)
    return taken, num_failed


async def throw(name: str, url: str, at_once: int, seconds: float) -> None:
    """Send one bomb again and again, `at_once` at a time, and print the counts of its answers."""
    bomb = BOMBS[name]
    body = bomb.make()
    answers: Counter[str] = Counter()
    end = time.perf_counter() + seconds

    async def throw_again_and_again(session: aiohttp.ClientSession) -> None:
        while (left := end - time.perf_counter()) > 0:
            try:
                async with asyncio.timeout(left):
                    headers = {"Content-Type": bomb.content_type}
                    async with session.post(url + bomb.path, data=io.BytesIO(body), headers=headers) as answer:
                        await answer.read()
                        answers[str(answer.status)] += 1
            except TimeoutError:
                answers["unanswered"] += 1
            except aiohttp.ClientError:
                answers["closed"] += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(throw_again_and_again(session) for _ in range(at_once)))
    print(orjson.dumps(answers).decode())


class Memory:
    """Resident memory of processes above their memory at the start, from /proc, in mebibytes."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._pids = {name: _child_that_runs(module) for name, module in modules.items()}
        self._before = {name: _status_mib(pid, "VmRSS") for name, pid in self._pids.items()}
        for pid in self._pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from now on

    def peaks(self) -> dict[str, int]:
        return {name: round(_status_mib(pid, "VmHWM") - self._before[name]) for name, pid in self._pids.items()}


def _child_that_runs(module: str) -> int:
    for task in Path("/proc/self/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    raise LookupError(f"no child runs {module}")


def _status_mib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


@asynccontextmanager
async def running(service: str, folder: Path) -> AsyncIterator[str]:
    """Start a gateway in front of the service; yields its URL."""
    own = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
    }
    if service == "embed":
        own["FOVEA_EMBED_COLLECTIONS_DIR"] = str(folder / "collections")
    async with served(f"services.{service}", PORTS[service], own) as url:
        urls = {f"FOVEA_GATEWAY_{service.upper()}_URLS": url}
        async with served("gateway", PORTS["gateway"], urls) as gateway:
            yield gateway


async def measure(name: str, url: str, options: argparse.Namespace) -> dict[str, Any]:
    bomb = BOMBS[name]
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await latencies(session, bomb, url, 2)
        alone, _ = await latencies(session, bomb, url, options.seconds)
        memory = Memory({"service": f"services.{bomb.service}", "gateway": "gateway"})
        command = [sys.executable, "-m", "benchmarks.bombs", "--throw", name, "--url", url]
        command += ["--seconds", str(options.seconds), "--at-once", str(options.at_once)]
        thrower = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=os.environ)
        beside, num_failed = await latencies(session, bomb, url, options.seconds)
        output, _ = await thrower.communicate()
    assert thrower.returncode == 0, "the thrower failed"
    return {
        "bomb": name,
        "peak_mib": memory.peaks(),
        "answers": orjson.loads(output),
        "honest_alone_ms": _percentiles(alone),
        "honest_beside_ms": _percentiles(beside),
        "honest_requests": len(beside),
        "honest_failed": num_failed,
    }


def _percentiles(samples: list[float]) -> dict[str, float]:
    cuts = quantiles(samples, n=100, method="inclusive")
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(max(samples), 1)}


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="peak memory above idle, MiB; honest latency, ms: alone → beside bombs")
    for heading in ("bomb", "service", "gateway", "p50", "p99", "max", "failed", "bombs were answered"):
        table.add_column(heading, justify="right")
    for row in rows:
        alone, beside = row["honest_alone_ms"], row["honest_beside_ms"]
        figures = [f"{alone[name]:g} → {beside[name]:g}" for name in ("p50", "p99", "max")]
        answers = ", ".join(f"{count} × {status}" for status, count in row["answers"].items())
        peaks = row["peak_mib"]
        failed = f"{row['honest_failed']} of {row['honest_requests']}"
        table.add_row(row["bomb"], str(peaks["service"]), str(peaks["gateway"]), *figures, failed, answers)
    Console(width=160).print(table)


async def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in options.only.split(",") if options.only else BOMBS:
        with tempfile.TemporaryDirectory() as folder:
            async with running(BOMBS[name].service, Path(folder)) as url:
                rows.append(await measure(name, url, options))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds alone, and as many beside bombs")
    parser.add_argument("--at-once", type=int, default=8, help="bombs in flight")
    parser.add_argument("--only", default="", help=f"bombs of {', '.join(BOMBS)}, with commas between them")
    parser.add_argument("--throw", choices=BOMBS, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.throw:
        asyncio.run(throw(options.throw, options.url, options.at_once, options.seconds))
        return
    rows = asyncio.run(measure_all(options))
    show(rows)
    record("bombs", {"at_once": options.at_once, "seconds": options.seconds, "bombs": rows})


if __name__ == "__main__":
    main()
