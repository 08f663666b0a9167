"""Fovea's own engine at a Llama's shape, beside transformers."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.calibration import NUM_DECODED, Bench, random_prompt
from benchmarks.on_gpu.measuring import DEVICE, DTYPE, Figures, Sizes, Way, compared, free
from benchmarks.random_llama import VOCABULARY, made_up_tokenizer, random_llama
from services.generate.generation.bias import DummyOptions
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.nn.loading import transformers

# Of the prompts after which further tokens are measured.
NUM_DOCUMENTS = 5


def generate(sizes: Sizes) -> Iterator[tuple[str, Figures]]:
    shape = {**sizes.llama, "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "eos_token_id": 1}
    with torch.device(DEVICE):
        model = random_llama(shape, dtype=DTYPE)
    # modules of its own, since the engine takes those that it is given apart, but the same weights
    reference = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    engine = LanguageModel(model, made_up_tokenizer())
    for num_tokens in sizes.prompts:
        yield f"prefill of {num_tokens} tokens", prefill(engine, reference, num_tokens)
        free()
    for num_sequences in sizes.sequences:
        yield f"further tokens, batch of {num_sequences}", further_tokens(engine, reference, num_sequences)
        free()
    for count in sizes.documents:
        yield f"first token, {count} documents", first_token(engine, count)
        free()


def prefill(engine: LanguageModel, reference: Any, num_tokens: int) -> Figures:
    input_ids = torch.randint(300, VOCABULARY, (1, num_tokens), device=DEVICE)
    prompt = tuple(input_ids[0].tolist())
    cache = engine.new_cache(num_tokens)

    def own() -> None:
        slot = cache.open(num_tokens)
        engine.prefill([Prefill(slot, prompt)])
        cache.close(slot)

    theirs = torch.inference_mode()(partial(reference, input_ids, logits_to_keep=1))
    return compared({"transformers": theirs, "fovea": own}, num_items=num_tokens)


@torch.inference_mode()
def further_tokens(engine: LanguageModel, reference: Any, num_sequences: int) -> Figures:
    """Measure tokens after prompts of equal length, to which each turn goes back; calibrated in the last half of the
    layers."""
    bench = Bench(engine, random_prompt(NUM_DOCUMENTS, torch.Generator().manual_seed(0)))
    prompt = bench.prompt.input_ids
    room = len(prompt) + NUM_DECODED
    cache = engine.new_cache(num_sequences * room)
    slots = [cache.open(room) for _ in range(num_sequences)]
    engine.prefill([Prefill(slot, prompt) for slot in slots])
    theirs = transformers().DynamicCache(config=reference.config)
    prompts = torch.tensor([prompt] * num_sequences, device=DEVICE)
    reference(prompts, past_key_values=theirs, logits_to_keep=1)

    def decode(rows: Sequence[Row]) -> None:
        for _ in range(NUM_DECODED):
            engine.decode(rows)
        for slot in slots:
            slot.length -= NUM_DECODED

    def decode_by_transformers() -> None:
        for _ in range(NUM_DECODED):
            reference(prompts[:, -1:], past_key_values=theirs)
        theirs.crop(-NUM_DECODED)

    rel = torch.zeros(NUM_DOCUMENTS)
    ways: dict[str, Way] = {
        "transformers": decode_by_transformers,
        "fovea": partial(decode, [Row(slot, prompt[-1:]) for slot in slots]),
        "fovea, calibrated": partial(decode, [bench.calibrated(slot, rel, 1) for slot in slots]),
    }
    return compared(ways, num_steps=NUM_DECODED, num_items=num_sequences)


def first_token(engine: LanguageModel, num_documents: int) -> Figures:
    """Measure the first token with each estimate of the bias, and without calibration."""
    bench = Bench(engine, random_prompt(num_documents, torch.Generator().manual_seed(num_documents)))
    first = partial(bench.first_token, options=DummyOptions(), num_layers=engine.config.num_layers)
    return compared(
        {
            "vanilla": partial(first, None),
            "cached": partial(first, "cached"),
            "single": partial(first, "single"),
            "tree": partial(first, "tree"),
            "exact": partial(first, "exact"),
        }
    )
