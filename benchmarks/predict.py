"""The predict service against its bare engine, rationales against labels alone, and two tasks under one budget.

    python -m benchmarks.predict [--rounds 5] [--requests 256] [--calls 30]

A t5-small shape with random weights, inputs of 16 to 63 tokens, 3 labels, rationales of 32 tokens. Side by side on one
machine, in alternating rounds: inputs per second over HTTP at concurrency 32, with one input per request, and of one
request of 2,048 inputs, each against the engine alone in batches of 32; the time that HTTP adds to a single input; a
label with its rationale against the label alone. Then the memory of a process that serves one task, two, and two where
the budget holds one. The client runs on the same cores as the server.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from benchmarks.predict_engines import EOS, FIRST_WORD, PAD, VOCABULARY, random_t5, teach
from benchmarks.record import record, summary
from benchmarks.served import served
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.nn.devices import DeviceOptions
from services.nn.loading import declare_torchvision_operators
from services.predict.engine import PredictEngine
from services.predict.model.task_description import TaskDescription

TASKS = ("first", "second")
SHAPE = "small"
LABELS = ("w7001 w7002 w7003", "w7004", "w7005 w7006")
RATIONALE_TOKENS = 32
CONCURRENCY = 32
BATCH_SIZE = 32
MANY_INPUTS = 2048
SWITCHES = 6

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}

Fields = dict[str, str]


@dataclass(frozen=True)
class Effort:
    """Effort: rounds of each comparison, requests per side and round of throughput, calls per round of latency."""

    num_rounds: int
    num_requests: int
    num_calls: int


class Inputs:
    """Premises and hypotheses of random words, never the same twice."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)

    def take(self, num: int) -> list[Fields]:
        return [{"premise": self._text(), "hypothesis": self._text()} for _ in range(num)]

    def _text(self) -> str:
        words = self._draw.integers(FIRST_WORD, VOCABULARY, self._draw.integers(6, 30))
        return " ".join(f"w{word}" for word in words)


class BareEngine:
    """The engine in this process, with all threads: texts in, predictions out."""

    def __init__(self, directory: Path) -> None:
        self._engine = PredictEngine.load(directory, DeviceOptions())
        self._engine.warm_up()

    def predict(self, inputs: Sequence[Fields], *, rationale: bool = False) -> None:
        for start in range(0, len(inputs), BATCH_SIZE):
            batch = inputs[start : start + BATCH_SIZE]
            self._engine.run_batch([self._engine.prepare(fields, rationale=rationale) for fields in batch])

    def seconds(self, inputs: Sequence[Fields], *, rationale: bool = False) -> float:
        began = time.perf_counter()
        self.predict(inputs, rationale=rationale)
        return time.perf_counter() - began


@dataclass(frozen=True)
class Client:
    """A client of one served process."""

    session: aiohttp.ClientSession
    url: str

    async def predict(self, inputs: Sequence[Fields], *, task: str = TASKS[0], rationale: bool = False) -> None:
        body = {"task": task, "inputs": list(inputs), "rationale": rationale}
        async with self.session.post(f"{self.url}/predict", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert len(answer["predictions"]) == len(inputs)

    async def seconds(self, inputs: Sequence[Fields], **options: Any) -> float:
        began = time.perf_counter()
        await self.predict(inputs, **options)
        return time.perf_counter() - began

    async def inputs_per_s(self, inputs: Sequence[Fields]) -> float:
        """Send one input per request, CONCURRENCY requests at a time."""
        waiting = iter(inputs)

        async def user() -> None:
            for fields in waiting:
                await self.predict([fields])

        began = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(CONCURRENCY)))
        return len(inputs) / (time.perf_counter() - began)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        async with self.session.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def publish(folder: Path) -> list[Path]:
    """Publish one checkpoint per task to the store at `folder`."""
    tokenizer = _tokenizer()
    labels = [tokenizer.encode(label).ids for label in LABELS]
    model = random_t5(SHAPE)
    teach(model, labels)
    store = Store.open((folder / "store").as_uri())
    directories = []
    for number, name in enumerate(TASKS):
        directory = folder / name
        model.config.name_or_path = f"{name} {number}"  # versions of equal content would be one version
        model.save_pretrained(directory)
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
        TaskDescription(
            task=name,
            fields=("premise", "hypothesis"),
            labels=LABELS,
            label_prefix="",
            rationale_prefix="w150 ",
            max_target_tokens=RATIONALE_TOKENS,
        ).write(directory)
        store.publish(name, directory, CheckpointInfo(kind="t5-student"))
        directories.append(directory)
    return directories


def _tokenizer() -> Tokenizer:
    words = ["<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(3, VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel(dict(zip(words, count(), strict=False)), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", EOS)]
    )
    assert tokenizer.token_to_id("<pad>") == PAD
    return tokenizer


