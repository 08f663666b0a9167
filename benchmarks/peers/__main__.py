"""Images to embeddings over HTTP on Fovea, LitServe, Infinity and plain FastAPI: one CLIP model, side by side.

python -m benchmarks.peers [--rounds 3] [--threads 2] [--quick] [--peers fovea litserve]

All serve ViT-B-32 with the same random weights in float32 and are checked to answer with the same vectors. One
server runs at a time, in rounds of rotating order; every image is new to every cache; one client, on the same cores,
posts the same JSON to all. Peers that batch run under several settings, and at each load the best of them counts.

LitServe and Infinity each live in a virtual environment of their own; a peer whose variable is unset is left out:

    FOVEA_BENCH_LITSERVE_PYTHON   pip install torch==2.13.0 torchvision==0.28.0 open_clip_torch==3.3.0 litserve==0.2.19
    FOVEA_BENCH_INFINITY_PYTHON   pip install torch==2.13.0 'infinity_emb[server,torch]==0.0.78' transformers==4.57.6 \
pillow==13.0.0 aiohttp==3.14.5

The variables name the interpreters (`…/bin/python`). Infinity's extra `vision` brings packages for ColPali that hold
transformers at a release of 2024; a CLIP model needs none of them.
"""

import argparse
import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.peers.load import Load, Measured, Rows, embed, measure
from benchmarks.peers.models import ARCHITECTURE, write_models
from benchmarks.peers.plain_clip import PlainClip
from benchmarks.peers.servers import PEERS, Server, available_servers, running
from benchmarks.photographs import Photographs
from benchmarks.record import record, summary

IMAGE_SIZE = (500, 375)
LOADS = (Load(1, 1, 50), Load(16, 1, 6), Load(1, 32, 160), Load(16, 32, 40))
QUICK_LOADS = (Load(1, 1, 12), Load(16, 1, 2), Load(1, 32, 64), Load(16, 8, 8))
MIN_COSINE = 0.999
# For vectors without their mean: random weights give all images nearly the same vector.
MIN_CENTRED_COSINE = 0.99
IMAGES_PER_CHECK = 8


@dataclass
class Rounds:
    """The results of one setting of one peer, round by round."""

    server: Server
    measured: dict[str, list[Measured]] = field(default_factory=lambda: defaultdict(list))
    least_cosine: float = 1.0


class Comparison:
    """All servers under all loads. The first images that each is sent check its vectors."""

    def __init__(self, servers: Sequence[Server], loads: Sequence[Load], reference: Rows, folder: Path) -> None:
        self.rounds = [Rounds(server) for server in servers]
        self._loads = loads
        self._reference = reference
        self._photographs = Photographs(IMAGE_SIZE)
        self._folder = folder

    async def run(self, num_rounds: int) -> None:
        for number in range(num_rounds):
            first = number % len(self.rounds)
            for rounds in [*self.rounds[first:], *self.rounds[:first]]:
                await self._measure(rounds)

    async def _measure(self, rounds: Rounds) -> None:
        server = rounds.server
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            running(server, self._folder / "server.log") as url,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
        ):
            await self._check(rounds, session, url)
            for load in self._loads:
                rounds.measured[load.name].append(await measure(session, url, server, load, self._photographs))

    async def _check(self, rounds: Rounds, session: aiohttp.ClientSession, url: str) -> None:
        """Raises RuntimeError for a server whose vectors differ from open_clip's."""
        files = self._photographs.files
        parts = [files[start : start + IMAGES_PER_CHECK] for start in range(0, len(files), IMAGES_PER_CHECK)]
        rows = np.concatenate([await embed(session, url, rounds.server, part) for part in parts])
        rounds.least_cosine = min(rounds.least_cosine, least_cosine(rows, self._reference))
        mean = self._reference.mean(axis=0)
        centred = least_cosine(rows - mean, self._reference - mean)
        if rounds.least_cosine < MIN_COSINE or centred < MIN_CENTRED_COSINE:
            raise RuntimeError(
                f"{rounds.server.peer} ({rounds.server.setting}) answers with other vectors: "
                f"cosines down to {rounds.least_cosine:.5f}, of their differences from the mean {centred:.5f}"
            )


def least_cosine(rows: Rows, others: Rows) -> float:
    """Return the least cosine of the pairs of rows: (B, E) and (B, E)."""
    products = (rows * others).sum(axis=1)
    return float((products / np.linalg.norm(rows, axis=1) / np.linalg.norm(others, axis=1)).min())


