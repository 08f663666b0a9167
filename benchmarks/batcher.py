"""Cost of the batcher itself: CPU per item with an engine that does nothing, and CPU while it is idle.

python -m benchmarks.batcher
"""

import asyncio
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.core.batching.batcher import Batcher, BatchLimits, Submission
from services.core.batching.compute_thread import ComputeThread
from services.core.metrics import Metrics

CONCURRENCY = 64
ITEMS_PER_ROUND = 40_000
ROUNDS = 9
IDLE_S = 2.0
LIMITS = BatchLimits(max_batch_cost=16_384, max_batch_size=64, max_queue_cost=262_144)


class EmptyEngine:
    """Returns every item unchanged."""

    def run_batch(self, items: Sequence[int]) -> Sequence[int]:
        return items


async def measure_round(batcher: Batcher[int, int]) -> tuple[float, float]:
    """Measure CPU microseconds per item and items per second, with clients that each wait for one answer at a time."""

    async def client() -> None:
        for number in range(ITEMS_PER_ROUND // CONCURRENCY):
            await batcher.submit([Submission(number, cost=32, length=32)], deadline=time.monotonic() + 60)

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    cpu_s, elapsed_s = time.process_time() - cpu_began, time.perf_counter() - began
    return cpu_s / ITEMS_PER_ROUND * 1e6, ITEMS_PER_ROUND / elapsed_s


async def measure_idle() -> float:
    """Measure CPU seconds of the whole process while the batcher is idle."""
    cpu_began = time.process_time()
    await asyncio.sleep(IDLE_S)
    return time.process_time() - cpu_began


async def measure() -> dict[str, object]:
    thread = ComputeThread()
    thread.start()
    batcher: Batcher[int, int] = Batcher(EmptyEngine(), thread=thread, limits=LIMITS, metrics=Metrics("benchmark"))
    try:
        await measure_round(batcher)  # the first one includes late imports
        rounds = [await measure_round(batcher) for _ in range(ROUNDS)]
        idle_cpu_s = [await measure_idle() for _ in range(5)]
    finally:
        await batcher.close()
        await thread.close()
    return {
        "concurrency": CONCURRENCY,
        "items_per_round": ITEMS_PER_ROUND,
        "cpu_us_per_item": summary([cpu_us for cpu_us, _ in rounds]),
        "items_per_s": summary([rate for _, rate in rounds]),
        "idle_s": IDLE_S,
        "idle_cpu_s": summary(idle_cpu_s),
    }


def main() -> None:
    result = asyncio.run(measure())
    table = Table("figure", "median", "quartiles", "least to greatest", title="Batcher with an empty engine")
    for figure in ("cpu_us_per_item", "items_per_s", "idle_cpu_s"):
        spread = result[figure]
        assert isinstance(spread, dict)
        table.add_row(
            figure,
            f"{spread['median']:g}",
            f"{spread['p25']:g} to {spread['p75']:g}",
            f"{spread['min']:g} to {spread['max']:g}",
        )
    Console().print(table)
    record("batcher", result)


if __name__ == "__main__":
    main()
