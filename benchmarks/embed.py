"""The embed service against a plain torch loop, with ViT-B-32 of random weights and 640 x 480 JPEG photographs.

python -m benchmarks.embed [--rounds 5] [--images 192] [--calls 30]

Side by side on one machine, in alternating rounds: images per second over HTTP at concurrency 32 against a loop over
batches of 32 that decodes, transforms and computes the same; the time that HTTP adds to a single image; three
conditions in one call against three calls. The client runs on the same cores as the server, and every image is new
to the cache.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.photographs import Photographs
from benchmarks.record import record, summary
from benchmarks.served import served_embed
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.focallens import FocalLens, Visibility
from services.embed.model.focallens_engine import FocalLensCheckpoint, load_focallens, save_focallens
from services.nn.clip_model import create_clip, open_clip

ARCHITECTURE = "ViT-B-32"
CONCURRENCY = 32
BATCH_SIZE = 32
CONDITIONS = ("What color is it?", "Which shape has it?", "What is in the background?")
VISIBILITIES: tuple[Visibility, ...] = ("readout", "full")


class PlainLoop:
    """The loop of an open_clip user: decode with PIL, open_clip's transform, a forward pass with all threads."""

    def __init__(self, checkpoint: FocalLensCheckpoint) -> None:
        self._model = checkpoint.model
        self._transform = open_clip().image_transform(
            checkpoint.transform.size,
            is_train=False,
            mean=checkpoint.transform.mean,
            std=checkpoint.transform.std,
        )

    def embed(self, files: Sequence[bytes]) -> np.ndarray[Any, Any]:
        pixels = torch.stack([self._transform(Image.open(BytesIO(file)).convert("RGB")) for file in files])
        with torch.inference_mode():
            features: np.ndarray[Any, Any] = self._model.encode_images(pixels).numpy()
        return features

    def images_per_s(self, files: Sequence[bytes]) -> float:
        began = time.perf_counter()
        for start in range(0, len(files), BATCH_SIZE):
            self.embed(files[start : start + BATCH_SIZE])
        return len(files) / (time.perf_counter() - began)


@dataclass(frozen=True)
class Effort:
    """Effort: rounds of each comparison, images per side and round of throughput, calls per round of latency."""

    num_rounds: int
    num_images: int
    num_calls: int


@dataclass(frozen=True)
class Client:
    """A client of one served process."""

    session: aiohttp.ClientSession
    url: str

    async def embed(self, file: bytes, conditions: Sequence[str] = ()) -> None:
        query = [("condition", condition) for condition in conditions]
        headers = {"content-type": "image/jpeg"}
        async with self.session.post(f"{self.url}/embed", params=query, data=file, headers=headers) as response:
            body = await response.read()
            assert response.status == 200, body

    async def images_per_s(self, files: Sequence[bytes], concurrency: int = CONCURRENCY) -> float:
        waiting = iter(files)

        async def user() -> None:
            for file in waiting:
                await self.embed(file)

        began = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(concurrency)))
        return len(files) / (time.perf_counter() - began)


def publish(
    folder: Path, model_config: dict[str, Any] | None = None, visibilities: Sequence[Visibility] = VISIBILITIES
) -> None:
    """Publish one model per visibility, named after it, to the store at `folder`; ARCHITECTURE unless another is
    given in open_clip's form."""
    clip = create_clip({"model_cfg": model_config or open_clip().get_model_config(ARCHITECTURE)})
    for visibility in visibilities:
        save_focallens(FocalLens(clip.model, visibility=visibility), clip, folder / visibility)
        store = Store.open((folder / "store").as_uri())
        store.publish(visibility, folder / visibility, CheckpointInfo(kind="focallens-clip"))


@asynccontextmanager
async def served(folder: Path, model: str, **settings: str) -> AsyncIterator[Client]:
    """A service process, with default settings beside those given."""
    connections = aiohttp.TCPConnector(limit=0)
    async with (
        served_embed(folder, FOVEA_EMBED_MODELS=model, **settings) as url,
        aiohttp.ClientSession(connector=connections) as session,
    ):
        yield Client(session, url)