def figures(measured: Sequence[Measured]) -> dict[str, Any]:
    """Summarise throughput round by round, and latencies over the requests of all rounds."""
    latencies = np.concatenate([one.latencies_ms for one in measured])
    p50, p99 = np.percentile(latencies, [50, 99])
    return {
        "images_per_s": summary([one.images_per_s for one in measured]),
        "p50_ms": float(f"{p50:.4g}"),
        "p99_ms": float(f"{p99:.4g}"),
    }


def best_of(rounds: Sequence[Rounds], load: str) -> dict[str, dict[str, Any]]:
    """Return each peer's setting of the highest median throughput at this load."""
    best: dict[str, dict[str, Any]] = {}
    for one in rounds:
        found = {"setting": one.server.setting, **figures(one.measured[load])}
        known = best.get(one.server.peer)
        if known is None or found["images_per_s"]["median"] > known["images_per_s"]["median"]:
            best[one.server.peer] = found
    return best


def ratios(rounds: Sequence[Rounds], load: str, best: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return Fovea's throughput over each peer's best, round by round, and its latencies over theirs."""
    samples = {(one.server.peer, one.server.setting): one.measured[load] for one in rounds}
    ours, ours_best = samples["fovea", best["fovea"]["setting"]], best["fovea"]
    compared = {}
    for peer, found in best.items():
        if peer != "fovea":
            pairs = zip(ours, samples[peer, found["setting"]], strict=True)
            compared[peer] = {
                "throughput": summary([a.images_per_s / b.images_per_s for a, b in pairs]),
                "p50": float(f"{ours_best['p50_ms'] / found['p50_ms']:.4g}"),
                "p99": float(f"{ours_best['p99_ms'] / found['p99_ms']:.4g}"),
            }
    return compared


def result_of(
    comparison: Comparison, loads: Sequence[Load], missing: Sequence[str], num_threads: int
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "architecture": ARCHITECTURE,
        "torch_threads": num_threads,
        "image": f"JPEG, {IMAGE_SIZE[0]} x {IMAGE_SIZE[1]}",
        "left_out": list(missing),
        "least_cosine": {
            f"{one.server.peer}, {one.server.setting}": round(one.least_cosine, 6) for one in comparison.rounds
        },
        "loads": {},
    }
    for load in loads:
        best = best_of(comparison.rounds, load.name)
        result["loads"][load.name] = {
            "best": best,
            "fovea_over": ratios(comparison.rounds, load.name, best),
            "all_images_per_s": {
                f"{one.server.peer}, {one.server.setting}": figures(one.measured[load.name])["images_per_s"]["median"]
                for one in comparison.rounds
            },
        }
    return result


def show(result: dict[str, Any], missing: Sequence[str]) -> None:
    console = Console()
    for load, found in result["loads"].items():
        table = Table("peer", "best setting", "images/s", "p50 ms", "p99 ms", "Fovea ÷ it", title=load)
        for peer, best in found["best"].items():
            ratio = found["fovea_over"].get(peer, {}).get("throughput", {}).get("median")
            numbers = [f"{best['images_per_s']['median']:g}", f"{best['p50_ms']:g}", f"{best['p99_ms']:g}"]
            table.add_row(peer, best["setting"], *numbers, "" if ratio is None else f"{ratio:g}")
        console.print(table)
    for peer in missing:
        console.print(f"left out, because its variable is unset: {peer}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="Rounds in which every server runs once; at least 2.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="Torch threads of each.")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, help="Fovea is among them always.")
    parser.add_argument("--quick", action="store_true", help="Two rounds of short loads, to see that all works.")
    arguments = parser.parse_args()
    loads = QUICK_LOADS if arguments.quick else LOADS
    num_rounds = 2 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = write_models(folder)
        plain = PlainClip(models.open_clip)
        reference: Rows = plain.embed(plain.pixels(Photographs(IMAGE_SIZE).files)).numpy()
        del plain
        wanted = {"fovea", *arguments.peers}
        servers, without = available_servers(models, arguments.threads)
        servers = [server for server in servers if server.peer in wanted]
        missing = [peer for peer in without if peer in wanted]
        comparison = Comparison(servers, loads, reference, folder)
        asyncio.run(comparison.run(num_rounds))
    result = result_of(comparison, loads, missing, arguments.threads)
    show(result, missing)
    record("peers", result)


if __name__ == "__main__":
    main()
