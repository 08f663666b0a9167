"""Cost of pools: of reading the model that each request names, where the gateway otherwise passes bodies unread.

python -m benchmarks.pools [--rounds 5] [--seconds 2]

Two gateways run side by side before the same service, which does nothing: one without pools, one whose pool gets all
requests. CPU time is measured, because other work on the machine changes it less than latency. The model is the last
member of each body, after strings as long as images in base64. The search of the longest body is compared with a
parser, both in a thread: how long they take, and for how long at most the event loop gets no turn. The last line is
JSON.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.gateway import running
from benchmarks.http_load import Load, load_generator, measure
from benchmarks.record import record, summary
from benchmarks.served import free_port
from gateway.routing.upstream_choice import find_in_json

# Characters of the images in a body.
SIZES = {"2 KB": 2_000, "200 KB": 200_000, "2 MB": 2_000_000}
LONGEST = 64_000_000
CONCURRENCY = 32


def body(size: int) -> bytes:
    image = "A" * min(size, 1_000_000)
    return json.dumps({"input": [image] * (size // len(image)), "model": "eyes"}).encode()


@contextmanager
def both_running(folder: Path) -> Iterator[dict[str, str]]:
    """The URLs of a gateway without pools and of one with a pool."""
    service, plain, pooled = free_port(), free_port(), free_port()
    upstream = f"http://127.0.0.1:{service}"
    pools = folder / "pools.json"
    pools.write_text(
        json.dumps({"pools": [{"name": "eyes-1", "service": "embed", "models": ["eyes"], "urls": [upstream]}]})
    )
    command = [sys.executable, "-m", "gateway"]
    with (
        running([sys.executable, "-m", "benchmarks.raw_service", str(service)], service, folder),
        running(command, plain, folder, FOVEA_GATEWAY_PORT=str(plain), FOVEA_GATEWAY_EMBED_URLS=upstream) as without,
        running(command, pooled, folder, FOVEA_GATEWAY_PORT=str(pooled), FOVEA_GATEWAY_POOLS=str(pools)) as having,
    ):
        yield {"without": without, "with": having}


def cpu_us_of_request(url: str, sent: bytes, seconds: float) -> float:
    """CPU time of a gateway for each request under load, in microseconds, by its own metrics."""
    before = _used(url)
    measure(f"{url}/embed", Load(CONCURRENCY, seconds, sent))
    cpu_s, num_requests = (now - then for now, then in zip(_used(url), before, strict=True))
    return 1e6 * cpu_s / num_requests


def _used(url: str) -> tuple[float, float]:
    """CPU seconds of a gateway, and the number of its requests."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    cpu_s = sum(one.value for one in samples if one.name == "process_cpu_seconds_total")
    asked = [one for one in samples if one.name == "fovea_requests_total" and one.labels["route"] == "/embed"]
    return cpu_s, sum(one.value for one in asked)


def requests(urls: dict[str, str], num_rounds: int, seconds: float) -> dict[str, Any]:
    """CPU time of a request without and with pools, and what pools add, round by round."""
    result: dict[str, Any] = {}
    for size, length in SIZES.items():
        sent = body(length)
        rounds = []
        for _ in range(num_rounds + 1):
            rounds.append({route: cpu_us_of_request(url, sent, seconds) for route, url in urls.items()})
        # The first one opens connections and finishes late imports.
        result[size] = {f"{route}_pools_cpu_us": summary([one[route] for one in rounds[1:]]) for route in urls}
        result[size]["added_cpu_us"] = summary([one["with"] - one["without"] for one in rounds[1:]])
    return result


async def pauses(work: Callable[[bytes], object], given: bytes) -> tuple[float, float]:
    """Milliseconds of work in a thread, and the longest turn of the event loop meanwhile."""
    began = last = time.perf_counter()
    longest = 0.0
    task = asyncio.create_task(asyncio.to_thread(work, given))
    while not task.done():
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - last)
        last = time.perf_counter()
    return 1000 * (last - began), 1000 * longest


def searches(num_rounds: int) -> dict[str, Any]:
    """The search for the model in the longest body beside parsing it."""
    given = body(LONGEST)
    works: dict[str, Callable[[bytes], object]] = {
        "search": lambda text: find_in_json(text, "model"),
        "orjson": orjson.loads,
    }
    result = {}
    for name, work in works.items():
        measured = [asyncio.run(pauses(work, given)) for _ in range(num_rounds)]
        result[f"{name}_ms"] = summary([duration for duration, _ in measured])
        result[f"{name}_longest_pause_ms"] = summary([pause for _, pause in measured])
    return result


def show(result: dict[str, Any], found: dict[str, Any]) -> None:
    title = f"CPU time of the gateway for a request, µs, concurrency {CONCURRENCY}"
    table = Table("body", "without pools", "with pools", "added", title=title)
    for size, figures in result.items():
        table.add_row(size, *(f"{one['median']:g} [{one['p25']:g}, {one['p75']:g}]" for one in figures.values()))
    Console().print(table)
    for name, figure in found.items():
        Console().print(f"{LONGEST // 10**6} MB, {name}: {figure['median']:g} [{figure['p25']:g}, {figure['p75']:g}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, at least 2")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of load for each measurement")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, both_running(Path(folder)) as urls:
        result = requests(urls, arguments.rounds, arguments.seconds)
    found = searches(arguments.rounds)
    show(result, found)
    record(
        "pools", {"load_generator": load_generator(), "seconds": arguments.seconds, "bodies": result, "longest": found}
    )


if __name__ == "__main__":
    main()
