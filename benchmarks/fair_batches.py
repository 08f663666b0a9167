"""Small requests of one client beside the costly ones of another, at the services with their packaged models.

    python -m benchmarks.fair_batches [--seconds 10] [--rows predict texts ...]

One client sends small requests, four a second whatever the service does. Beside it, the other, a process of its own,
has eight costly ones under way at any time, of the largest size that the defaults allow. The seconds of a small
request, alone and beside them, and their ratio. The row `refused` has prompts that are longer than the context, which
end in a 413.
"""

import argparse
import asyncio
import base64
import io
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.fair_streams import TIMEOUT
from benchmarks.record import record
from benchmarks.served import served

RATE_PER_S = 4.0
NUM_COSTLY = 8
START_S = 4.0  # in which the costly requests begin one after the other
WORDS = ["a", "yellow", "square", "left", "of", "blue", "circle", "red", "green", "two", "one", "big", "small"]

Body = dict[str, Any]
# Each process draws its own, or the small client's inputs would be in the caches after the costly client's.
_draw = np.random.default_rng(os.getpid())
_numbers = itertools.count(os.getpid() * 1_000_000)


def text(num_words: int = 8) -> str:
    """Make a text that no cache knows."""
    return f"{' '.join(_draw.choice(WORDS, num_words))} {next(_numbers)}"