@asynccontextmanager
async def served_predict(folder: Path, tasks: Sequence[str], **settings: str) -> AsyncIterator[Client]:
    own = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_PREDICT_MODELS": ",".join(tasks),
    }
    async with (
        served("services.predict", "FOVEA_PREDICT_PORT", {**own, **settings}) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Client(session, url)


async def compare_throughput(client: Client, engine: BareEngine, inputs: Inputs, effort: Effort) -> dict[str, Any]:
    """Measure inputs per second over HTTP and of the engine, round by round, with one input per request and many."""
    single, bare, many, bare_many = [], [], [], []
    for _ in range(effort.num_rounds + 1):
        bare.append(effort.num_requests / engine.seconds(inputs.take(effort.num_requests)))
        single.append(await client.inputs_per_s(inputs.take(effort.num_requests)))
        bare_many.append(MANY_INPUTS / engine.seconds(inputs.take(MANY_INPUTS)))
        many.append(MANY_INPUTS / await client.seconds(inputs.take(MANY_INPUTS)))
    return {
        "concurrency": CONCURRENCY,
        "http_inputs_per_s": summary(single[1:]),  # the first round warms both up
        "engine_inputs_per_s": summary(bare[1:]),
        "ratio": summary(_ratios(single[1:], bare[1:])),
        "one_request_inputs_per_s": summary(many[1:]),
        "one_request_ratio": summary(_ratios(many[1:], bare_many[1:])),
    }


async def compare_latency(client: Client, engine: BareEngine, inputs: Inputs, effort: Effort) -> dict[str, Any]:
    """Measure milliseconds of a single input, label alone and with its rationale: medians of each round."""
    figures: dict[str, list[float]] = {}
    for _ in range(effort.num_rounds):
        for name, rationale in (("label", False), ("rationale", True)):
            bare = [engine.seconds([fields], rationale=rationale) for fields in inputs.take(effort.num_calls)]
            http = [await client.seconds([fields], rationale=rationale) for fields in inputs.take(effort.num_calls)]
            figures.setdefault(f"engine_{name}_ms", []).append(1e3 * median(bare))
            figures.setdefault(f"http_{name}_ms", []).append(1e3 * median(http))
    added = [http - bare for http, bare in zip(figures["http_label_ms"], figures["engine_label_ms"], strict=True)]
    return {
        **{name: summary(samples) for name, samples in figures.items()},
        "added_ms": summary(added),
        "rationale_over_label": summary(_ratios(figures["http_rationale_ms"], figures["http_label_ms"])),
    }


async def measure_memory(folder: Path, inputs: Inputs) -> dict[str, Any]:
    """Measure a process's resident bytes with one task, with two, and with two of which the budget holds one."""
    figures: dict[str, Any] = {}
    one = 0.0
    for name, tasks in (("one", TASKS[:1]), ("two", TASKS)):
        async with served_predict(folder, tasks) as client:
            await _switch(client, tasks, inputs)
            figures[f"{name}_tasks_resident_bytes"] = int(await client.metric("process_resident_memory_bytes"))
            figures[f"{name}_tasks_model_bytes"] = int(await client.metric("fovea_model_resident_bytes"))
            one = one or figures[f"{name}_tasks_model_bytes"]
    async with served_predict(folder, TASKS, FOVEA_PREDICT_MEMORY_BYTES=str(int(1.5 * one))) as client:
        before = await client.metric("fovea_model_loads_total")
        seconds = [took async for took in _switch_timed(client, TASKS, inputs)]
        figures["budget_tasks_resident_bytes"] = int(await client.metric("process_resident_memory_bytes"))
        figures["budget_tasks_model_bytes"] = int(await client.metric("fovea_model_resident_bytes"))
        figures["reloads"] = int(await client.metric("fovea_model_loads_total") - before)
        figures["reload_request_ms"] = summary([1e3 * took for took in seconds[1:]])
    return figures


async def _switch(client: Client, tasks: Sequence[str], inputs: Inputs) -> None:
    async for _ in _switch_timed(client, tasks, inputs):
        pass


async def _switch_timed(client: Client, tasks: Sequence[str], inputs: Inputs) -> AsyncIterator[float]:
    for number in range(SWITCHES):
        yield await client.seconds(inputs.take(1), task=tasks[number % len(tasks)])


def _ratios(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(some, others, strict=True)]


async def measure(folder: Path, effort: Effort) -> dict[str, Any]:
    directories = publish(folder)
    engine, inputs = BareEngine(directories[0]), Inputs()
    result: dict[str, Any] = {"shape": SHAPE}
    async with served_predict(folder, TASKS[:1]) as client:
        result["throughput"] = await compare_throughput(client, engine, inputs, effort)
        result["latency"] = await compare_latency(client, engine, inputs, effort)
    result["memory"] = await measure_memory(folder, inputs)
    return result


def _rows(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for comparison, figures in result.items():
        for figure, value in figures.items() if isinstance(figures, dict) else ():
            if isinstance(value, dict):
                yield comparison, figure, f"{value['median']:g} ({value['min']:g} to {value['max']:g})"
            else:
                yield comparison, figure, f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of each comparison.")
    parser.add_argument("--requests", type=int, default=256, help="Requests of each side in a round of throughput.")
    parser.add_argument("--calls", type=int, default=30, help="Single calls of each side in a round of latency.")
    options = parser.parse_args()
    declare_torchvision_operators()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), Effort(options.rounds, options.requests, options.calls)))
    table = Table("comparison", "figure", "median (least to greatest)", title=f"Predict service, t5-{SHAPE}")
    for row in _rows(result):
        table.add_row(*row)
    Console().print(table)
    record("predict", result)


if __name__ == "__main__":
    main()
