"""Search in a collection's vectors in one process (FAISS) and in PostgreSQL (pgvector), and what each condition costs.

Measured are queries a second, the time of a query and recall@10, by one and by eight clients, of all vectors and of 1 %
and 10 % of them; and seconds of writing vectors, of preparing them for the search, and of then adding a few more.

python -m benchmarks.cluster_search [--size 100000] [--first] --postgres postgresql://…

`--postgres` is an empty database whose user may create the extension `vector`, with the memory that a deployment gives
it. `--first` leaves the further condition out. Clients are threads of one process. Both are measured by turns, and the
medians of the rounds are kept, with the load of the machine.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from benchmarks.search import WIDTH, K, clustered
from services.embed.collections.cluster.connections import Connections
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Rows, Vectors
from tests.embed.collections.shared_index import ClusterIndex

NUM_QUERIES = 200
MEASURED_S = 2.0
ROUNDS = 3
CLIENTS = (1, 8)
SHARES = {"all": 1.0, "10 %": 0.1, "1 %": 0.01}
OPTIONS = IndexOptions()
# Rows written at once, as an indexing step does.
STEP = 512
# The share added after the preparation: nearly as much as there can be before it is repeated.
ADDED = 0.018

# From a query (1, E) and the rows to search, None being all, to the rows found.
Search = Callable[[Vectors, Rows | None], Rows]


class Watch:
    """Seconds of the parts of some work, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def note(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = round(now - self._began, 2)
        self._began = now
        print(part, self.seconds[part], flush=True)


def steps(start: int, end: int) -> Iterator[slice]:
    """Divide the vectors from `start` to `end` as indexing does."""
    for first in range(start, end, STEP):
        yield slice(first, min(end, first + STEP))


class Local:
    """A VectorIndex of one condition after the other."""

    def fill(self, vectors: Vectors, condition: str, watch: Watch) -> Search:
        index = VectorIndex(WIDTH, OPTIONS)
        size = len(vectors)
        prepared, rows = round((1 - ADDED) * size), np.arange(size) + 1
        for step in steps(0, prepared):
            index.append(rows[step], vectors[step], through=step.stop)
        watch.note("write_s")
        index.rebuild()
        watch.note("lists_s")
        for step in steps(prepared, size):
            index.append(rows[step], vectors[step], through=step.stop)
        watch.note("add_s")
        return lambda query, among: index.search(query, K, among=among).rows


class Shared:
    """A shared index of one condition after the other."""

    def __init__(self, url: str) -> None:
        self._connections = Connections.open(url)

    def fill(self, vectors: Vectors, condition: str, watch: Watch) -> Search:
        index = ClusterIndex(self._connections, WIDTH, OPTIONS)
        size, tuning = len(vectors), None
        prepared, rows = round((1 - ADDED) * size), np.arange(size) + 1
        index.add_images(rows)
        watch.note("images_s")
        for step in steps(0, prepared):
            index.store(rows[step], vectors[step])
        watch.note("write_s")
        index.index.take_over(prepared, prepared, None)
        if index.index.needs_tuning:
            tuning = index.index.tune(np.random.default_rng(1).integers(1, prepared + 1, 64))
            print(condition, tuning, flush=True)
        watch.note("lists_s")
        for step in steps(prepared, size):
            index.store(rows[step], vectors[step])
        watch.note("add_s")
        index.index.take_over(size, size, tuning)
        return lambda query, among: index.search(query, K, among=among).rows


def speed(search: Search, queries: Vectors, among: Rows | None, num_clients: int) -> dict[str, float]:
    """Let clients search without a pause, and measure queries a second and the median and 99 % time of one."""
    give_up = time.perf_counter() + MEASURED_S

    def client(number: int) -> list[float]:
        times: list[float] = []
        while (began := time.perf_counter()) < give_up or not times:
            at = (len(times) * num_clients + number) % len(queries)
            search(queries[at : at + 1], among)
            times.append(time.perf_counter() - began)
        return times

    began = time.perf_counter()
    with ThreadPoolExecutor(num_clients) as threads:
        times = [sample for samples in threads.map(client, range(num_clients)) for sample in samples]
    per_second = len(times) / (time.perf_counter() - began)
    median, slow = (1e3 * np.percentile(times, [50, 99])).tolist()
    return {"queries_per_s": round(per_second, 1), "p50_ms": round(median, 2), "p99_ms": round(slow, 2)}


def rounds(searches: dict[str, Search], queries: Vectors, among: Rows | None, best: Rows) -> dict[str, dict[str, Any]]:
    """Measure recall, and speed by turns; the medians are kept."""
    figures: dict[str, dict[str, Any]] = {}
    for name, search in searches.items():
        rows = np.concatenate([search(queries[i : i + 1], among) for i in range(len(queries))])
        found = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(rows, best, strict=True)]))
        figures[name] = {"recall_at_10": round(found, 4)}
    for number in CLIENTS:
        turns = [
            {name: speed(search, queries, among, number) for name, search in searches.items()} for _ in range(ROUNDS)
        ]
        for name in searches:
            keys = turns[0][name]
            figures[name][f"{number} clients"] = {
                key: round(float(np.median([turn[name][key] for turn in turns])), 2) for key in keys
            }
    return figures


