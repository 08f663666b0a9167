"""Search among 100,000 images of 512 numbers over HTTP against bare FAISS in this process over the same vectors.

python -m benchmarks.search [--images 100000] [--queries 200] [--rounds 5]

A model of random weights embeds random pictures; the collection is filled over HTTP, then served twice: exact, and
with inverted lists. Each is compared, in turn, with FAISS's own index of that kind on one thread per query: the
milliseconds of one query at a time and queries per second of eight users. Queries name a stored image, whose embedding
is in the result cache, so that only search and HTTP are measured. Recall@10 is against the exact answers of the same
side: the pictures are so similar that their order depends on the last bits of a query.
"""

import argparse
import asyncio
import io
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import faiss
import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.collection_client import CollectionClient
from benchmarks.record import record, summary
from benchmarks.served import served_embed
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.collections.index.snapshots import load_snapshot
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.focallens import FocalLens
from services.embed.model.focallens_engine import save_focallens
from services.nn.clip_model import create_clip

WIDTH = 512
SIDE = 32
CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": WIDTH,
        "vision_cfg": {"image_size": SIDE, "patch_size": 16, "width": 128, "layers": 1, "head_width": 64},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
    }
}
CHUNK = 10_000
K = 10
NUM_USERS = 8
Vectors = NDArray[np.float32]


def publish(folder: Path) -> None:
    torch.manual_seed(0)
    clip = create_clip(CONFIG)
    model = FocalLens(clip.model, visibility="readout")
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    save_focallens(model, clip, folder / "checkpoint")
    Store.open((folder / "store").as_uri()).publish(
        "wide", folder / "checkpoint", CheckpointInfo(kind="focallens-clip")
    )


def pictures(num_images: int) -> Iterator[dict[str, bytes]]:
    """Yield images of coarse random colours, CHUNK files at a time."""
    generator = np.random.default_rng(0)
    for start in range(0, num_images, CHUNK):
        files = {}
        for number in range(start, min(start + CHUNK, num_images)):
            coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8))
            file = io.BytesIO()
            coarse.resize((SIDE, SIDE)).save(file, "PNG", compress_level=1)
            files[name_of(number)] = file.getvalue()
        yield files


def name_of(number: int) -> str:
    return f"{number:06}"


