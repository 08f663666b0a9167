"""Adversarial refinement of a million pairs: seconds, peak memory, and growth with pairs and models.

python -m benchmarks.refinement [--pairs 1000000] [--rounds 3]

The alternative is the algorithm as one would write it down, a loop over pairs that fills lists by cell, as the released
code of SugarCrepe has it. Times are processor times of one core. Peak memory is that of the arrays which refinement
allocates, by numpy's own tracing, beside the gaps themselves.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.curate.sugarcrepe import NUM_CELLS, refine

Floats = NDArray[np.float64]


def drawn_gaps(num_pairs: int, num_models: int) -> Floats:
    """Draw gaps that lean to the positive caption, as those of unrefined pairs do."""
    generator = np.random.default_rng(0)
    return np.clip(generator.normal(0.05, 0.2, (num_pairs, num_models)), -1, 1)


def refine_in_lists(gaps: Floats, generator: np.random.Generator) -> list[int]:
    """Refine by lists of places, a cell each, pair by pair; gaps of exactly 0 and 1 do not occur here."""
    cells: dict[tuple[int, ...], list[int]] = {}
    for place, row in enumerate(gaps.tolist()):
        cell = tuple((1 if gap > 0 else -1) * (int(abs(gap) * NUM_CELLS) + 1) for gap in row)
        cells.setdefault(cell, []).append(place)
    kept: list[int] = []
    for cell, own in cells.items():
        others = cells.get(tuple(-number for number in cell), [])
        size = min(len(own), len(others))
        kept += own if size == len(own) else generator.choice(own, size, replace=False).tolist()
    return sorted(kept)


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def peak_bytes_per_pair(gaps: Floats) -> float:
    tracemalloc.start()
    try:
        refine(gaps, np.random.default_rng(0))
        return tracemalloc.get_traced_memory()[1] / len(gaps)
    finally:
        tracemalloc.stop()


def measure(num_pairs: int, num_models: int, rounds: int) -> dict[str, Any]:
    """Measure both ways on the same gaps, and check that they keep equally many."""
    gaps = drawn_gaps(num_pairs, num_models)
    ours = [seconds(partial(refine, gaps, np.random.default_rng(seed))) for seed in range(rounds)]
    lists = [seconds(partial(refine_in_lists, gaps, np.random.default_rng(seed))) for seed in range(rounds)]
    kept = refine(gaps, np.random.default_rng(0))
    assert len(kept) == len(refine_in_lists(gaps, np.random.default_rng(0)))
    return {
        "pairs": num_pairs,
        "models": num_models,
        "kept": len(kept),
        "seconds": summary(ours),
        "lists_seconds": summary(lists),
        "ratio": round(sorted(lists)[rounds // 2] / sorted(ours)[rounds // 2], 1),
        "peak_bytes_per_pair": round(peak_bytes_per_pair(gaps), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [(options.pairs // 100, 2), (options.pairs // 10, 2), (options.pairs, 2), (options.pairs, 4)]
    found = [measure(*size, options.rounds) for size in sizes]
    table = Table("pairs", "models", "kept", "seconds", "in lists", "ratio", "bytes a pair", title="Refinement")
    for one in found:
        times = f"{one['seconds']['median']:.3f}", f"{one['lists_seconds']['median']:.3f}", f"{one['ratio']:.1f}"
        table.add_row(
            f"{one['pairs']:,}", str(one["models"]), f"{one['kept']:,}", *times, str(one["peak_bytes_per_pair"])
        )
    Console(width=100).print(table)
    record("refinement", {"cases": found})


if __name__ == "__main__":
    main()
