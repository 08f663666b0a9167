"""Requests with the same documents at one process of generate, compared with requests at the least busy one.

    python -m benchmarks.prefix_routing [--rounds 3] [--processes 3] [--requests 96]

Two gateways run side by side, each before processes of its own, which serve the packaged model: one as it is, and one
that is kept from reading prompts. In each round both get the same load in turn, which begins no prompt as before. The
clients think for a while before each request: without, the least busy process is the one that has just answered the
same client. The questions are about document sets of unequal popularity; the chats are conversations that grow by a
turn with each request. The last line is JSON.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from benchmarks.served import free_port, running, served

GATEWAYS = {
    "least busy": "import gateway.proxy; gateway.proxy.prefix_of = lambda *_: None; ",
    "prefix": "",
}
RUN = "import runpy; runpy.run_module('gateway', run_name='__main__')"
NUM_SETS, NUM_DOCUMENTS, NUM_QUESTIONS, NUM_CLIENTS, NUM_TURNS = 6, 10, 4, 16, 4
THINKING_S = 1.0
COUNTED = ("fovea_prompt_tokens_total", "fovea_cached_prompt_tokens_total", "fovea_calibration_passes_total")
TIMEOUT = aiohttp.ClientTimeout(total=120)
Body = dict[str, Any]


@dataclass(frozen=True)
class Route:
    """A gateway and the processes behind it."""

    url: str
    processes: tuple[str, ...]


def questions(number: int, count: int) -> list[list[Body]]:
    """Make requests, in order, for each client: those of set k are asked 1/k times as often as those of the first."""
    draw = random.Random(number)
    sets = [
        [{"title": f"Page {k}", "text": _sentence(f"{number}-{one}-{k}")} for k in range(NUM_DOCUMENTS)]
        for one in range(NUM_SETS)
    ]
    weights = [1 / (1 + one) for one in range(NUM_SETS)]
    asked = [
        {"query": f"Who kept lamp {draw.randrange(NUM_QUESTIONS)}?", "documents": documents, "max_tokens": 2}
        for documents in draw.choices(sets, weights, k=count)
    ]
    return [asked[client::NUM_CLIENTS] for client in range(NUM_CLIENTS)]


def chats(number: int, count: int) -> list[list[Body]]:
    """Make conversations, which all begin with the same instructions, one after the other for each client."""
    instructions = {"role": "system", "content": "Answer in one word. " * 10}
    clients: list[list[Body]] = [[] for _ in range(NUM_CLIENTS)]
    for chat, client in zip(range(count // NUM_TURNS), itertools.cycle(clients), strict=False):
        messages = [instructions]
        for turn in range(NUM_TURNS):
            messages = [*messages, {"role": "user", "content": _sentence(f"{number}-{chat}-{turn}") * 4}]
            client.append({"messages": messages, "max_tokens": 2})
            messages = [*messages, {"role": "assistant", "content": "Noted."}]
    return clients


def _sentence(name: str) -> str:
    return f"On day {name} the keeper wrote that the harbour was quiet. "


LOADS: dict[str, tuple[str, Callable[[int, int], list[list[Body]]]]] = {
    "questions": ("/generate", questions),
    "chats": ("/v1/chat/completions", chats),
}


@asynccontextmanager
async def all_running(folder: Path, num_processes: int) -> AsyncIterator[dict[str, Route]]:
    settings = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_LOG_LEVEL": "warning",
        "OMP_NUM_THREADS": "1",
    }
    routes = {}
    async with AsyncExitStack() as stack:
        for name, change in GATEWAYS.items():
            processes = [
                await stack.enter_async_context(served("services.generate", "FOVEA_GENERATE_PORT", settings))
                for _ in range(num_processes)
            ]
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            own = {"FOVEA_GATEWAY_PORT": str(port), "FOVEA_GATEWAY_GENERATE_URLS": ",".join(processes)}
            await stack.enter_async_context(running([sys.executable, "-c", change + RUN], {**settings, **own}, url))
            routes[name] = Route(url, tuple(processes))
        yield routes


async def load(session: aiohttp.ClientSession, url: str, clients: list[list[Body]]) -> list[float]:
    """Send each client's requests one after the other; returns the seconds of each request."""
    seconds = []

    async def ask(bodies: list[Body]) -> None:
        for body in bodies:
            await asyncio.sleep(random.expovariate(1 / THINKING_S))
            began = time.perf_counter()
            async with session.post(url, json=body) as response:
                assert response.status == 200, await response.text()
            seconds.append(time.perf_counter() - began)

    await asyncio.gather(*map(ask, clients))
    return seconds


async def counts(session: aiohttp.ClientSession, route: Route) -> Counter[str]:
    """Sum the processes' counters."""
    total: Counter[str] = Counter()
    for process in route.processes:
        async with session.get(f"{process}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        samples: Iterator[Any] = itertools.chain.from_iterable(family.samples for family in families)
        total.update({one.name: one.value for one in samples if one.name in COUNTED})
    return total


async def measure(routes: dict[str, Route], num_rounds: int, num_requests: int) -> dict[str, Any]:
    figures: dict[str, dict[str, list[float]]] = {}
    async with aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0)) as session:
        for number in range(num_rounds + 1):
            for (kind, (path, requests)), (name, route) in itertools.product(LOADS.items(), routes.items()):
                # The first round, a short one, finishes late imports.
                clients = requests(number, num_requests if number else NUM_CLIENTS)
                before = await counts(session, route)
                seconds = await load(session, route.url + path, clients)
                counted = await counts(session, route)
                counted.subtract(before)
                prompt_tokens, cached_tokens, passes = (counted[name] for name in COUNTED)
                if number:
                    own = figures.setdefault(f"{kind}, {name}", {"cached_share": [], "p50_ms": [], "passes": []})
                    own["cached_share"].append(cached_tokens / prompt_tokens)
                    own["p50_ms"].append(1000 * median(seconds))
                    own["passes"].append(passes)
    return {name: {key: summary(values) for key, values in own.items()} for name, own in figures.items()}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with all_running(Path(folder), options.processes) as routes:
            return await measure(routes, options.rounds, options.requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=3, help="behind each gateway")
    parser.add_argument("--requests", type=int, default=96, help="of each kind, in a round, to each gateway")
    options = parser.parse_args()
    figures = asyncio.run(run(options))
    title = f"{options.processes} processes, {NUM_CLIENTS} clients, {options.requests} requests a round; medians"
    table = Table("load, choice", "cached share of prompt tokens", "p50, ms", "calibration passes", title=title)
    for name, own in figures.items():
        table.add_row(name, *(f"{one['median']:g} ({one['min']:g} to {one['max']:g})" for one in own.values()))
    Console().print(table)
    record("prefix_routing", {"processes": options.processes, "requests": options.requests, "figures": figures})


if __name__ == "__main__":
    main()
