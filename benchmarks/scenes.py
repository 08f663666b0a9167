"""2,000 rendered scenes, added and searched over HTTP through the gateway: mAP by condition, against CLIP's.

python -m benchmarks.scenes [--images-per-class 125] [--queries 500]

The scenes, the conditions and their wordings are those of `fovea evaluate focallens colorshape`, which embeds without
a service: the figures of both must agree. Every condition with an asterisk was never asked in tuning. CLIP has one
embedding for all conditions; its figures come from the packaged base checkpoint over the same images and queries.
"""

import argparse
import asyncio
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.collection_client import CollectionClient
from benchmarks.record import record
from benchmarks.served import served_embed, served_gateway
from services.embed.evaluation.colorshape import (
    TEST_INSTRUCTIONS,
    UNSEEN_CONDITIONS,
    ColorShapeProtocol,
    labels_of,
    rendered,
)
from services.embed.evaluation.embedders import load_embedder
from services.jobs.colorshape import Scenes

CONDITIONS = ("color", "shape", "both", "size", "background", "position", "texture", "size and color")
SEARCHES_AT_ONCE = 8


def average_precision(is_relevant: NDArray[np.bool_]) -> float:
    """Return the average precision of a ranking of all other images, best first; NaN where none is relevant."""
    ranks = np.flatnonzero(is_relevant) + 1
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else float("nan")


async def mean_ap(
    collection: CollectionClient, condition: str | None, labels: NDArray[np.int64], queries: Sequence[int]
) -> float:
    """Measure leave-one-out mAP in points, from the whole ranking of every query."""
    waiting = iter(queries)
    precisions = []

    async def user() -> None:
        for query in waiting:
            answer = await collection.search(id=name_of(query), condition=condition, k=len(labels))
            assert answer["index"]["state"] == "ready" and answer["index"]["exact"], answer["index"]
            found = [int(hit["id"].removesuffix(".png")) for hit in answer["results"]]
            assert len(found) == len(labels) - 1 and query not in found
            precisions.append(average_precision(labels[found] == labels[query]))

    await asyncio.gather(*(user() for _ in range(SEARCHES_AT_ONCE)))
    return 100 * float(np.nanmean(precisions))


def clip_mean_ap(embeddings: NDArray[np.float32], labels: NDArray[np.int64], queries: Sequence[int]) -> float:
    precisions = []
    for query in queries:
        order = np.argsort(-(embeddings @ embeddings[query]), kind="stable")
        order = order[order != query]
        precisions.append(average_precision(labels[order] == labels[query]))
    return 100 * float(np.nanmean(precisions))


def name_of(place: int) -> str:
    return f"{place:05}.png"


def png_files(scenes: Scenes, side: int) -> dict[str, bytes]:
    files = {}
    for place, image in enumerate(rendered(scenes, side)):
        file = io.BytesIO()
        image.save(file, "PNG")
        files[name_of(place)] = file.getvalue()
    return files


async def measure(folder: Path, protocol: ColorShapeProtocol, num_queries: int) -> dict[str, Any]:
    scenes = protocol.scenes()
    store = (folder / "store").as_uri()
    generator = np.random.default_rng(0)
    async with served_embed(folder, FOVEA_EMBED_MAX_K=str(len(scenes))) as embed, served_gateway(embed) as gateway:
        clip = load_embedder("clip-shapes", store_url=store)
        files = png_files(scenes, clip.image_size)
        async with aiohttp.ClientSession() as session:
            collection = CollectionClient(session, f"{gateway}/collections/scenes")
            seen = [TEST_INSTRUCTIONS[name] for name in CONDITIONS if name not in UNSEEN_CONDITIONS]
            await collection.create(seen)
            began = time.perf_counter()
            await collection.add(files)
            added_s = time.perf_counter() - began
            await collection.seconds_until_ready()
            ready_s = time.perf_counter() - began
            queries = sorted(generator.permutation(len(scenes))[:num_queries].tolist())
            conditional, plain = {}, {}
            for name in track(CONDITIONS, "conditions"):
                labels = labels_of(scenes, name)
                await collection.search(id=name_of(0), condition=TEST_INSTRUCTIONS[name])
                await collection.seconds_until_ready(TEST_INSTRUCTIONS[name])
                conditional[name] = await mean_ap(collection, TEST_INSTRUCTIONS[name], labels, queries)
                plain[name] = await mean_ap(collection, None, labels, queries)
    (embeddings,) = clip.embed_images(rendered(scenes, clip.image_size), [None])
    return {
        "images": len(scenes),
        "queries": num_queries,
        "never_asked": list(UNSEEN_CONDITIONS),
        "added_images_per_s": round(len(scenes) / added_s, 1),
        "indexed_images_per_s": round(len(scenes) / ready_s, 1),
        "clip_map": {name: round(clip_mean_ap(embeddings, labels_of(scenes, name), queries), 2) for name in CONDITIONS},
        "plain_map": {name: round(value, 2) for name, value in plain.items()},
        "conditional_map": {name: round(value, 2) for name, value in conditional.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images-per-class", type=int, default=125, help="Of 16 classes.")
    parser.add_argument("--queries", type=int, default=500, help="Images that are asked for their neighbours.")
    arguments = parser.parse_args()
    protocol = ColorShapeProtocol(num_per_class=arguments.images_per_class)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), protocol, arguments.queries))
    table = Table(title=f"{result['images']} scenes over HTTP, mAP in points (* never asked in tuning)")
    table.add_column("embedding")
    for name in CONDITIONS:
        table.add_column(f"{name}*" if name in UNSEEN_CONDITIONS else name, justify="right")
    for title, row in (("CLIP", "clip_map"), ("no condition", "plain_map"), ("under the condition", "conditional_map")):
        table.add_row(title, *(f"{result[row][name]:.1f}" for name in CONDITIONS))
    Console(width=140).print(table)
    record("scenes", result)


if __name__ == "__main__":
    main()