async def compare_throughput(
    client: Client, loop: PlainLoop, photographs: Photographs, effort: Effort
) -> dict[str, Any]:
    """Measure images per second of both, and their ratio, round by round."""
    over_http, plain = [], []
    for _ in range(effort.num_rounds + 1):
        plain.append(loop.images_per_s(photographs.take(effort.num_images)))
        over_http.append(await client.images_per_s(photographs.take(effort.num_images)))
    ratios = [a / b for a, b in zip(over_http[1:], plain[1:], strict=True)]  # the first round warms both up
    return {
        "concurrency": CONCURRENCY,
        "images_per_round": effort.num_images,
        "http_images_per_s": summary(over_http[1:]),
        "loop_images_per_s": summary(plain[1:]),
        "ratio": summary(ratios),
    }


async def compare_latency(client: Client, loop: PlainLoop, photographs: Photographs, effort: Effort) -> dict[str, Any]:
    """Measure milliseconds for a single image: medians of each round, and the share of HTTP."""
    over_http, plain = [], []
    for _ in range(effort.num_rounds):
        plain.append(median([seconds_of(loop, file) for file in photographs.take(effort.num_calls)]) * 1e3)
        over_http.append(median([await timed(client.embed(file)) for file in photographs.take(effort.num_calls)]) * 1e3)
    return {
        "http_ms": summary(over_http),
        "loop_ms": summary(plain),
        "added_ms": summary([a - b for a, b in zip(over_http, plain, strict=True)]),
    }


async def compare_conditions(client: Client, photographs: Photographs, effort: Effort) -> dict[str, Any]:
    """Measure milliseconds for one image under three conditions: in one call, and in three."""
    one_call, three_calls = [], []
    await client.embed(photographs.take(1)[0], CONDITIONS)  # afterwards the conditions' tokens are cached
    for _ in range(effort.num_rounds):
        one_call.append(
            median([await timed(client.embed(file, CONDITIONS)) for file in photographs.take(effort.num_calls)]) * 1e3
        )
        three_calls.append(
            median([await timed(three(client, file)) for file in photographs.take(effort.num_calls)]) * 1e3
        )
    return {
        "one_call_ms": summary(one_call),
        "three_calls_ms": summary(three_calls),
        "ratio": summary([a / b for a, b in zip(three_calls, one_call, strict=True)]),
    }


async def three(client: Client, file: bytes) -> None:
    for condition in CONDITIONS:
        await client.embed(file, [condition])


async def timed(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def seconds_of(loop: PlainLoop, file: bytes) -> float:
    began = time.perf_counter()
    loop.embed([file])
    return time.perf_counter() - began


async def measure(folder: Path, effort: Effort) -> dict[str, Any]:
    publish(folder)
    loop = PlainLoop(load_focallens(folder / VISIBILITIES[0]))
    photographs = Photographs()
    result: dict[str, Any] = {"architecture": ARCHITECTURE, "torch_threads": torch.get_num_threads()}
    for visibility in VISIBILITIES:
        async with served(folder, visibility) as client:
            if visibility == VISIBILITIES[0]:
                result["throughput"] = await compare_throughput(client, loop, photographs, effort)
                result["latency"] = await compare_latency(client, loop, photographs, effort)
            result[f"three_conditions_{visibility}"] = await compare_conditions(client, photographs, effort)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of each comparison.")
    parser.add_argument("--images", type=int, default=192, help="Images of each side in a round of throughput.")
    parser.add_argument("--calls", type=int, default=30, help="Single calls of each side in a round of latency.")
    arguments = parser.parse_args()
    effort = Effort(arguments.rounds, arguments.images, arguments.calls)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), effort))
    table = Table("comparison", "figure", "median", "least to greatest", title=f"Embed service, {ARCHITECTURE}")
    for comparison, figures in result.items():
        for figure, spread in figures.items() if isinstance(figures, dict) else ():
            if isinstance(spread, dict):
                table.add_row(comparison, figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
    Console().print(table)
    record("embed", result)


if __name__ == "__main__":
    main()
