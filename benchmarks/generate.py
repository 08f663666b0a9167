"""The generate service against transformers' `generate` called in a loop, on a random Llama of 100 M parameters.

    python -m benchmarks.generate [--rounds 3] [--requests 32]

Requests with prompts of different lengths ask for different numbers of tokens over HTTP, 16 at a time; the loop answers
the same ones one after the other; both are greedy. Then the same model and requests with transformers' batches of 16
(left-padded, each as long as its longest), as a diligent user writes them. Output tokens per second, and their ratios.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.random_llama import VOCABULARY, save_random_llama
from benchmarks.record import record, summary
from benchmarks.served import served
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store

CONCURRENCY = 16
MODEL = "random-llama"
FIRST_WORD = 300  # ids below are single bytes


@dataclass(frozen=True)
class Asked:
    """A prompt as token ids, and how many tokens are to follow."""

    input_ids: list[int]
    num_tokens: int


def draw_requests(count: int, seed: int) -> list[Asked]:
    """Draw prompts of 50 to 500 tokens, and answers of 8 to 64."""
    draw = np.random.default_rng(seed)
    return [
        Asked(draw.integers(FIRST_WORD, VOCABULARY, draw.integers(50, 500)).tolist(), int(draw.integers(8, 64)))
        for _ in range(count)
    ]


class TransformersLoop:
    """transformers' `model.generate` with its own defaults, greedy."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(directory)

    def answer(self, batch: Sequence[Asked]) -> int:
        """Generate for one request; returns the number of tokens."""
        longest = max(len(asked.input_ids) for asked in batch)
        rows = [[1] * (longest - len(asked.input_ids)) + asked.input_ids for asked in batch]
        mask = [[0] * (longest - len(asked.input_ids)) + [1] * len(asked.input_ids) for asked in batch]
        self.model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=max(asked.num_tokens for asked in batch),
            do_sample=False,
            eos_token_id=[],
            pad_token_id=1,
        )
        return sum(asked.num_tokens for asked in batch)

    def tokens_per_s(self, requests: Sequence[Asked], batch_size: int) -> float:
        began = time.perf_counter()
        batches = [requests[start : start + batch_size] for start in range(0, len(requests), batch_size)]
        num_tokens = sum(self.answer(batch) for batch in batches)
        return num_tokens / (time.perf_counter() - began)


async def tokens_per_s(session: aiohttp.ClientSession, url: str, requests: Sequence[Asked]) -> float:
    """Measure the service's tokens per second."""
    waiting = iter(requests)

    async def user() -> None:
        for asked in waiting:
            body = {"model": MODEL, "prompt": asked.input_ids, "max_tokens": asked.num_tokens, "ignore_eos": True}
            async with session.post(f"{url}/v1/completions", json={**body, "temperature": 0}) as response:
                answer = await response.json()
                assert response.status == 200, answer
                assert answer["usage"]["completion_tokens"] == asked.num_tokens, answer["usage"]

    began = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(CONCURRENCY)))
    return sum(asked.num_tokens for asked in requests) / (time.perf_counter() - began)


async def compare(folder: Path, num_rounds: int, num_requests: int) -> dict[str, Any]:
    """Measure all three in each round; the first round warms them up."""
    num_parameters = save_random_llama(folder / "model")
    Store.open((folder / "store").as_uri()).publish(MODEL, folder / "model", CheckpointInfo(kind="causal-lm"))
    settings = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_GENERATE_MODELS": MODEL,
    }
    loop = TransformersLoop(folder / "model")
    figures: dict[str, list[float]] = {"service": [], "loop": [], "batches": []}
    async with (
        served("services.generate", "FOVEA_GENERATE_PORT", settings) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
    ):
        for number in range(num_rounds + 1):
            requests = draw_requests(num_requests if number else CONCURRENCY, seed=number)
            figures["service"].append(await tokens_per_s(session, url, requests))
            figures["loop"].append(loop.tokens_per_s(requests, 1))
            figures["batches"].append(loop.tokens_per_s(requests, CONCURRENCY))
    measured = {name: values[1:] for name, values in figures.items()}
    return {
        "parameters": num_parameters,
        "concurrency": CONCURRENCY,
        "requests_per_round": num_requests,
        **{f"{name}_tokens_per_s": summary(values) for name, values in measured.items()},
        **{
            f"over_{name}": summary([a / b for a, b in zip(measured["service"], measured[name], strict=True)])
            for name in ("loop", "batches")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32, help="of each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(compare(Path(folder), options.rounds, options.requests))
    table = Table("output tokens per second", "median", "over it, the service")
    for name in ("service", "loop", "batches"):
        ratio = f"{result[f'over_{name}']['median']:.2f}" if name != "service" else ""
        table.add_row(name, f"{result[f'{name}_tokens_per_s']['median']:.1f}", ratio)
    Console().print(table)
    record("generate", result)


if __name__ == "__main__":
    main()
