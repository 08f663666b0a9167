"""Scoring the labels of a T5 against transformers' `generate`, and other back ends on the same work.

    python -m benchmarks.predict_engines [--rounds 5] [--shapes small base] [--threads 0] [--only WORD]

t5-small and t5-base shapes with random weights, inputs of 16 to 64 tokens, batches of 1 and 32, 3 labels and 77. All
answer with one of the labels: `generate` is constrained to them by `prefix_allowed_tokens_fn`, and so can end as early
as possible. "generate, 10 tokens" is `generate` without constraints and with a limit of 10, the usual way to call it; a
trained student would end earlier. The engine computes the probability of each label ("all").

With random weights all next tokens are about equally likely, unlike with a trained student. So the head is rotated
("taught"), and a label's token is followed by that label's next one; the label still depends on the input.

Back ends are measured where they are installed: pip install ctranslate2 (greedy answers, and pairs scored, which
encodes an input once for each label), onnx onnxscript onnxruntime (the encoder alone, beside ours). `torch.compile`
needs a C++ compiler wherever the service runs (the encoder alone).
"""

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.nn.loading import declare_torchvision_operators
from services.predict.model.scoring import Candidates
from services.predict.model.student import Student

SHAPES: dict[str, dict[str, Any]] = {
    "small": {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "large": {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    "tiny": {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4},
}
VOCABULARY = 32_128
PAD, EOS = 0, 1
FIRST_WORD = 100
BATCHES = (1, 32)
NUM_CHECKED = 256  # inputs on which int8 must find float32's label
# Boosts in "taught": of a label's next token, and of first tokens that depend on the input.
SURENESS = 30.0
FIRSTS_SPREAD = 3.0

Answer = Callable[[Sequence[list[int]]], Any]


@dataclass(frozen=True)
class Contender:
    """A back end that answers a batch of inputs; `batches` are the sizes at which it is measured."""

    name: str
    answer: Answer
    batches: tuple[int, ...] = BATCHES


def draw_inputs(count: int, seed: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [[*draw.integers(FIRST_WORD, VOCABULARY, draw.integers(15, 64)).tolist(), EOS] for _ in range(count)]


def draw_labels(count: int) -> list[list[int]]:
    """Return 3 labels tokenised as T5 does NLI's, or 77 of two to six tokens with 30 first words, like intents."""
    draw = np.random.default_rng(count)
    if count == 3:
        return [[*draw.integers(FIRST_WORD, VOCABULARY, length).tolist(), EOS] for length in (3, 1, 2)]
    words = draw.permutation(np.arange(FIRST_WORD, VOCABULARY)).tolist()
    firsts = [words.pop() for _ in range(30)]
    lengths = draw.integers(1, 6, count).tolist()
    return [[firsts[n % 30], *(words.pop() for _ in range(length)), EOS] for n, length in enumerate(lengths)]


def random_t5(shape: str) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    create: Any = T5Config
    config = create(
        vocab_size=VOCABULARY,
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
        eos_token_id=EOS,
        tie_word_embeddings=False,
        **SHAPES[shape],
    )
    model: Any = T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, config.d_model) * config.d_model**-0.5)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def teach(model: Any, labels: Sequence[list[int]]) -> None:
    """Turn the head: what a decoder's row makes of a token is the sign by which the next token is known."""
    paths = list(dict.fromkeys((PAD, *label[:length]) for label in labels for length in range(len(label))))
    node_of = {path: node for node, path in enumerate(paths)}
    edges = dict.fromkeys(
        (node_of[PAD, *label[:place]], token) for label in labels for place, token in enumerate(label)
    )
    inputs = draw_inputs(8, seed=99)
    rows = []  # for each node and input: the hidden state before the head
    for ids in inputs:
        longest = max(map(len, paths))
        padded = torch.tensor([[*path, *[PAD] * (longest - len(path))] for path in paths])
        encoded = model.encoder(input_ids=torch.tensor([ids])).last_hidden_state.expand(len(paths), -1, -1)
        hidden = model.decoder(input_ids=padded, encoder_hidden_states=encoded).last_hidden_state
        rows.append(torch.stack([hidden[node, len(path) - 1] for node, path in enumerate(paths)]))
    states = torch.stack(rows, dim=1)  # (N, inputs, D)
    centres = states.mean(dim=1)
    shared = centres.mean(dim=0)
    draw = torch.Generator().manual_seed(1)
    head = torch.zeros_like(model.lm_head.weight)
    for node, token in edges:
        sign = centres[node] - shared
        head[token] += SURENESS * sign / sign.dot(sign)
        if node == 0:  # labels depend on the input by directions of their own
            spread = (states[0] - centres[0]).norm(dim=1).mean()
            direction = torch.randn(len(sign), generator=draw)
            direction -= direction.dot(centres[0]) / centres[0].dot(centres[0]) * centres[0]
            head[token] += FIRSTS_SPREAD / spread * direction
    model.lm_head.weight += head


def constrained_generate(model: Any, labels: Sequence[list[int]]) -> Answer:
    following: dict[tuple[int, ...], list[int]] = {}
    for label in labels:
        for place, token in enumerate(label):
            allowed = following.setdefault((PAD, *label[:place]), [])
            if token not in allowed:
                allowed.append(token)
    longest = max(map(len, labels))

    def answer(inputs: Sequence[list[int]]) -> list[tuple[int, ...]]:
        rows, mask = padded(inputs)
        made = model.generate(
            rows,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=longest,
            prefix_allowed_tokens_fn=lambda _, ids: following.get(tuple(ids.tolist()), [PAD]),
        )
        return [tuple(ids[1:]) for ids in made.tolist()]

    return answer


def free_generate(model: Any, max_new_tokens: int) -> Answer:
    def answer(inputs: Sequence[list[int]]) -> Any:
        rows, mask = padded(inputs, model.device)
        return model.generate(rows, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens)

    return answer


def padded(inputs: Sequence[list[int]], device: torch.device | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and their attention mask as transformers wants them."""
    width = max(map(len, inputs))
    rows = torch.tensor([[*ids, *[PAD] * (width - len(ids))] for ids in inputs], device=device)
    return rows, (rows != PAD).long()


def scoring(student: Student, labels: Sequence[list[int]]) -> Answer:
    candidates = Candidates(labels, PAD)

    def answer(inputs: Sequence[list[int]]) -> list[list[float]]:
        scores = student.score(student.encode(inputs), [candidates] * len(inputs))
        return [some.exp().tolist() for some in scores]

    return answer


def ctranslate2_contenders(folder: Path, model: Any, labels: Sequence[list[int]], threads: int) -> Iterator[Contender]:
    """Yield CTranslate2's contenders. Tokens are named by their numbers, since no text is involved."""
    import ctranslate2  # type: ignore[import-not-found]
    from ctranslate2.converters.converter import Converter  # type: ignore[import-not-found]
    from ctranslate2.converters.transformers import T5Loader  # type: ignore[import-not-found]

    names = [str(number) for number in range(VOCABULARY)]
    model.config.tie_word_embeddings = (
        False  # it reads from this whether logits are scaled; transformers 5 changed that
    )

    class Loaded(Converter):  # type: ignore[misc]
        """A converter of a model that is loaded already, without a tokenizer."""

        def _load(self) -> Any:
            loader = T5Loader()
            spec = loader.get_model_spec(model)
            spec.register_source_vocabulary(names)
            spec.register_target_vocabulary(names)
            spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = str(PAD), str(EOS), "2"
            spec.config.decoder_start_token = str(PAD)
            spec.config.add_source_eos = False
            return spec

    Loaded().convert(str(folder / "ct2"), force=True)
    longest = max(map(len, labels))
    for kind in ("float32", "int8"):
        translator = ctranslate2.Translator(
            str(folder / "ct2"), compute_type=kind, inter_threads=1, intra_threads=threads
        )

        def greedy(inputs: Sequence[list[int]], translator: Any = translator) -> Any:
            return translator.translate_batch(
                [[names[id_] for id_ in ids] for ids in inputs], beam_size=1, max_decoding_length=longest
            )

        def scored(inputs: Sequence[list[int]], translator: Any = translator) -> Any:
            sources = [[names[id_] for id_ in ids] for ids in inputs for _ in labels]
            targets = [[names[id_] for id_ in label[:-1]] for _ in inputs for label in labels]
            return translator.score_batch(sources, targets)

        yield Contender(f"CTranslate2 {kind}, greedy", greedy)
        yield Contender(f"CTranslate2 {kind}, labels scored", scored, BATCHES if len(labels) < 10 else (1,))


def contenders(folder: Path, model: Any, labels: Sequence[list[int]], threads: int) -> Iterator[Contender]:
    yield Contender("transformers generate", constrained_generate(model, labels))
    yield Contender("transformers generate, 10 tokens", free_generate(model, 10))
    for kind, is_int8 in (("float32", False), ("int8", True)):
        student = Student(model, None, is_int8=is_int8)
        yield Contender(f"{kind}, all", scoring(student, labels))
    if importlib.util.find_spec("ctranslate2"):
        yield from ctranslate2_contenders(folder, model, labels, threads)


def seconds(answer: Answer, batch: int, seed: int) -> float:
    inputs = draw_inputs(batch, seed)
    began = time.perf_counter()
    answer(inputs)
    return time.perf_counter() - began


def agreement(model: Any, labels: Sequence[list[int]]) -> dict[str, float]:
    """Measure how often int8 finds the label of float32, and how far probabilities are apart."""
    inputs = draw_inputs(NUM_CHECKED, seed=7)
    exact, rough = (
        np.array(scoring(Student(model, None, is_int8=is_int8), labels)(inputs)) for is_int8 in (False, True)
    )
    return {
        "same_label": float((exact.argmax(1) == rough.argmax(1)).mean()),
        "mean_difference": float(np.abs(exact - rough).max(1).mean()),
        "distinct_labels": len(set(exact.argmax(1).tolist())),
        "mean_probability": float(exact.max(1).mean()),
    }


def encoders(folder: Path, model: Any, student: Student, threads: int) -> Iterator[Contender]:
    """Yield contenders for the encoder alone, on one input or on a padded batch."""
    yield Contender("encoder: transformers", lambda inputs: model.encoder(*padded(inputs)))
    yield Contender("encoder: float32", student.encode)
    yield Contender("encoder: int8", Student(model, None, is_int8=True).encode)
    compiled: Any = torch.compile(model.encoder, dynamic=True)
    yield Contender("encoder: torch.compile", lambda inputs: compiled(*padded(inputs)))
    if not (importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnxscript")):
        return
    import onnxruntime  # type: ignore[import-not-found]
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-not-found]

    class Encoder(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return model.encoder(input_ids, attention_mask).last_hidden_state

    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    paths = {"float32": folder / "encoder.onnx", "int8": folder / "encoder-int8.onnx"}
    torch.onnx.export(
        Encoder(), padded(draw_inputs(2, 0)), paths["float32"], dynamo=True, dynamic_shapes=(shape, shape)
    )
    quantize_dynamic(paths["float32"], paths["int8"], per_channel=True, weight_type=QuantType.QInt8)
    for kind, path in paths.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options)
        names = [put.name for put in session.get_inputs()]

        def run(inputs: Sequence[list[int]], session: Any = session, names: Sequence[str] = names) -> Any:
            return session.run(None, dict(zip(names, (part.numpy() for part in padded(inputs)), strict=True)))

        yield Contender(f"encoder: ONNX Runtime {kind}", run)


@torch.inference_mode()
def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for shape in options.shapes:
        for count in (3, 77):
            model, labels = random_t5(shape), draw_labels(count)
            teach(model, labels)
            work = f"{shape}, {count} labels, taught"
            if options.only and options.only not in work:
                continue
            _compare(figures, work, contenders(folder, model, labels, options.threads), options.rounds)
            figures[f"{work}: int8 agreement"] = agreement(model, labels)
        if not options.only or options.only in "encoder":
            model = random_t5(shape)
            everyone = encoders(folder, model, Student(model, None), options.threads)
            _compare(figures, f"{shape}, encoder", everyone, options.rounds)
    return figures


def _compare(figures: dict[str, Any], work: str, contenders: Iterable[Contender], num_rounds: int) -> None:
    """Measure every contender once per round, after a warm-up round; each round has other inputs. Other work on the
    machine slows all of a round, so each contender is compared with the first of its own round."""
    everyone = list(contenders)
    for batch in BATCHES:
        taken: dict[str, list[float]] = {}
        for contender in everyone:
            if batch in contender.batches:
                seconds(contender.answer, batch, 0)
                taken[contender.name] = []
        for number in range(num_rounds):
            for contender in everyone:
                if contender.name in taken:
                    taken[contender.name].append(seconds(contender.answer, batch, number + 1))
        first = taken[everyone[0].name]
        for name, own in taken.items():
            figures[f"{work}, batch {batch}: {name}"] = {
                **summary([1000 * some for some in own]),
                "first_over_it": summary([theirs / some for theirs, some in zip(first, own, strict=True)]),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["small", "base"])
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--only", default="", help="work whose name holds this word")
    options = parser.parse_args()
    declare_torchvision_operators()
    if options.threads:
        torch.set_num_threads(options.threads)
    options.threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    table = Table("work", "milliseconds a batch", "transformers over it")
    for name, figure in figures.items():
        if "median" in figure:
            table.add_row(name, f"{figure['median']:.1f}", f"{figure['first_over_it']['median']:.1f}")
        else:
            table.add_row(name, ", ".join(f"{key} {value:.4g}" for key, value in figure.items()))
    Console(width=140).print(table)
    record("predict_engines", {"threads": options.threads, "figures": figures})


if __name__ == "__main__":
    main()
