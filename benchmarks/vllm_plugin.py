"""vLLM with the plug-in beside stock vLLM, at the shape of a 7B Llama with random weights; on CPUs, of a tiny one.

    .venv-vllm/bin/python -m benchmarks.vllm_plugin

The Python is that of an environment with vLLM and the plug-in. Each side is an engine in a process of its own, which
share the GPU. Milliseconds of a first token and of a further one, for prompts of two lengths with 20 documents, alone
and in a batch (a smaller one if the cache has no room for it): of plain, calibrated and measured requests to the
plug-in, each by turns with a plain one to stock vLLM. `over_stock` are quartiles of the ratios of these pairs. `checks`
are the largest differences of log-probabilities: of calibrated answers from plain ones, of tokens decoded with captured
graphs from the same tokens as a prompt, of a neighbour in the batch from itself alone, and of rows that are calibrated
to the attention that they have from plain ones.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

SHAPES = {
    True: {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    False: {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
}
NUM_DOCUMENTS = 20
# Tokens of prompts, sizes of batches for each, and further tokens: on a GPU, and on CPUs.
SIZES = {True: ({2048: (1, 32), 4096: (1, 16)}, 64), False: ({256: (1, 4)}, 8)}
Prompt = tuple[list[int], list[tuple[int, int]]]
Fields = dict[str, Any] | None
KINDS = ("plain", "calibrated", "measured")
Times = tuple[float, float]


class Engine:
    """vLLM in this process, and prompts of random tokens for it."""

    def __init__(self, folder: Path, *, is_gpu: bool) -> None:
        from vllm import LLM
        from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

        DummyModelLoader.load_weights = lambda self, model, *_: randomize(model)
        self.num_layers = SHAPES[is_gpu]["num_hidden_layers"]
        self.num_heads = SHAPES[is_gpu]["num_attention_heads"]
        (folder / "config.json").write_text(json.dumps({**CONFIG, **SHAPES[is_gpu]}))
        own: dict[str, Any] = (
            {"dtype": "bfloat16", "gpu_memory_utilization": 0.45}
            if is_gpu
            else {"dtype": "float32", "enforce_eager": True}
        )
        self._llm = LLM(
            str(folder),
            load_format="dummy",
            max_model_len=8192,
            skip_tokenizer_init=True,
            max_num_seqs=64,
            seed=0,
            **own,
        )
        self._random = random.Random(0)

    def room(self) -> int:
        """Return the tokens that its cache holds."""
        cache = self._llm.llm_engine.vllm_config.cache_config
        return int(cache.num_gpu_blocks * cache.block_size)

    def prompt(self, num_tokens: int) -> Prompt:
        tokens = [self._random.randrange(300, 32000) for _ in range(num_tokens)]
        length = (num_tokens - 48) // NUM_DOCUMENTS
        return tokens, [(24 + k * length, 24 + (k + 1) * length) for k in range(NUM_DOCUMENTS)]

    def calibrated(self, prompt: Prompt, number: int = 0) -> Fields:
        """Calibrate the last half of the layers, as profiles do."""
        layers = list(range(self.num_layers // 2, self.num_layers))
        return documents(prompt) | {
            "fovea_log_alpha": [float(-(k % 5)) for k in range(NUM_DOCUMENTS)],
            "fovea_layers": layers,
        }

    def measured(self, prompt: Prompt, number: int) -> Fields:
        return documents(prompt) | {"fovea_measure": str(number)}

    def answer(self, prompts: Sequence[Sequence[int]], fields: Sequence[Fields], num_tokens: int) -> tuple[float, Any]:
        """Return the seconds of the answers, and log-probabilities of each of their tokens."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False, logprobs=20, extra_args=one
            )
            for one in fields
        ]
        begin = perf_counter()
        outputs = self._llm.generate([{"prompt_token_ids": list(one)} for one in prompts], params, use_tqdm=False)
        seconds = perf_counter() - begin
        return seconds, [output.outputs[0] for output in outputs]

    def forget(self) -> None:
        self._llm.reset_prefix_cache()

    def attention(self, key: str) -> Any:
        return self._llm.collective_rpc("take_fovea_attention", args=(key,))[0]


def randomize(model: Any) -> None:
    """Draw weights with which attention is uneven and acts on the answer; vLLM's own dummies are nearly zero."""
    import torch

    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 1.5 / parameter.shape[-1] ** 0.5)
        else:
            parameter.data.fill_(1)


def documents(prompt: Prompt) -> dict[str, Any]:
    return {"fovea_documents": [place for span in prompt[1] for place in span]}


def timed(engine: Engine, kind: str, num_tokens: int, batch: int, num_further: int) -> Times:
    """Return the milliseconds of a first and of a further token of new requests of a kind."""
    fields_of: dict[str, Callable[[Prompt, int], Fields]] = {
        "plain": lambda prompt, number: None,
        "calibrated": engine.calibrated,
        "measured": engine.measured,
    }
    prompts = [engine.prompt(num_tokens) for _ in range(batch)]
    fields = [fields_of[kind](prompt, number) for number, prompt in enumerate(prompts)]
    tokens = [prompt[0] for prompt in prompts]
    first, _ = engine.answer(tokens, fields, 1)
    again, _ = engine.answer(tokens, fields, 1)  # out of the prefix cache, as the next
    whole, _ = engine.answer(tokens, fields, 1 + num_further)
    return 1e3 * first, 1e3 * (whole - again) / num_further