def image() -> str:
    data = io.BytesIO()
    Image.fromarray(_draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def premises(number: int) -> Body:
    return {"task": "inferences", "inputs": [{"premise": text(), "hypothesis": text()} for _ in range(number)]}


def captions(number: int, **options: bool) -> Body:
    return {"image": image(), "captions": [text() for _ in range(number)], **options}


@dataclass(frozen=True)
class Row:
    """A service's route, makers of costly and of small bodies, and the route of the costly ones where it is another.

    A `gallery` is a collection of so many images, made before.
    """

    service: str
    path: str
    costly: Callable[[], Body]
    small: Callable[[], Body]
    costly_path: str = ""
    gallery: int = 0


def answer() -> Body:
    return {"prompt": text(), "max_tokens": 2, "ignore_eos": True}


ROWS = {
    "predict": Row("predict", "/predict", lambda: premises(2048), lambda: premises(1)),
    "captions": Row("score", "/score", lambda: captions(1024), lambda: captions(2)),
    "explain": Row("score", "/score", lambda: captions(64, explain=True), lambda: captions(2)),
    "negatives": Row(
        "score",
        "/hard-negatives",
        lambda: {"captions": [text(200)[:1000] for _ in range(32)]},
        lambda: {"caption": text()},
    ),
    "texts": Row("embed", "/embed", lambda: {"texts": [text() for _ in range(4096)]}, lambda: {"texts": [text()]}),
    "conditions": Row(
        "embed",
        "/embed",
        lambda: {"images": [image() for _ in range(32)], "condition": [text(3) for _ in range(64)]},
        lambda: {"images": [image()], "condition": text(3)},
    ),
    "searches": Row(
        "embed",
        "/embed",
        lambda: {"text": text(), "condition": text(3)},
        lambda: {"images": [image()], "condition": text(3)},
        "/collections/gallery/search",
        gallery=1500,
    ),
    "refused": Row("generate", "/v1/completions", lambda: {"prompt": text(20_000), "max_tokens": 1}, answer),
    "prompts": Row(
        "generate", "/v1/completions", lambda: {"prompt": [text(100) for _ in range(128)], "max_tokens": 1}, answer
    ),
    "answers": Row(
        "generate",
        "/v1/completions",
        lambda: {"prompt": text(), "n": 16, "max_tokens": 4096, "ignore_eos": True, "temperature": 1},
        answer,
    ),
    "documents": Row(
        "generate",
        "/v1/completions",
        lambda: {"query": text(), "documents": [text(6) for _ in range(256)]},
        answer,
        "/v1/rerank",
    ),
}


async def ask(session: aiohttp.ClientSession, url: str, row: Row) -> float:
    """Send a small request; returns its seconds."""
    began = time.perf_counter()
    async with session.post(url + row.path, json=row.small()) as response:
        assert response.status == 200, await response.text()
        await response.read()
    return time.perf_counter() - began


async def open_loop(session: aiohttp.ClientSession, url: str, row: Row, seconds: float) -> list[float]:
    tasks = []
    for _ in range(int(seconds * RATE_PER_S)):
        tasks.append(asyncio.create_task(ask(session, url, row)))
        await asyncio.sleep(1 / RATE_PER_S)
    return list(await asyncio.gather(*tasks))


async def send_costly(url: str, row: Row) -> None:
    """Keep `NUM_COSTLY` requests under way."""
    async with aiohttp.ClientSession(timeout=TIMEOUT, headers={"x-fovea-client": "large"}) as session:

        async def again_and_again(first_s: float) -> None:
            await asyncio.sleep(first_s)
            while True:
                async with session.post(url + (row.costly_path or row.path), json=row.costly()) as response:
                    await response.read()
                    if response.status == 503:
                        await asyncio.sleep(0.2)

        await asyncio.gather(*(again_and_again(START_S * k / NUM_COSTLY) for k in range(NUM_COSTLY)))


def _send_costly(url: str, name: str) -> None:
    asyncio.run(send_costly(url, ROWS[name]))


@asynccontextmanager
async def beside_costly(url: str, name: str) -> AsyncIterator[None]:
    """Send the costly requests from a process of its own: making their bodies takes the small client no time."""
    process = multiprocessing.get_context("spawn").Process(target=_send_costly, args=(url, name), daemon=True)
    process.start()
    try:
        await asyncio.sleep(2 * START_S)
        yield
    finally:
        process.kill()
        process.join()


async def fill_gallery(session: aiohttp.ClientSession, url: str, num_images: int) -> None:
    async with session.put(f"{url}/collections/gallery") as response:
        assert response.status < 300, await response.text()
    for start in range(0, num_images, 100):
        images = [{"id": f"{number}", "image": image()} for number in range(start, start + 100)]
        async with session.post(f"{url}/collections/gallery/images?wait=true", json={"images": images}) as response:
            assert response.status == 201, await response.text()


async def measure(name: str, seconds: float) -> dict[str, float]:
    row = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "FOVEA_STORE_URL": (Path(folder) / "store").as_uri(),
            "FOVEA_CHECKPOINT_CACHE_DIR": f"{folder}/checkpoints",
            "FOVEA_EMBED_COLLECTIONS_DIR": f"{folder}/collections",
        }
        port = f"FOVEA_{row.service.upper()}_PORT"
        async with (
            served(f"services.{row.service}", port, settings) as url,
            aiohttp.ClientSession(timeout=TIMEOUT, headers={"x-fovea-client": "small"}) as small,
        ):
            if row.gallery:
                await fill_gallery(small, url, row.gallery)
            await open_loop(small, url, row, 1)
            alone = await open_loop(small, url, row, seconds)
            async with beside_costly(url, name):
                together = await open_loop(small, url, row, seconds)
    return {
        "alone_s": round(median(alone), 4),
        "beside_s": round(median(together), 4),
        "worst_beside_s": round(max(together), 4),
        "ratio": round(median(together) / median(alone), 2),
    }


async def measure_all(names: Sequence[str], seconds: float) -> dict[str, Any]:
    return {name: await measure(name, seconds) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each part")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options = parser.parse_args()
    result = asyncio.run(measure_all(options.rows, options.seconds))
    table = Table("beside", "alone, median s", "beside, median s", "worst", "ratio")
    for name, figures in result.items():
        table.add_row(name, *map(str, figures.values()))
    Console().print(table)
    record("fair_batches", result)


if __name__ == "__main__":
    main()
