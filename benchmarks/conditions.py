"""A condition that a collection of 2,000 images has never been asked about, on the packaged starter over HTTP.

python -m benchmarks.conditions [--images 2000] [--rounds 5]

Two measurements. The time until the condition's index is complete, with image states kept (the images are re-read) and
without (they are decoded and encoded again): two processes, asked in turn. And the first answer under such a condition,
from a short list of images that are read at once: its latency compared with that of a complete index, and its recall@10
against the exact answer. Every condition has its own wording, so that none is cached.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.collection_client import CollectionClient
from benchmarks.record import record, summary
from benchmarks.scenes import png_files
from benchmarks.served import served_embed
from services.jobs.colorshape import sample_scenes

SIDE = 64
ASPECTS = ("color", "shape", "size", "position", "background", "texture")
FRAMES = (
    "Look closely at the {} of the thing.",
    "Which {} does the picture have?",
    "Tell me the {} that you see here.",
    "I care about the {} alone.",
    "Sort these by {}.",
    "Name its {} in one word.",
    "Is the {} alike?",
    "Compare them in {} only.",
    "Describe nothing but the {}.",
    "Focus on {}.",
)
QUERIES_PER_ROUND = 8


def new_conditions() -> Iterator[str]:
    """Return wordings that have not been asked yet."""
    return iter([frame.format(aspect) for frame, aspect in itertools.product(FRAMES, ASPECTS)])


async def seconds_to_index(collection: CollectionClient, condition: str) -> float:
    began = time.perf_counter()
    await collection.create([condition])
    await collection.seconds_until_ready(condition)
    return time.perf_counter() - began


async def first_answer(collection: CollectionClient, query: str, condition: str) -> tuple[float, float, float, bool]:
    """Seconds of the first search under a condition and of one when its index is ready, recall@10, whether it was
    an exact answer."""
    began = time.perf_counter()
    first = await collection.search(id=query, condition=condition, k=10)
    first_s = time.perf_counter() - began
    await collection.seconds_until_ready(condition)
    began = time.perf_counter()
    ready = await collection.search(id=query, condition=condition, k=10)
    ready_s = time.perf_counter() - began
    assert ready["index"]["exact"]
    wanted = {hit["id"] for hit in ready["results"]}
    return first_s, ready_s, len(wanted & {hit["id"] for hit in first["results"]}) / 10, first["index"]["exact"]


async def measure(folder: Path, num_images: int, num_rounds: int) -> dict[str, Any]:
    scenes = sample_scenes(num_images, torch.Generator().manual_seed(7))
    files = png_files(scenes, SIDE)
    conditions = new_conditions()
    async with (
        served_embed(folder / "kept") as kept_url,
        served_embed(folder / "encoded", FOVEA_EMBED_COLLECTION_STATE_BYTES="0") as encoded_url,
        aiohttp.ClientSession() as session,
    ):
        kept = CollectionClient(session, f"{kept_url}/collections/scenes")
        encoded = CollectionClient(session, f"{encoded_url}/collections/scenes")
        for collection in (kept, encoded):
            await collection.create()
            await collection.add(files)
            await collection.seconds_until_ready()
        reread, reencoded = [], []
        for _ in range(num_rounds + 1):
            condition = next(conditions)
            reread.append(await seconds_to_index(kept, condition))
            reencoded.append(await seconds_to_index(encoded, condition))
        states = (await kept.describe())["image_states"]
        firsts = [
            await first_answer(kept, name, next(conditions))
            for name in itertools.islice(files, 0, num_rounds * QUERIES_PER_ROUND)
        ]
    return {
        "images": num_images,
        "reread_s": summary(reread[1:]),
        "reencoded_s": summary(reencoded[1:]),
        "ratio": summary([b / a for a, b in zip(reread[1:], reencoded[1:], strict=True)]),
        "state_bytes_per_image": states["bytes_per_image"],
        "first_answer_ms": summary([1e3 * first for first, _, _, _ in firsts]),
        "ready_answer_ms": summary([1e3 * ready for _, ready, _, _ in firsts]),
        "first_recall_at_10": round(mean(recall for _, _, recall, _ in firsts), 4),
        "first_answers_exact": sum(is_exact for _, _, _, is_exact in firsts),
        "first_answers": len(firsts),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2000, help="Images in the collection.")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds; each asks new conditions.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), arguments.images, arguments.rounds))
    table = Table("figure", "median", "least to greatest", title=f"A new condition over {arguments.images} images")
    for figure, spread in result.items():
        if isinstance(spread, dict):
            table.add_row(figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
        else:
            table.add_row(figure, f"{spread:g}", "")
    Console().print(table)
    record("conditions", result)


if __name__ == "__main__":
    main()
