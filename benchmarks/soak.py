"""All services at 60 % of the machine's capacity for a long time: failures, and whether memory stays flat.

python -m benchmarks.soak [--minutes 20] [--share 0.6]

The real gateway and four services on the starters, under a mix of requests that no cache has seen, one connection
dropped in the middle of every hundred. Saturation of the mix is measured first. Memory is read from /proc every ten
seconds; growth is that of the medians of the second and the last fifth of the time. The last line is JSON.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.open_loop import Arrivals, MakeRequest, OpenLoop, percentile_ms
from benchmarks.overload import fill_gallery, requests_of
from benchmarks.record import record
from benchmarks.served import served

SERVICES = ("predict", "generate", "embed", "score")
# Shares of every twelve requests.
MIX = ("embed",) * 3 + ("image",) * 2 + ("search",) * 2 + ("predict",) * 2 + ("score", "generate", "rerank")
SATURATING_CLIENTS = 32
SATURATION_S = 15.0
LOOK_EVERY_S = 10.0
GIVE_UP_EVERY_S = 2.0


def mixed() -> MakeRequest:
    makers = {route: requests_of(route) for route in set(MIX)}
    numbers = count()
    return lambda number: makers[MIX[next(numbers) % len(MIX)]](number)


@asynccontextmanager
async def served_system(folder: Path) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Start everything; yields the gateway's URL and the processes by name once all are ready."""
    store = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
    }
    async with AsyncExitStack() as stack:
        urls = {}
        for service in SERVICES:
            process = served(f"services.{service}", f"FOVEA_{service.upper()}_PORT", store)
            urls[f"FOVEA_GATEWAY_{service.upper()}_URLS"] = await stack.enter_async_context(process)
        url = await stack.enter_async_context(served("gateway", "FOVEA_GATEWAY_PORT", urls))
        await fill_gallery(url)
        yield url, _children()


def _children() -> dict[str, int]:
    """Return the processes that this one has started, by their modules."""
    own = Path("/proc/self/task")
    pids = [pid for task in own.iterdir() for pid in (task / "children").read_text().split()]
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids}
    return {str(parts[parts.index(b"-m") + 1], "ascii"): pid for pid, parts in commands.items() if b"-m" in parts}


def memory_mib(pid: int) -> float:
    """Return a process's resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def watch_memory(pids: dict[str, int], samples: dict[str, list[float]]) -> None:
    while True:
        for name, pid in pids.items():
            samples[name].append(memory_mib(pid))
        await asyncio.sleep(LOOK_EVERY_S)


async def give_up(url: str, make: MakeRequest) -> None:
    """Run clients that disconnect in the middle of a request."""
    host, port = url.removeprefix("http://").split(":")
    for number in count():
        await asyncio.sleep(GIVE_UP_EVERY_S)
        _, writer = await asyncio.open_connection(host, int(port))
        request = make(number)
        writer.write(request if number % 2 else request[: len(request) // 2])
        await asyncio.sleep(0.01)
        writer.transport.abort()


async def measure(minutes: float, share: float) -> dict[str, Any]:
    make = mixed()
    with tempfile.TemporaryDirectory() as folder:
        async with served_system(Path(folder)) as (url, pids), OpenLoop(url) as load:
            await load.saturate(4, 5.0, make)
            saturation = (await load.saturate(SATURATING_CLIENTS, SATURATION_S, make)).goodput
            samples: dict[str, list[float]] = {name: [] for name in pids}
            beside = [asyncio.create_task(watch_memory(pids, samples)), asyncio.create_task(give_up(url, mixed()))]
            began = time.perf_counter()
            arrivals = await load.run(share * saturation, 60 * minutes, make)
            seconds = time.perf_counter() - began
            for task in beside:
                task.cancel()
    return {
        "saturation_per_s": saturation,
        "seconds": seconds,
        **figures(arrivals),
        "memory_mib": {name: growth(values) for name, values in samples.items()},
    }


def figures(arrivals: Arrivals) -> dict[str, Any]:
    statuses = sorted({answer.status for answer in arrivals.answers})
    return {
        "statuses": {str(status): len(arrivals.with_status(status.__eq__)) for status in statuses},
        "unanswered": arrivals.num_unanswered,
        "p50_ms": percentile_ms(arrivals.accepted, 0.5),
        "p99_ms": percentile_ms(arrivals.accepted, 0.99),
    }


def growth(samples: list[float]) -> dict[str, float]:
    """Return the medians of the second and of the last fifth, and the maximum, in MiB."""
    fifth = max(1, len(samples) // 5)
    return {
        "second fifth": median(samples[fifth : 2 * fifth]),
        "last fifth": median(samples[-fifth:]),
        "most": max(samples),
    }


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['seconds']:.0f} s, statuses {result['statuses']}, p99 {result['p99_ms']:.0f} ms")
    for column in ("process", "MiB, second fifth", "last fifth", "most"):
        table.add_column(column, justify="right")
    for name, row in result["memory_mib"].items():
        table.add_row(name, *(f"{value:.0f}" for value in row.values()))
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--share", type=float, default=0.6)
    options = parser.parse_args()
    result = uvloop.run(measure(options.minutes, options.share))
    show(result)
    record("soak", {"share": options.share, **result})


if __name__ == "__main__":
    main()
