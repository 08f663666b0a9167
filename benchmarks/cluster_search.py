"""Search in a collection's vectors in one process (FAISS), in Milvus and in pgvector: queries a second, time of a query
and recall@10, by one and by eight clients, of all vectors and of 1 % and 10 % of them; what the first and a further
condition cost, in seconds of writing vectors and of sorting them for the search.

python -m benchmarks.cluster_search [--size 1000000] [--engines local,milvus,pgvector] [--first] [--postgres …]

Milvus is the server of PyPI's `milvus`, started for this. `--postgres postgresql://…` is a database where the extension
`vector` can be created; without one, pgvector is left out. `--first` leaves the further condition out. Clients are
threads of one process. Engines are measured one after the other; the load of the machine is recorded with each.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import faiss
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from services.embed.collections.cluster.milvus import MilvusVectors, Partition
from services.embed.collections.cluster.milvus_index import MilvusIndex
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Rows, Vectors
from tests.core.milvus_server import milvus_server

WIDTH, K = 512, 10
NUM_QUERIES = 200
MEASURED_S = 5.0
CLIENTS = (1, 8)
SHARES = {"all": 1.0, "10 %": 0.1, "1 %": 0.01}
OPTIONS = IndexOptions()
# Rows written at once, as an indexing step does.
STEP = 512

# From a query (1, E) and the rows to search, None being all, to the rows found.
Search = Callable[[Vectors, Rows | None], Rows]


def clustered(size: int) -> Vectors:
    """Draw unit vectors (N, E) around 50 overlapping centres, near a subspace of 32 dimensions."""
    rng = np.random.default_rng(0)
    subspace, centres = rng.standard_normal((32, WIDTH)), rng.standard_normal((50, 32))
    latent = centres[rng.integers(0, 50, size)] + 0.8 * rng.standard_normal((size, 32))
    vectors = (latent @ subspace).astype(np.float32) + 1.5 * rng.standard_normal((size, WIDTH), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


class Watch:
    """Seconds of the parts of some work, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def note(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = round(now - self._began, 1)
        self._began = now
        print(part, self.seconds[part], flush=True)


class Local:
    """A VectorIndex of one condition after the other."""

    def fill(self, vectors: Vectors, condition: str, watch: Watch) -> Search:
        index = VectorIndex(WIDTH, OPTIONS)
        for start in range(0, len(vectors), STEP):
            piece = vectors[start : start + STEP]
            index.append(np.arange(start, start + len(piece)) + 1, piece, through=start + len(piece))
        watch.note("write_s")
        index.rebuild()
        watch.note("lists_s")
        return lambda query, among: index.search(query, K, among=among).rows


class Milvus:
    """A MilvusIndex for each condition."""

    def __init__(self, url: str) -> None:
        self._vectors = MilvusVectors(url)

    def fill(self, vectors: Vectors, condition: str, watch: Watch) -> Search:
        index = MilvusIndex(self._vectors, Partition(1, "benchmark", condition), WIDTH, OPTIONS)
        index.create()
        for start in range(0, len(vectors), STEP):
            piece = vectors[start : start + STEP]
            index.take_over(index.upsert(np.arange(start, start + len(piece)) + 1, piece), None)
        watch.note("write_s")
        print(condition, index.tune(np.random.default_rng(1).integers(1, len(vectors) + 1, 200)), flush=True)
        watch.note("lists_s")
        return lambda query, among: index.search(query, K, among=among).rows


class Pgvector:
    """A table with an HNSW index for each condition; filters are arrays of rows."""

    def __init__(self, url: str) -> None:
        from psycopg_pool import ConnectionPool

        self._pool: Any = ConnectionPool(url, min_size=max(CLIENTS), kwargs={"autocommit": True}, open=True)

    def fill(self, vectors: Vectors, condition: str, watch: Watch) -> Search:
        table = f"vectors_{condition}"
        with self._pool.connection() as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute("SET maintenance_work_mem = '2GB'")
            connection.execute(f"CREATE TABLE {table} (row bigint PRIMARY KEY, vector vector({WIDTH}))")
            connection.execute(f"ALTER TABLE {table} ALTER vector SET STORAGE PLAIN")
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for row, vector in enumerate(vectors, start=1):
                    copy.write_row((row, written(vector)))
            watch.note("write_s")
            connection.execute(f"CREATE INDEX ON {table} USING hnsw (vector vector_ip_ops)")
            connection.execute(f"ANALYZE {table}")
            watch.note("lists_s")

        def search(query: Vectors, among: Rows | None) -> Rows:
            only = "" if among is None else "WHERE row = ANY (%s)"
            given: list[Any] = [] if among is None else [among.tolist()]
            with self._pool.connection() as connection:
                found = connection.execute(
                    f"SELECT row FROM {table} {only} ORDER BY vector <#> %s LIMIT {K}", [*given, written(query[0])]
                ).fetchall()
            return np.array([[*(row for (row,) in found), *[-1] * (K - len(found))]])

        return search


def written(vector: Vectors) -> str:
    return "[" + ",".join(f"{number:.7g}" for number in vector) + "]"


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


def measure(
    engine: Any,
    vectors: Vectors,
    queries: Vectors,
    wanted: dict[str, tuple[Rows | None, Rows]],
    *,
    has_further: bool,
) -> dict[str, Any]:
    print(type(engine).__name__, flush=True)
    watch = Watch()
    search = engine.fill(vectors, "first", watch)
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "first": watch.seconds, "searches": {}}
    for share, (among, best) in wanted.items():
        rows = np.concatenate([search(queries[i : i + 1], among) for i in range(len(queries))])
        found = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(rows, best, strict=True)]))
        clients = {f"{number} clients": speed(search, queries, among, number) for number in CLIENTS}
        figures["searches"][share] = {"recall_at_10": round(found, 4), **clients}
        print(share, figures["searches"][share], flush=True)
    if has_further:
        watch = Watch()
        engine.fill(np.roll(vectors, 1, axis=1), "further", watch)
        figures["further"] = watch.seconds
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


@contextmanager
def engines(names: Sequence[str], postgres: str | None) -> Iterator[dict[str, Callable[[], Any]]]:
    with ExitStack() as servers:
        made: dict[str, Callable[[], Any]] = {"local": Local}
        if "milvus" in names:
            server = servers.enter_context(milvus_server())
            made["milvus"] = lambda: Milvus(server.url)
        if postgres is not None:
            made["pgvector"] = lambda: Pgvector(postgres)
        yield {name: make for name, make in made.items() if name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--engines", default="local,milvus,pgvector")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--postgres")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    everything = clustered(options.size + NUM_QUERIES)
    vectors, queries = everything[: options.size], everything[options.size :]
    wanted = answers(vectors, queries)
    with engines(options.engines.split(","), options.postgres) as made:
        result = {
            name: measure(make(), vectors, queries, wanted, has_further=not options.first)
            for name, make in made.items()
        }
    show(options.size, result)
    record("cluster_search", {"size": options.size, "width": WIDTH, "k": K, "engines": result})


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
