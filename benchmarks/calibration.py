"""Cost of calibration: time to first token and per output token, calibrated over vanilla, on a random Llama.

For each estimate of the bias, and for the dissertation's K + 1 passes one after the other, each the whole prompt. All
sides run in turn in each round. Then the memory of measuring the last row against `output_attentions=True`.

    python -m benchmarks.calibration [--rounds 5] [--device cpu] [--only output_token]
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.random_llama import VOCABULARY, save_random_llama
from benchmarks.record import record, summary
from services.generate.calibration import Calibration, log_alpha, relevance
from services.generate.generation.bias import BiasJob, DummyOptions, EstimateKind, estimate_bias
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.generate.model.profile import TREE_SAVINGS
from services.generate.prompts.templates import Prompt
from services.nn.devices import DeviceOptions
from services.nn.loading import declare_torchvision_operators

DOCUMENT_TOKENS = 100
QUESTION_TOKENS = 20
NUM_DECODED = 16
TEMPERATURE = 1e-4
SLOWEST = ("exact", "exact, K + 1 unbatched passes")
PASSES = ("prefill", "measure", "transformers", "output_attentions")
SAVINGS = {
    "tree": DummyOptions(),
    "tree, dummies of 16 tokens": DummyOptions(dummy_tokens=16),
    "tree, window of 256": DummyOptions(window=256),
    "tree, dummies of 4 tokens, window of 64": DummyOptions(
        dummy_tokens=TREE_SAVINGS["dummy_tokens"], window=TREE_SAVINGS["window"]
    ),
}


def random_prompt(num_documents: int, generator: torch.Generator) -> Prompt:
    """A question, documents of 100 tokens, the question again."""
    length = 2 * QUESTION_TOKENS + num_documents * DOCUMENT_TOKENS
    input_ids = torch.randint(300, VOCABULARY, (length,), generator=generator).tolist()
    starts = [QUESTION_TOKENS + document * DOCUMENT_TOKENS for document in range(num_documents)]
    spans = tuple((start, start + DOCUMENT_TOKENS) for start in starts)
    return Prompt(tuple(input_ids), spans, length - QUESTION_TOKENS, contents=tuple((span,) for span in spans))


class Bench:
    """One model, one prompt, one slot of its cache that is emptied before each measurement."""

    def __init__(self, model: LanguageModel, prompt: Prompt) -> None:
        self.model = model
        self.prompt = prompt
        self.filler = (300, 301, 302)
        self.cache = model.new_cache(4 * len(prompt.input_ids))

    def first_token(
        self, bias: EstimateKind | Literal["cached"] | None, options: DummyOptions, num_layers: int
    ) -> None:
        """Prefill, and with a bias everything that a calibrated first token needs."""
        slot = self.cache.open(len(self.prompt.input_ids) + NUM_DECODED)
        spans = self.prompt.spans if bias else ()
        prefilled = self.model.prefill([Prefill(slot, self.prompt.input_ids, spans)])[0]
        if bias and prefilled.attention is not None:
            measured = prefilled.attention[:num_layers]
            dummy = torch.zeros_like(measured)
            if bias != "cached":
                job = BiasJob(slot, self.prompt, self.filler)
                dummy = estimate_bias(self.model, [job], bias, num_layers=num_layers, options=options)[0].attention
            self.model.rerun([self.calibrated(slot, relevance(measured.cpu(), dummy.cpu()), 1)])
        self.cache.close(slot)

    def unbatched_passes(self) -> None:
        """Run K + 1 whole prompts, one after the other as in the dissertation, then the calibrated token."""
        for _ in self.prompt.spans:
            slot = self.cache.open(len(self.prompt.input_ids))
            self.model.prefill([Prefill(slot, self.prompt.input_ids, self.prompt.spans)])
            self.cache.close(slot)
        self.first_token("cached", DummyOptions(), self.model.config.num_layers)

    def decode(self, *, is_calibrated: bool) -> float:
        """Measure seconds per token."""
        slot = self.cache.open(len(self.prompt.input_ids) + NUM_DECODED)
        self.model.prefill([Prefill(slot, self.prompt.input_ids)])
        row = self.calibrated(slot, torch.zeros(len(self.prompt.spans)), 1) if is_calibrated else Row(slot, (300,))
        seconds = timed(lambda: [self.model.decode([row]) for _ in range(NUM_DECODED)])
        self.cache.close(slot)
        return seconds / NUM_DECODED

    def calibrated(self, slot: Slot, rel: torch.Tensor, num_rows: int) -> Row:
        """The last half of the layers, as in the dissertation."""
        depth = self.model.config.num_layers
        lengths = torch.full((len(self.prompt.spans),), DOCUMENT_TOKENS, device=rel.device)
        weights = log_alpha(rel, TEMPERATURE, lengths)
        calibration = Calibration(self.prompt.spans, weights, frozenset(range(depth // 2, depth)))
        return Row(slot, self.prompt.input_ids[-num_rows:], calibration)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compare(model: LanguageModel, num_documents: int, num_rounds: int) -> dict[str, Any]:
    """Measure every way once per round, relative to the round's vanilla, after a warm-up round without the slowest."""
    bench = Bench(model, random_prompt(num_documents, torch.Generator().manual_seed(num_documents)))
    depth = model.config.num_layers
    ways: dict[str, Callable[[], object]] = {
        "vanilla": lambda: bench.first_token(None, DummyOptions(), depth),
        "cached": lambda: bench.first_token("cached", DummyOptions(), depth),
        "single": lambda: bench.first_token("single", DummyOptions(), depth),
        **{name: lambda o=options: bench.first_token("tree", o, depth) for name, options in SAVINGS.items()},  # type: ignore[misc]
        "tree, rel of half the layers": lambda: bench.first_token("tree", DummyOptions(), depth // 2),
        "tree, all three": lambda: bench.first_token("tree", DummyOptions(dummy_tokens=16, window=256), depth // 2),
        "exact": lambda: bench.first_token("exact", DummyOptions(), depth),
        "exact, K + 1 unbatched passes": bench.unbatched_passes,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(num_rounds + 1):
        took = {name: timed(way) for name, way in ways.items() if number or name not in SLOWEST}
        if number:
            for name, value in took.items():
                seconds[name].append(value)
                ratios[name].append(value / took["vanilla"])
    return {
        "prompt_tokens": len(bench.prompt.input_ids),
        "vanilla_s": summary(seconds["vanilla"]),
        "over_vanilla": {name: summary(values) for name, values in ratios.items() if name != "vanilla"},
    }


def compare_output_tokens(model: LanguageModel, num_documents: int, num_rounds: int) -> dict[str, Any]:
    """Measure the seconds of an output token, calibrated over vanilla, the two in turn."""
    bench = Bench(model, random_prompt(num_documents, torch.Generator().manual_seed(num_documents)))
    bench.decode(is_calibrated=True)
    pairs = [(bench.decode(is_calibrated=True), bench.decode(is_calibrated=False)) for _ in range(4 * num_rounds)]
    return {
        "vanilla_s": summary([vanilla for _, vanilla in pairs]),
        "over_vanilla": summary([calibrated / vanilla for calibrated, vanilla in pairs]),
    }


def memory(directory: Path) -> dict[str, int]:
    """Measure the bytes that each way to get the last row's attention adds to a process's peak, with 20 documents.

    Ours is compared with a prefill without it, transformers' `output_attentions` with its own pass without it.
    """
    peaks = {}
    for way in PASSES:
        arguments = [sys.executable, "-m", "benchmarks.calibration", "--peak", way, "--model", str(directory)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        peaks[way] = int(done.stdout.split()[-1])
    return {
        "measure": max(0, peaks["measure"] - peaks["prefill"]),
        "output_attentions": max(0, peaks["output_attentions"] - peaks["transformers"]),
    }


def peak_bytes(directory: Path, way: str) -> int:
    """Return this process's peak memory in bytes after one pass over the prompt."""
    prompt = random_prompt(20, torch.Generator().manual_seed(0))
    if way in ("transformers", "output_attentions"):
        declare_torchvision_operators()
        from transformers import AutoModelForCausalLM

        is_seen = way == "output_attentions"
        # its default attention returns no weights
        reference = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager" if is_seen else "sdpa")
        with torch.inference_mode():
            reference(torch.tensor([prompt.input_ids]), output_attentions=is_seen, use_cache=True)
    else:
        model = LanguageModel.load(directory, DeviceOptions(device="cpu"))
        slot = model.new_cache(2 * len(prompt.input_ids)).open(len(prompt.input_ids))
        model.prefill([Prefill(slot, prompt.input_ids, prompt.spans if way == "measure" else ())])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("first_token", "output_token"), help="one of the two measurements")
    parser.add_argument("--peak", choices=PASSES, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(peak_bytes(options.model, options.peak))
        return
    with tempfile.TemporaryDirectory() as folder:
        num_parameters = save_random_llama(Path(folder))
        model = LanguageModel.load(Path(folder), DeviceOptions(device=options.device))
        if options.only != "output_token":
            added_bytes = memory(Path(folder))
            result = {f"{count}_documents": compare(model, count, options.rounds) for count in (10, 20)}
            show(result)
            record("calibration", {"parameters": num_parameters, **result, "added_peak_bytes": added_bytes})
        if options.only != "first_token":
            tokens = {f"{count}_documents": compare_output_tokens(model, count, options.rounds) for count in (10, 20)}
            record("output_token", {"parameters": num_parameters, **tokens})


def show(result: dict[str, Any]) -> None:
    """Print the ratios for both numbers of documents side by side."""
    table = Table("over vanilla", *result)
    for name in result["10_documents"]["over_vanilla"]:
        table.add_row(name, *(f"{column['over_vanilla'][name]['median']:.3f}" for column in result.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
