"""Search among 100,000 vectors of width 512, beside bare FAISS: exact, and approximate at equal recall. One query at a
time on one thread; also what a rebuild and a snapshot take.

python -m benchmarks.index
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.embed.collections.index.snapshots import load_snapshot, save_snapshot
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Rows, Vectors

SIZE, WIDTH, K = 100_000, 512, 10
NUM_QUERIES = 500
# Rounds of the searches alternate; they are short, so that other work on the machine affects all of them alike.
EXACT_ROUNDS, EXACT_PER_ROUND = 80, 2
APPROXIMATE_ROUNDS, APPROXIMATE_PER_ROUND = 40, 100

Search = Callable[[Vectors], Rows]


def clustered(size: int) -> Vectors:
    """Draw unit vectors (N, E) around 50 overlapping centres, near a subspace of 32 dimensions."""
    rng = np.random.default_rng(0)
    subspace, centres = rng.standard_normal((32, WIDTH)), rng.standard_normal((50, 32))
    latent = centres[rng.integers(0, 50, size)] + 0.8 * rng.standard_normal((size, 32))
    vectors = (latent @ subspace).astype(np.float32) + 1.5 * rng.standard_normal((size, WIDTH), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def recall(search: Search, queries: Vectors, exact: Rows) -> float:
    """Return the share of the exact ten that are found, over queries that are not stored."""
    found = np.concatenate([search(queries[i : i + 1]) for i in range(len(queries))])
    return float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, exact, strict=True)]))


def latencies_us(
    searches: dict[str, Search], queries: Vectors, *, rounds: int, per_round: int
) -> dict[str, list[float]]:
    """Measure the median microseconds per query in each round."""
    medians: dict[str, list[float]] = {name: [] for name in searches}
    for round_number in range(rounds + 1):
        for name, search in searches.items():
            samples = []
            for number in range(per_round):
                query = queries[(round_number * per_round + number) % len(queries)][None]
                began = time.perf_counter()
                search(query)
                samples.append(time.perf_counter() - began)
            if round_number:  # the first one warms up
                medians[name].append(float(np.median(samples)) * 1e6)
    return medians


def seconds(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return round(time.perf_counter() - began, 3)


def own(vectors: Vectors, max_exact: int) -> VectorIndex:
    index = VectorIndex(WIDTH, IndexOptions(max_exact=max_exact))
    index.append(np.arange(1, len(vectors) + 1), vectors, through=len(vectors))
    return index


def bare_ivf(vectors: Vectors, num_lists: int) -> Any:
    index = faiss.index_factory(WIDTH, f"IVF{num_lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = 64
    index.train(vectors)
    index.add(vectors)
    return index


def bare_search(index: Any) -> Search:
    return lambda query: index.search(query, K)[1]


def own_search(index: VectorIndex) -> Search:
    """Rows from 0 on, as bare FAISS numbers them."""
    return lambda query: index.search(query, K).rows - 1


def snapshot_figures(index: VectorIndex) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.index"
        save_s = seconds(lambda: save_snapshot(index.contents, path, identity={}, max_exact=index.options.max_exact))
        load_s = seconds(lambda: VectorIndex.holding(*load_snapshot(path, identity={}), index.options))
        return {"save_s": save_s, "load_s": load_s, "bytes": path.stat().st_size}


def measure() -> dict[str, Any]:
    faiss.omp_set_num_threads(1)
    everything = clustered(SIZE + NUM_QUERIES)
    vectors, queries = everything[:SIZE], everything[SIZE:]
    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(vectors)
    exact = flat.search(queries, K)[1]
    searches = {"fovea": own_search(own(vectors, max_exact=SIZE)), "faiss": bare_search(flat)}
    exact_us = latencies_us(searches, queries, rounds=EXACT_ROUNDS, per_round=EXACT_PER_ROUND)
    del searches, flat

    index = own(vectors, max_exact=SIZE // 2)
    rebuild_s = seconds(index.rebuild)
    assert index.contents.lists is not None, "the vectors have structure enough for lists"
    own_recall = recall(own_search(index), queries, exact)
    num_lists = {"same lists": index.contents.lists.index.nlist, "more lists": round(4 * SIZE**0.5)}
    bare = {f"faiss, {name}": bare_ivf(vectors, number) for name, number in num_lists.items()}
    for ivf in bare.values():
        while recall(bare_search(ivf), queries, exact) < own_recall:
            ivf.nprobe += 1
    searches = {"fovea": own_search(index), **{name: bare_search(ivf) for name, ivf in bare.items()}}
    approximate_us = latencies_us(searches, queries, rounds=APPROXIMATE_ROUNDS, per_round=APPROXIMATE_PER_ROUND)
    return {
        "size": SIZE,
        "width": WIDTH,
        "k": K,
        "threads": 1,
        "exact_us": {name: summary(samples) for name, samples in exact_us.items()},
        "exact_ratio": ratio(exact_us),
        "approximate_us": {name: summary(samples) for name, samples in approximate_us.items()},
        "approximate_ratio": ratio(approximate_us),
        "recall_at_10": {name: recall(search, queries, exact) for name, search in searches.items()},
        "recall_at_10_measured_at_rebuild": index.recall_at_10,
        "num_lists": num_lists,
        "nprobe": {"fovea": index.contents.lists.nprobe, **{name: ivf.nprobe for name, ivf in bare.items()}},
        "rebuild_s": rebuild_s,
        "index_bytes": index.num_bytes,
        "snapshot": snapshot_figures(index),
    }


def ratio(latencies: dict[str, list[float]]) -> float:
    """Return the best of FAISS's times over ours: above 1, ours is faster."""
    medians = {name: float(np.median(samples)) for name, samples in latencies.items()}
    ours = medians.pop("fovea")
    return round(min(medians.values()) / ours, 3)


def main() -> None:
    result = measure()
    table = Table("search", "index", "µs a query", "quartiles", "recall@10", title=f"{SIZE:,} × {WIDTH}, one thread")
    for kind in ("exact", "approximate"):
        for name, spread in result[f"{kind}_us"].items():
            share = 1.0 if kind == "exact" else result["recall_at_10"][name]
            quartiles = f"{spread['p25']:g} to {spread['p75']:g}"
            table.add_row(kind, name, f"{spread['median']:g}", quartiles, f"{share:.4f}")
    Console().print(table)
    record("index", result)


if __name__ == "__main__":
    main()