def clustered(size: int) -> Vectors:
    """Draw unit vectors (N, E) around 50 overlapping centres, near a subspace of 32 dimensions."""
    rng = np.random.default_rng(0)
    subspace, centres = rng.standard_normal((32, WIDTH)), rng.standard_normal((50, 32))
    latent = centres[rng.integers(0, 50, size)] + 0.8 * rng.standard_normal((size, 32))
    vectors = (latent @ subspace).astype(np.float32) + 1.5 * rng.standard_normal((size, WIDTH), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def stored_vectors(folder: Path) -> Vectors:
    """Return the vectors that the service indexed, in the order of the images."""
    (path,) = (folder / "collections").rglob("*.index")
    with path.open("rb") as file:
        identity = orjson.loads(file.readline())["identity"]
    index = VectorIndex.holding(*load_snapshot(path, identity=identity), IndexOptions())
    vectors, is_held = index.vectors(index.rows)
    assert is_held.all()
    return vectors


class OverHttp:
    """A collection, queried by the names of its own images."""

    def __init__(self, collection: CollectionClient, names: Sequence[str]) -> None:
        self._collection = collection
        self._names = names

    async def answers(self) -> list[set[str]]:
        return [{hit["id"] for hit in (await self._ask(name))["results"]} for name in self._names]

    async def one_by_one_ms(self) -> float:
        return median([await timed(self._ask(name)) for name in self._names]) * 1e3

    async def per_second(self) -> float:
        waiting = iter(self._names)

        async def user() -> None:
            for name in waiting:
                await self._ask(name)

        seconds = await timed(asyncio.gather(*(user() for _ in range(NUM_USERS))))
        return len(self._names) / seconds

    async def _ask(self, name: str) -> dict[str, Any]:
        return await self._collection.search(id=name, k=K)


class Bare:
    """A FAISS index, queried with the same vectors for one more answer, since the query itself is one."""

    def __init__(self, index: Any, queries: Vectors) -> None:
        self._index = index
        self._queries = queries

    def answers(self) -> list[set[str]]:
        return [{name_of(place) for place in self._ask(query)} for query in self._queries]

    def one_by_one_ms(self) -> float:
        seconds = []
        faiss.omp_set_num_threads(1)
        for query in self._queries:
            began = time.perf_counter()
            self._ask(query)
            seconds.append(time.perf_counter() - began)
        return median(seconds) * 1e3

    def per_second(self) -> float:
        with ThreadPoolExecutor(NUM_USERS, initializer=faiss.omp_set_num_threads, initargs=(1,)) as threads:
            began = time.perf_counter()
            list(threads.map(self._ask, self._queries))
            return len(self._queries) / (time.perf_counter() - began)

    def _ask(self, query: Vectors) -> list[int]:
        places: list[int] = self._index.search(query[None], K + 1)[1][0].tolist()
        return places


async def timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def compare(http: OverHttp, bare: Bare, num_rounds: int) -> dict[str, Any]:
    await http.answers()  # the queries' embeddings are cached afterwards
    http_ms, bare_ms, http_per_s, bare_per_s = [], [], [], []
    for _ in range(num_rounds):
        bare_ms.append(bare.one_by_one_ms())
        http_ms.append(await http.one_by_one_ms())
        bare_per_s.append(bare.per_second())
        http_per_s.append(await http.per_second())
    return {
        "http_ms": summary(http_ms),
        "faiss_ms": summary(bare_ms),
        "added_ms": summary([a - b for a, b in zip(http_ms, bare_ms, strict=True)]),
        "http_per_s": summary(http_per_s),
        "faiss_per_s": summary(bare_per_s),
        "ratio_per_s": summary([a / b for a, b in zip(http_per_s, bare_per_s, strict=True)]),
    }


async def when_in_lists(collection: CollectionClient) -> dict[str, Any]:
    """Return the unconditional index's description, once its lists were built in the background."""
    while True:
        index: dict[str, Any] = (await collection.describe())["conditions"][0]
        if index["kind"] == "ivf":
            return index
        await asyncio.sleep(0.5)


def recall(answers: list[set[str]], exact: list[set[str]]) -> float:
    return round(float(np.mean([len(a & b) / K for a, b in zip(answers, exact, strict=True)])), 4)


async def measure(folder: Path, num_images: int, num_queries: int, num_rounds: int) -> dict[str, Any]:
    publish(folder)
    names = [name_of(n) for n in np.random.default_rng(1).permutation(num_images)[:num_queries].tolist()]
    exact_settings = {"FOVEA_EMBED_MODELS": "wide", "FOVEA_EMBED_INDEX_MAX_EXACT": str(2 * num_images)}
    result: dict[str, Any] = {"images": num_images, "width": WIDTH}
    async with aiohttp.ClientSession() as session:
        async with served_embed(folder, **exact_settings) as url:
            collection = CollectionClient(session, f"{url}/collections/many")
            await collection.create()
            began = time.perf_counter()
            for files in pictures(num_images):
                await collection.add(files)
            await collection.seconds_until_ready()
            result["filled_images_per_s"] = round(num_images / (time.perf_counter() - began), 1)
        vectors = stored_vectors(folder)
        queries = vectors[[int(name) for name in names]]
        flat = faiss.IndexFlatIP(WIDTH)
        flat.add(vectors)
        async with served_embed(folder, **exact_settings) as url:
            http = OverHttp(CollectionClient(session, f"{url}/collections/many"), names)
            result["exact"] = await compare(http, Bare(flat, queries), num_rounds)
            exact = await http.answers()
        async with served_embed(folder, **exact_settings | {"FOVEA_EMBED_INDEX_MAX_EXACT": "1000"}) as url:
            collection = CollectionClient(session, f"{url}/collections/many")
            index = await when_in_lists(collection)
            http = OverHttp(collection, names)
            bare_exact = Bare(flat, queries).answers()
            bare = Bare(inverted_lists(vectors, index["recall_at_10"], queries, bare_exact), queries)
            result["approximate"] = await compare(http, bare, num_rounds)
            result["approximate"]["recall_at_10"] = recall(await http.answers(), exact)
            result["approximate"]["faiss_recall_at_10"] = recall(bare.answers(), bare_exact)
    return result


def inverted_lists(vectors: Vectors, min_recall: float, queries: Vectors, exact: list[set[str]]) -> Any:
    """Build FAISS's IVF with as many lists, with enough probes for the same recall."""
    index = faiss.index_factory(WIDTH, f"IVF{int(4 * len(vectors) ** 0.5)},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = 1
    while recall(Bare(index, queries).answers(), exact) < min_recall and index.nprobe < index.nlist:
        index.nprobe = min(index.nlist, 2 * index.nprobe)
    return index


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=100_000, help="Images in the collection.")
    parser.add_argument("--queries", type=int, default=200, help="Searches in a round.")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of each comparison.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), arguments.images, arguments.queries, arguments.rounds))
    table = Table("index", "figure", "median", "least to greatest", title=f"Search among {arguments.images} images")
    for kind in ("exact", "approximate"):
        for figure, spread in result[kind].items():
            if isinstance(spread, dict):
                table.add_row(kind, figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
            else:
                table.add_row(kind, figure, f"{spread:g}", "")
    Console().print(table)
    record("search", result)


if __name__ == "__main__":
    main()
