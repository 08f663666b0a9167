"""Adding images to a collection over HTTP against a plain torch loop that only embeds them.

python -m benchmarks.ingest [--rounds 5] [--images 256]

Two models: ViT-B-32 of random weights with 640 x 480 JPEG photographs, and the packaged starter with rendered scenes.
An image counts as ingested when it is stored durably, its state is kept where there is room, and the unconditional
index holds it; the loop decodes, transforms and embeds the same files and keeps nothing. In turns, on the same cores.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.collection_client import CollectionClient
from benchmarks.embed import PlainLoop, publish
from benchmarks.photographs import Photographs
from benchmarks.record import record, summary
from benchmarks.scenes import png_files
from benchmarks.served import served_embed
from services.embed.model.focallens_engine import load_focallens
from services.jobs.colorshape import sample_scenes

STARTER = Path(__file__).parents[1] / "services" / "embed" / "starter" / "focallens-shapes"
STARTER_SIDE = 64
SCENES_PER_PHOTOGRAPH = 8


async def ingested_per_s(collection: CollectionClient, files: Sequence[bytes]) -> float:
    named = {f"{time.monotonic_ns()}-{place}": data for place, data in enumerate(files)}
    began = time.perf_counter()
    await collection.add(named)
    await collection.seconds_until_ready()
    return len(files) / (time.perf_counter() - began)


async def compare(url: str, loop: PlainLoop, rounds: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """Measure images per second of both, and their ratio, round by round; the first one warms both up."""
    ingested, plain = [], []
    async with aiohttp.ClientSession() as session:
        collection = CollectionClient(session, f"{url}/collections/ingested")
        await collection.create()
        for files in rounds:
            plain.append(loop.images_per_s(files))
            ingested.append(await ingested_per_s(collection, files))
    return {
        "images_per_round": len(rounds[0]),
        "ingested_images_per_s": summary(ingested[1:]),
        "loop_images_per_s": summary(plain[1:]),
        "ratio": summary([a / b for a, b in zip(ingested[1:], plain[1:], strict=True)]),
    }


async def measure(folder: Path, num_rounds: int, num_images: int) -> dict[str, Any]:
    publish(folder / "photographs")
    photographs = Photographs()
    loop = PlainLoop(load_focallens(folder / "photographs" / "readout"))
    async with served_embed(folder / "photographs", FOVEA_EMBED_MODELS="readout") as url:
        rounds = [photographs.take(num_images) for _ in range(num_rounds + 1)]
        result = {"torch_threads": torch.get_num_threads(), "photographs": await compare(url, loop, rounds)}
    num_scenes = SCENES_PER_PHOTOGRAPH * num_images
    scenes = sample_scenes((num_rounds + 1) * num_scenes, torch.Generator().manual_seed(3))
    files = list(png_files(scenes, STARTER_SIDE).values())
    async with served_embed(folder / "scenes") as url:
        rounds = [files[at : at + num_scenes] for at in range(0, len(files), num_scenes)]
        result["scenes"] = await compare(url, PlainLoop(load_focallens(STARTER)), rounds)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of each comparison.")
    parser.add_argument("--images", type=int, default=256, help="Photographs of each side in a round.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), arguments.rounds, arguments.images))
    table = Table("images", "figure", "median", "least to greatest", title="Ingest over HTTP")
    for kind in ("photographs", "scenes"):
        for figure, spread in result[kind].items():
            if isinstance(spread, dict):
                table.add_row(kind, figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
    Console().print(table)
    record("ingest", result)


if __name__ == "__main__":
    main()
