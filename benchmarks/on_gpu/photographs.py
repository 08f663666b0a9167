"""Photographs a second: decoded, embedded by the bare engine, and over HTTP, to see which of them limits."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import embed
from benchmarks.calibration import timed
from benchmarks.on_gpu.measuring import IS_GPU, NUM_ROUNDS, Figures, Sizes, rounded
from benchmarks.photographs import Photographs
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.items import Pixels
from services.nn.devices import DeviceOptions

BATCH_SIZE = 64
CONCURRENCY = 64


def photographs(sizes: Sizes) -> Iterator[tuple[str, Figures]]:
    with tempfile.TemporaryDirectory() as folder:
        rates = asyncio.run(measure(Path(folder), sizes))
    medians = {name: median(some[1:]) for name, some in rates.items()}  # the first round warms up
    yield "images_per_s", rounded(medians)
    yield "over_engine", rounded({name: own / medians["engine"] for name, own in medians.items()})


async def measure(folder: Path, sizes: Sizes) -> dict[str, list[float]]:
    """Measure images a second of each part by turns."""
    embed.publish(folder, sizes.clip_config(), ("readout",))
    engine = FocalLensEngine.load(folder / "readout", DeviceOptions(device="cuda" if IS_GPU else "cpu"))
    num_cores = len(os.sched_getaffinity(0))
    own = {
        "FOVEA_EMBED_NUM_DECODE_THREADS": str(num_cores),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "other-collections"),  # a folder has one process
    }
    taken = Photographs()
    rates: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(num_cores))
        clients = {
            "http": await stack.enter_async_context(embed.served(folder, "readout")),
            f"http, {num_cores} decoding threads": await stack.enter_async_context(
                embed.served(folder, "readout", **own)
            ),
        }
        for _ in range(NUM_ROUNDS + 1):
            files = taken.take(sizes.photographs)
            began = time.perf_counter()
            pixels = list(threads.map(partial(transformed, engine), files))
            rates.setdefault("decoding", []).append(len(files) / (time.perf_counter() - began))
            rates.setdefault("engine", []).append(len(files) / timed(partial(run, engine, pixels)))
            for name, client in clients.items():
                files = taken.take(sizes.photographs)
                rates.setdefault(name, []).append(await client.images_per_s(files, CONCURRENCY))
    return rates


def transformed(engine: FocalLensEngine, file: bytes) -> Pixels:
    """Decode as the service does."""
    return engine.transform(decode_image(file, ImageLimits(), side=engine.image_side))


def run(engine: FocalLensEngine, pixels: Sequence[Pixels]) -> None:
    items = [item for number, one in enumerate(pixels) for item in engine.prepare_pixels(one, str(number), [None])]
    for start in range(0, len(items), BATCH_SIZE):
        engine.run_batch(items[start : start + BATCH_SIZE])