def measure(
    engines: dict[str, Any],
    vectors: Vectors,
    queries: Vectors,
    wanted: dict[str, tuple[Rows | None, Rows]],
    *,
    has_further: bool,
) -> dict[str, Any]:
    figures: dict[str, Any] = {name: {"searches": {}} for name in engines}
    searches = {}
    for name, engine in engines.items():
        print(name, flush=True)
        watch = Watch()
        searches[name] = engine.fill(vectors, "first", watch)
        figures[name] |= {"load": os.getloadavg()[0], "first": watch.seconds}
    for share, (among, best) in wanted.items():
        for name, found in rounds(searches, queries, among, best).items():
            figures[name]["searches"][share] = found
            print(share, name, found, flush=True)
    for name, engine in engines.items() if has_further else ():
        watch = Watch()
        engine.fill(np.roll(vectors, 1, axis=1), "further", watch)
        figures[name]["further"] = watch.seconds
    return figures


def answers(vectors: Vectors, queries: Vectors) -> dict[str, tuple[Rows | None, Rows]]:
    """Choose the rows of each filter at random, and find the exact ten in them."""
    rng, wanted = np.random.default_rng(0), dict[str, tuple[Rows | None, Rows]]()
    for share, part in SHARES.items():
        positions = np.sort(rng.choice(len(vectors), round(part * len(vectors)), replace=False))
        flat = faiss.IndexFlatIP(WIDTH)
        flat.add(vectors[positions])
        best = positions[flat.search(queries, K)[1]] + 1
        wanted[share] = (None if part == 1 else positions + 1, best)
    return wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--postgres", required=True)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    everything = clustered(options.size + NUM_QUERIES)
    vectors, queries = everything[: options.size], everything[options.size :]
    wanted = answers(vectors, queries)
    made = {"local": Local(), "pgvector": Shared(options.postgres)}
    result = measure(made, vectors, queries, wanted, has_further=not options.first)
    show(options.size, result)
    record("cluster_search", {"size": options.size, "width": WIDTH, "k": K, "added": ADDED, "engines": result})


def show(size: int, result: dict[str, Any]) -> None:
    headings = [f"{what}, {number} clients" for number in CLIENTS for what in ("1/s", "p50")]
    table = Table("engine", "of", "recall@10", *headings, title=f"{size:,} × {WIDTH}")
    for name, figures in result.items():
        for share, found in figures["searches"].items():
            cells = [found[f"{number} clients"][key] for number in CLIENTS for key in ("queries_per_s", "p50_ms")]
            table.add_row(name, share, str(found["recall_at_10"]), *map(str, cells))
    Console().print(table)


if __name__ == "__main__":
    main()
