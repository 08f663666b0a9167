"""Searches by FAISS on a GPU beside those on the CPU, through the classes that serve them."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.on_gpu.measuring import Sizes, Way, compared
from benchmarks.search import NUM_USERS, WIDTH, K, clustered
from services.embed.collections.index.gpu import first_gpu
from services.embed.collections.index.vector_index import Contents, IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Vectors, VectorTable

NUM_QUERIES = 32
NUM_ROUNDS = 3  # the CPU takes long to compare a million


def index(sizes: Sizes) -> Iterator[tuple[str, Any]]:
    yield "gpu", "FAISS found none" if first_gpu() is None else "FAISS found one"
    for size in sizes.vectors:
        vectors = clustered(size + NUM_QUERIES)
        queries, work = vectors[size:], f"{size} vectors of {WIDTH}"
        indexes = indexes_of(vectors[:size], sizes.max_exact)
        yield f"{work}, recall@10 of lists", indexes["CPU, as served"].recall_at_10
        alone: dict[str, Way] = {name: partial(ask_each, own, queries) for name, own in indexes.items()}
        yield f"{work}, one query at a time", compared(alone, num_steps=NUM_QUERIES, num_rounds=NUM_ROUNDS)
        with ThreadPoolExecutor(NUM_USERS) as threads:
            together: dict[str, Way] = {
                name: partial(ask_each, own, queries, threads.map) for name, own in indexes.items()
            }
            yield f"{work}, {NUM_USERS} at a time", compared(together, num_steps=NUM_QUERIES, num_rounds=NUM_ROUNDS)


def indexes_of(vectors: Vectors, max_exact: int) -> dict[str, VectorIndex]:
    """Make indexes of the same vectors and lists. As served, the CPU searches lists, and a GPU compares all vectors."""
    size, has_gpu = len(vectors), first_gpu() is not None
    table = VectorTable.of(np.arange(1, size + 1), vectors)
    exact = Contents(table.view, through=size)
    options = IndexOptions(max_exact, device="cuda" if has_gpu else "cpu", max_device_bytes=0)
    of_lists = VectorIndex.holding(table, exact, options)
    of_lists.rebuild()
    lists = of_lists.contents.lists
    assert lists is not None, "the vectors are in clusters"
    on_cpu = replace(of_lists.contents, lists=replace(lists, gpu=None, copy=None))
    indexes = {
        "CPU, exact": VectorIndex.holding(table, exact, IndexOptions(size)),
        "CPU, as served": VectorIndex.holding(table, on_cpu, IndexOptions(max_exact)),
    }
    if has_gpu:
        indexes["GPU, as served"] = VectorIndex.holding(table, exact, IndexOptions(max_exact, device="cuda"))
        indexes["GPU, lists"] = of_lists
    return indexes


def ask_each(own: VectorIndex, queries: Vectors, over: Callable[..., Iterable[object]] = map) -> None:
    list(over(lambda query: own.search(query[None], K), queries))
