"""The streams of one client beside the long prompts of another, at the generate service with its packaged model.

    python -m benchmarks.fair_streams [--seconds 20]

One client streams short chats, a few each second whatever the service does. Beside it, the other sends requests one
after the other: questions over 60 documents, then four long chats at a time, then 16 long answers to a prompt, then
rankings of 128 documents. The seconds of a short chat and between its tokens, and how many requests of the other are
answered per second, alone and beside the chats.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from benchmarks.served import served

CHATS_PER_S = 2.0
NUM_TOKENS = 8
TIMEOUT = aiohttp.ClientTimeout(total=120)
Asking = Callable[[aiohttp.ClientSession, str, int], Awaitable[None]]


def documents(count: int, length: int, number: int) -> list[dict[str, str]]:
    """Make documents of about this many characters, different for each number."""
    text = f"On day {number} the keeper of the lighthouse wrote that the harbour was quiet. " * 100
    return [{"title": f"Page {k} of {number}", "text": f"{k} {text[:length]}"} for k in range(count)]


async def question(session: aiohttp.ClientSession, url: str, number: int) -> None:
    body = {"query": "Who wrote?", "documents": documents(60, 90, number), "max_tokens": 16}
    async with session.post(f"{url}/generate", json=body) as response:
        assert response.status == 200, await response.text()


async def long_chats(session: aiohttp.ClientSession, url: str, number: int) -> None:
    texts = [f"Chat {k} of {number}. " + documents(1, 6000, number)[0]["text"] for k in range(4)]
    await asyncio.gather(*(chat(session, url, text) for text in texts))


async def many_answers(session: aiohttp.ClientSession, url: str, number: int) -> None:
    body = {"prompt": f"The keeper {number}", "n": 16, "max_tokens": 400, "temperature": 1, "ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()


async def ranking(session: aiohttp.ClientSession, url: str, number: int) -> None:
    body = {"query": "Who wrote?", "documents": [one["text"] for one in documents(128, 90, number)]}
    async with session.post(f"{url}/v1/rerank", json=body) as response:
        assert response.status == 200, await response.text()


async def chat(session: aiohttp.ClientSession, url: str, text: str) -> list[float]:
    """Stream a chat; returns the seconds until each event and the end."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": NUM_TOKENS,
        "stream": True,
        "ignore_eos": True,
    }
    began, came = time.perf_counter(), []
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                came.append(time.perf_counter() - began)
    return [*came, time.perf_counter() - began]


@asynccontextmanager
async def beside(asking: Asking | None, session: aiohttp.ClientSession, url: str) -> AsyncIterator[list[float]]:
    """Ask again and again, one request after the other, until the block ends; yields when each was answered."""
    answered: list[float] = []
    if asking is None:
        yield answered
        return

    async def ask() -> None:
        for number in itertools.count(int(time.time() * 1000) % 10**9):
            await asking(session, url, number)
            answered.append(time.perf_counter())

    task = asyncio.create_task(ask())
    await asyncio.sleep(0.5)
    try:
        yield answered
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def chats(session: aiohttp.ClientSession, url: str, seconds: float) -> list[list[float]]:
    """Stream short chats at a fixed rate; returns the times of each."""
    tasks = []
    for number in range(int(seconds * CHATS_PER_S)):
        tasks.append(asyncio.create_task(chat(session, url, f"Who lit lamp {number}?")))
        await asyncio.sleep(1 / CHATS_PER_S)
    return list(await asyncio.gather(*tasks))


async def measure(folder: Path, seconds: float) -> dict[str, Any]:
    settings = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
    }
    kinds: dict[str, Asking | None] = {
        "alone": None,
        "questions": question,
        "long chats": long_chats,
        "16 answers": many_answers,
        "rankings": ranking,
    }
    result: dict[str, Any] = {"chats_per_s": CHATS_PER_S}
    async with (
        served("services.generate", "FOVEA_GENERATE_PORT", settings) as url,
        aiohttp.ClientSession(timeout=TIMEOUT, headers={"x-fovea-client": "short"}) as short,
        aiohttp.ClientSession(timeout=TIMEOUT, headers={"x-fovea-client": "long"}) as long,
    ):
        for name, asking in kinds.items():
            if asking is not None:
                async with beside(asking, long, url) as answered:
                    began = time.perf_counter()
                    await asyncio.sleep(seconds)
                    lone = _per_s(answered, began)
            async with beside(asking, long, url) as answered:
                began = time.perf_counter()
                came = await chats(short, url, seconds)
                together = _per_s(answered, began)
            gaps = [later - sooner for times in came for sooner, later in itertools.pairwise(times[:-1])]
            whole = [times[-1] for times in came]
            result[name] = {
                "median_s": round(median(whole), 4),
                "worst_s": round(max(whole), 4),
                "median_gap_s": round(median(gaps), 4),
                "worst_gap_s": round(max(gaps), 4),
                **({} if asking is None else {"others_alone_per_s": lone, "others_per_s": together}),
            }
    return result


def _per_s(answered: list[float], began: float) -> float:
    times = [one for one in answered if one >= began]
    return round((len(times) - 1) / (times[-1] - times[0]), 3) if len(times) > 1 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each part")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), options.seconds))
    table = Table("beside", "chat, median", "worst", "gap, median", "worst", "others alone", "others beside")
    for name, figures in result.items():
        if isinstance(figures, dict):
            table.add_row(name, *map(str, figures.values()))
    Console().print(table)
    record("fair_streams", result)


if __name__ == "__main__":
    main()
