"""What calibration costs inside vLLM: calibrated over plain answers, and over a vLLM without the plug-in.

    python -m benchmarks.vllm_calibration [--tokens 512 1024] [--rounds 5] [--skip-own]

A random Llama of 125 M parameters is served by vLLM as it comes, by vLLM with the plug-in, and by Fovea's own engine.
Prompts of so many tokens hold 20 documents. Time to the first token, time for each further one, and tokens per second
of requests that are sent four at a time, but for `exact`; a ratio is over the plain answers of the vLLM without the
plug-in in the same round, but for the own engine over its own plain ones. All sides run in turn in each round, each
with a prompt of its own, so that no prefix is cached but those of a request's own estimates. The first round warms up.

It needs `make vllm`, or the Python of another environment with vLLM and the plug-in in PYTHON_WITH_VLLM.
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.random_llama import VOCABULARY, save_random_llama
from benchmarks.record import record, summary
from benchmarks.served import free_port, running, served
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store

MODEL = "random-llama"
NUM_LAYERS = 12
NUM_DOCUMENTS = 20
QUESTION_TOKENS = 24
NUM_DECODED = 32
CONCURRENCY = 4
FIRST_WORD = 300  # ids below are single bytes
ESTIMATES = ("table", "single", "exact")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True)
class Times:
    """Seconds to the first token, and of each further one."""

    first: float
    further: float


class Prompts:
    """Draws prompts of random words, each another one."""

    def __init__(self, num_tokens: int) -> None:
        self._draw = np.random.default_rng(num_tokens)
        self._length = (num_tokens - 2 * QUESTION_TOKENS) // NUM_DOCUMENTS
        starts = [QUESTION_TOKENS + number * self._length for number in range(NUM_DOCUMENTS)]
        self.spans = [(start, start + self._length) for start in starts]
        self.num_tokens = self.spans[-1][1] + QUESTION_TOKENS

    def tokens(self) -> list[int]:
        return [int(token) for token in self._draw.integers(FIRST_WORD, VOCABULARY, self.num_tokens)]

    def for_vllm(self, bias: str | None) -> dict[str, Any]:
        """Make the body of a completion, calibrated by this estimate."""
        body: dict[str, Any] = {"model": MODEL, "prompt": self.tokens(), "temperature": 0, "ignore_eos": True}
        body |= {"max_tokens": NUM_DECODED, "stream": True}
        if bias is not None:
            fields: dict[str, Any] = {"fovea_documents": list(itertools.chain(*self.spans)), "fovea_bias": bias}
            fields["fovea_layers"] = list(range(NUM_LAYERS // 2, NUM_LAYERS))
            if bias == "table":
                fields["fovea_bias_table"] = [0.0] * NUM_DOCUMENTS
            body["vllm_xargs"] = fields
        return body

    def for_own(self, bias: str | None) -> dict[str, Any]:
        """Make a question about as many documents; of text, each byte is a token."""
        text = "".join(chr(97 + int(letter)) for letter in self._draw.integers(0, 26, self.num_tokens))
        documents = [text[start:end] for start, end in self.spans]
        calibration = {"enabled": False} if bias is None else {"enabled": True, "bias": bias, "layers": "last_half"}
        body = {"query": text[:QUESTION_TOKENS], "documents": documents, "calibration": calibration}
        return body | {"max_tokens": NUM_DECODED, "stream": True}


@dataclass(frozen=True)
class Side:
    """A server's way to answer."""

    name: str
    url: str
    path: str
    bias: str | None
    baseline: str

    def body(self, prompts: Prompts) -> dict[str, Any]:
        return prompts.for_own(self.bias) if self.path == "/generate" else prompts.for_vllm(self.bias)

    async def answer(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> Times:
        """Read a stream; the events after its first are its further tokens, and perhaps an end."""
        began, arrivals = time.perf_counter(), []
        async with session.post(f"{self.url}{self.path}", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {") and _has_text(json.loads(line[6:])):
                    arrivals.append(time.perf_counter())
        # Some tokens are parts of characters, which a stream holds back.
        return Times(arrivals[0] - began, (arrivals[-1] - arrivals[0]) / (NUM_DECODED - 1))

    async def tokens_per_s(self, session: aiohttp.ClientSession, prompts: Prompts) -> float:
        if self.bias == "exact":  # K prompts a request: its first token says enough
            return float("nan")
        bodies = [self.body(prompts) for _ in range(CONCURRENCY)]
        began = time.perf_counter()
        await asyncio.gather(*(self.answer(session, body) for body in bodies))
        return CONCURRENCY * NUM_DECODED / (time.perf_counter() - began)


def _has_text(event: Mapping[str, Any]) -> bool:
    assert "error" not in event, event
    return "delta" in event or any(choice.get("text") for choice in event.get("choices", ()))


@asynccontextmanager
async def vllm(model: Path, plugins: str, max_tokens: int) -> AsyncIterator[str]:
    """Serve the model by vLLM with these plug-ins; yields its URL once it is healthy."""
    python = os.environ.get("PYTHON_WITH_VLLM") or str(Path(__file__).parents[1] / ".venv-vllm/bin/python")
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", str(max_tokens)]
    command += ["--max-num-seqs", str(2 * CONCURRENCY), "--enforce-eager", "--host", "127.0.0.1"]
    environment = os.environ | ENVIRONMENT | {"VLLM_PLUGINS": plugins}
    async with running(command, environment, f"http://127.0.0.1:{port}", ready="/health") as url:
        yield url


@asynccontextmanager
async def sides(folder: Path, max_tokens: int, *, with_own: bool) -> AsyncIterator[list[Side]]:
    """Start the servers."""
    save_random_llama(folder / "model")
    async with AsyncExitStack() as servers:
        stock = await servers.enter_async_context(vllm(folder / "model", "none", max_tokens))
        plugin = await servers.enter_async_context(vllm(folder / "model", "fovea", max_tokens))
        completions = "/v1/completions"
        found = [Side("vllm", stock, completions, None, "vllm"), Side("plugin", plugin, completions, None, "vllm")]
        found += [Side(f"plugin, {bias}", plugin, completions, bias, "vllm") for bias in ESTIMATES]
        if with_own:
            Store.open((folder / "store").as_uri()).publish(MODEL, folder / "model", CheckpointInfo(kind="causal-lm"))
            settings = {
                "FOVEA_STORE_URL": (folder / "store").as_uri(),
                "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
                "FOVEA_GENERATE_MODELS": MODEL,
                "FOVEA_GENERATE_PREFIX_CACHE_BYTES": "0",
                "FOVEA_REQUEST_TIMEOUT_S": "600",
            }
            own = await servers.enter_async_context(served("services.generate", "FOVEA_GENERATE_PORT", settings))
            found += [
                Side("own" if bias is None else f"own, {bias}", own, "/generate", bias, "own")
                for bias in (None, "tree", "single", "exact")
            ]
        yield found


async def measure(found: Sequence[Side], num_tokens: int, num_rounds: int) -> dict[str, Any]:
    """Measure every side once per round."""
    prompts = Prompts(num_tokens)
    rounds: list[dict[str, tuple[Times, float]]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        for _ in range(num_rounds + 1):
            rounds.append(
                {
                    side.name: (
                        await side.answer(session, side.body(prompts)),
                        await side.tokens_per_s(session, prompts),
                    )
                    for side in found
                }
            )
    return {side.name: _figures(side, rounds[1:]) for side in found}


def _figures(side: Side, rounds: Sequence[Mapping[str, tuple[Times, float]]]) -> dict[str, Any]:
    mine = [one[side.name] for one in rounds]
    theirs = [one[side.baseline] for one in rounds]
    pairs = list(zip(mine, theirs, strict=True))
    return {
        "first_token_s": summary([times.first for times, _ in mine]),
        "further_token_s": summary([times.further for times, _ in mine]),
        "tokens_per_s": summary([rate for _, rate in mine]),
        "first_token_over_plain": summary([a.first / b.first for (a, _), (b, _) in pairs]),
        "further_token_over_plain": summary([a.further / b.further for (a, _), (b, _) in pairs]),
        "tokens_per_s_over_plain": summary([a / b for (_, a), (_, b) in pairs]),
    }


async def compare(folder: Path, lengths: Sequence[int], num_rounds: int, *, with_own: bool) -> dict[str, Any]:
    async with sides(folder, 2 * max(lengths), with_own=with_own) as found:
        return {str(length): await measure(found, length, num_rounds) for length in lengths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-own", action="store_true", help="leave Fovea's own engine out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(compare(Path(folder), options.tokens, options.rounds, with_own=not options.skip_own))
    for length, of_sides in result.items():
        table = Table(f"prompts of {length} tokens", "first token", "over plain", "further", "over plain", "tokens/s")
        for name, figures in of_sides.items():
            table.add_row(
                name,
                f"{figures['first_token_s']['median']:.3f} s",
                f"{figures['first_token_over_plain']['median']:.2f}",
                f"{figures['further_token_s']['median'] * 1000:.1f} ms",
                f"{figures['further_token_over_plain']['median']:.2f}",
                f"{figures['tokens_per_s']['median']:.1f} ({figures['tokens_per_s_over_plain']['median']:.2f})",
            )
        Console().print(table)
    record("vllm_calibration", result)


if __name__ == "__main__":
    main()