def checks(engine: Engine, num_tokens: int) -> dict[str, float]:
    """Compare log-probabilities of answers that ought to be equal, and of two that ought to differ."""
    prompt = engine.prompt(num_tokens)
    tokens, calibrated = prompt[0], engine.calibrated(prompt)
    _, [plain] = engine.answer([tokens], [None], 9)
    _, [answer] = engine.answer([tokens], [calibrated], 9)
    _, [beside, neighbour] = engine.answer([tokens, tokens], [calibrated, None], 9)
    engine.answer([tokens], [engine.measured(prompt, -1)], 1)
    shares = [math.log(max(one, 1e-30)) for layer in engine.attention("-1") for head in layer for one in head]
    own = documents(prompt) | {"fovea_log_alpha": shares, "fovea_layers": list(range(engine.num_layers))}
    _, [same] = engine.answer([tokens], [own], 1)
    engine.forget()
    asked = [*tokens, *answer.token_ids[:8]]
    _, [as_prompt] = engine.answer([asked], [(calibrated or {}) | {"fovea_first_row": len(tokens) - 1}], 1)
    _, [plain_as_prompt] = engine.answer([[*tokens, *plain.token_ids[:8]]], [None], 1)
    return {
        "calibrated and plain": difference(answer.logprobs[0], plain.logprobs[0]),
        "graphs and prompt, calibrated": difference(answer.logprobs[8], as_prompt.logprobs[0]),
        "graphs and prompt, plain": difference(plain.logprobs[8], plain_as_prompt.logprobs[0]),
        "in a batch and alone": difference(beside.logprobs[8], answer.logprobs[8]),
        "neighbour and alone": difference(neighbour.logprobs[8], plain.logprobs[8]),
        "calibrated to its own attention and plain": difference(same.logprobs[0], plain.logprobs[0]),
    }


def difference(some: Any, others: Any) -> float:
    return float(max(abs(some[token].logprob - others[token].logprob) for token in some if token in others))


def serve() -> None:
    """Answer questions of `Side`, one a line, with lines of JSON."""
    import torch

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder), is_gpu=torch.cuda.is_available())
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            question: dict[str, Callable[..., Any]] = {"timed": timed, "checks": checks, "room": Engine.room}
            print(json.dumps(question[name](engine, *arguments)), file=answers, flush=True)


class Side:
    """A process with an engine."""

    def __init__(self, plugins: str) -> None:
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": plugins,
            "OMP_WAIT_POLICY": "PASSIVE",  # an engine that waits takes no processor from the other
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.vllm_plugin", "--serve"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def compare(stock: Side, plugin: Side, room: int, num_rounds: int, *, is_gpu: bool) -> None:
    """Ask the plug-in for each kind of request and stock vLLM for a plain one, by turns; print a line for each size."""
    sizes, num_further = SIZES[is_gpu]
    for num_tokens, largest in [(tokens, batch) for tokens, batches in sizes.items() for batch in batches]:
        batch = min(largest, room // (num_tokens + num_further + 64))  # a larger one would wait for memory
        pairs: dict[str, list[tuple[Times, Times]]] = {kind: [] for kind in KINDS}
        for number in range(num_rounds + 1):
            for kind in KINDS:
                turns = [(plugin, kind), (stock, "plain")]
                order = turns if number % 2 else turns[::-1]
                asked = {side: side.ask("timed", one, num_tokens, batch, num_further) for side, one in order}
                own, other = (asked[side] for side, _ in turns)
                if number:  # the first time, kernels are compiled
                    pairs[kind].append((own, other))
        report = {kind: summary(some) for kind, some in pairs.items()}
        print(json.dumps({"tokens": num_tokens, "batch": batch, "rounds": num_rounds, **report}), flush=True)


def summary(pairs: Sequence[tuple[Times, Times]]) -> dict[str, Any]:
    """Return medians of a first and of a further token, and quartiles of the ratios of pairs to stock vLLM."""
    found: dict[str, Any] = {}
    for place, name in enumerate(("first", "further")):
        found[f"{name}_ms"] = round(median(own[place] for own, _ in pairs), 3)
        ratios = [own[place] / other[place] for own, other in pairs]
        found[f"{name}_over_stock"] = [round(ratio, 3) for ratio in quantiles(ratios, method="inclusive")]
    return found


def main() -> None:
    """Start both sides and compare them; `--serve` is a side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="Turns that are measured.")
    chosen = parser.parse_args()
    if chosen.serve:
        serve()
        return
    import torch

    is_gpu = torch.cuda.is_available()
    stock = Side("none")
    room = stock.ask("room")  # once it has started: while another engine starts, vLLM measures memory wrongly
    plugin = Side("fovea")
    compare(stock, plugin, min(room, plugin.ask("room")), chosen.rounds, is_gpu=is_gpu)
    print(json.dumps({"checks": plugin.ask("checks", min(SIZES[is_gpu][0]))}), flush=True)
    for side in (stock, plugin):
        side.close()


if __name__ == "__main__":
    main()
