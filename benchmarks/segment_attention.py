"""Cost of calibrated attention over a paged cache, over plain attention from the same blocks.

    PYTHONPATH=vllm_plugin python -m benchmarks.segment_attention [--device cpu] [--rounds 20]

Decoded rows of a layer: 4,096 tokens, 20 documents, 32 heads on 8 key heads of width 128. All sides run in each round,
in an order of its own. On the CPU plain attention multiplies each block where it lies, as calibrated attention does. On
a GPU it is SDPA over gathered blocks, and what documents cost is told by the kernels without any.
"""

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.record import record, summary
from fovea_vllm.attention.attend import attend_documents
from fovea_vllm.attention.rows import DocumentRows

NUM_TOKENS = 4096
NUM_DOCUMENTS = 20
NUM_HEADS, NUM_GROUPS, WIDTH = 32, 8, 128
BLOCK = {"cpu": 128, "cuda": 16}  # tokens; what vLLM chooses for the device
ROWS_OF_LAYERS = 8  # layers times rows at least, each with 32 MiB of float32
SCALE = WIDTH**-0.5


class Bench:
    """Rows of a few layers over caches that are laid out as vLLM does for the device, and that exceed a processor's."""

    def __init__(self, num_rows: int, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(num_rows)
        size = BLOCK[device]
        num_blocks = num_rows * NUM_TOKENS // size
        self.caches = [
            _caches(num_blocks, size, device, dtype, generator) for _ in range(max(1, ROWS_OF_LAYERS // num_rows))
        ]
        table = torch.randperm(num_blocks, generator=generator).view(num_rows, -1).int().to(device)
        length = (NUM_TOKENS - 96) // NUM_DOCUMENTS
        spans = [(40 + number * length, 39 + (number + 1) * length) for number in range(NUM_DOCUMENTS)]
        lengths = [NUM_TOKENS - number for number in range(num_rows)]
        self.rows = DocumentRows.of(table, lengths, [spans] * num_rows)
        self.without_documents = DocumentRows.of(table, lengths, [[]] * num_rows)
        self.query = torch.randn(num_rows, NUM_HEADS, WIDTH, generator=generator).to(device, dtype)
        relevance = torch.randn(num_rows, NUM_DOCUMENTS, generator=generator)
        self.log_alpha = relevance.log_softmax(dim=-1).to(device)

    def attend(self, rows: DocumentRows, log_alpha: Tensor | None) -> None:
        for caches in self.caches:
            attend_documents(self.query, *caches, rows, log_alpha, scale=SCALE)

    def plain(self) -> None:
        """Attend each row by itself, block by block: their lengths differ."""
        for key_cache, value_cache in self.caches:
            for query, seen in zip(self.query, self.rows.seen(key_cache.shape[1], None), strict=True):
                keys, values = (
                    [cache[block, start:stop].transpose(0, 1) for block, start, stop in seen.slots]
                    for cache in (key_cache, value_cache)
                )
                grouped = query.reshape(NUM_GROUPS, -1, WIDTH) * SCALE
                scores = torch.cat([torch.bmm(grouped, block.transpose(1, 2)) for block in keys], dim=-1)
                weights, out, begin = scores.softmax(dim=-1), torch.zeros_like(grouped), 0
                for block in values:
                    out.baddbmm_(weights[..., begin : begin + block.shape[1]], block)
                    begin += block.shape[1]

    def gathered(self) -> None:
        """Attend each row by itself with SDPA over a copy of its blocks."""
        for layer in self.caches:
            for query, table, length in zip(
                self.query, self.rows.block_table, self.rows.seq_lens.tolist(), strict=True
            ):
                keys, values = (cache[table].flatten(0, 1)[:length].transpose(0, 1)[None] for cache in layer)
                F.scaled_dot_product_attention(query[None, :, None], keys, values, scale=SCALE, enable_gqa=True)


def _caches(
    num_blocks: int, size: int, device: str, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Create a layer's keys and values beside each other, by head on the CPU and by token on a GPU."""
    order = (NUM_GROUPS, size) if device == "cpu" else (size, NUM_GROUPS)
    cache = torch.randn(num_blocks, *order, 2 * WIDTH, generator=generator).to(device, dtype)
    by_token = cache.transpose(1, 2) if device == "cpu" else cache
    return by_token[..., :WIDTH], by_token[..., WIDTH:]


def timed(call: Callable[[], object], device: str) -> float:
    """Measure seconds; on the CPU those of its time, as short calls are measured badly beside other programs."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    began = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def compare(num_rows: int, num_rounds: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Measure each way once a round, relative to the round's plain attention, after two rounds of warm-up."""
    bench = Bench(num_rows, device, dtype)
    ways: dict[str, Callable[[], object]] = {
        "plain": bench.gathered if device == "cuda" else bench.plain,
        "calibrated": lambda: bench.attend(bench.rows, bench.log_alpha),
        "measured": lambda: bench.attend(bench.rows, None),
        "without documents": lambda: bench.attend(bench.without_documents, None),
        "SDPA over gathered blocks": bench.gathered,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(0)
    for number in range(num_rounds + 2):
        for name, way in order.sample(list(ways.items()), len(ways)):
            took = timed(way, device)
            if number > 1:
                seconds[name].append(took)
    plain = seconds["plain"]
    return {
        "plain_s": summary(plain),
        "over_plain": {
            name: summary([value / base for value, base in zip(values, plain, strict=True)])
            for name, values in seconds.items()
            if values is not plain
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    with torch.inference_mode():
        result = {f"{rows}_rows": compare(rows, options.rounds, options.device, dtype) for rows in (1, 8)}
    table = Table("over plain", *result)
    for name in result["1_rows"]["over_plain"]:
        table.add_row(name, *(f"{column['over_plain'][name]['median']:.3f}" for column in result.values()))
    Console().print(table)
    record("segment_attention", {"device": options.device, "dtype": str(dtype).removeprefix("torch."), **result})


if __name__ == "__main__":
    main()
