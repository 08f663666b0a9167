"""What runs packed, cached, in slots and in batches is what transformers' own model computes alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from services.generate.language_model import LanguageModel, Prefill, Row
from services.nn.devices import DeviceOptions
from tests.generate.tiny_models import CONFIGS, VOCAB_SIZE, tiny_model, tiny_tokenizer

CPU = DeviceOptions(device="cpu", dtype="float32")
LENGTHS = (5, 40, 23, 1, 300)
SPANS = ((4, 12), (12, 15), (15, 31))


def tokens(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist())


@pytest.fixture(params=sorted(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str) -> LanguageModel:
    return LanguageModel(tiny_model(name), tiny_tokenizer())


@pytest.fixture
def reference(name: str) -> Any:
    return tiny_model(name, attention="eager")


def logits_of(reference: Any, input_ids: tuple[int, ...]) -> Tensor:
    """Of the last token, by the whole sequence in one uncached call."""
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([input_ids])).logits[0, -1]
    return logits


def assert_close(found: Tensor, expected: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-4)


def test_unequal_prompts_in_one_pass_answer_as_each_does_alone(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    prompts = [tokens(length) for length in LENGTHS]
    found = model.prefill([Prefill(cache.open(400), prompt) for prompt in prompts])
    for prompt, prefilled in zip(prompts, found, strict=True):
        assert_close(prefilled.logits, logits_of(reference, prompt))
        assert prefilled.attention is None
        assert prefilled.token_logprobs is None


def test_a_prompt_that_comes_in_parts_answers_as_the_whole(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    prompt = tokens(700)
    slots = [cache.open(800), cache.open(800)]
    model.prefill([Prefill(slots[0], prompt[:30]), Prefill(slots[1], prompt[:31])])
    found = model.prefill([Prefill(slots[0], prompt[30:]), Prefill(slots[1], prompt[31:40])])
    assert_close(found[0].logits, logits_of(reference, prompt))
    assert_close(found[1].logits, logits_of(reference, prompt[:40]))


def test_the_last_row_is_measured_where_its_documents_stand(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(1000)
    prompts = [tokens(40), tokens(35, seed=1)]
    spans = [SPANS, ((1, 3),)]
    found = model.prefill([Prefill(cache.open(100), *each) for each in zip(prompts, spans, strict=True)])
    for prompt, own, prefilled in zip(prompts, spans, found, strict=True):
        with torch.inference_mode():
            attentions = reference(torch.tensor([prompt]), output_attentions=True).attentions
        last = torch.stack([layer[0, :, -1] for layer in attentions])
        expected = torch.stack([last[:, :, start:stop].mean(dim=-1) for start, stop in own], dim=-1)
        assert prefilled.attention is not None
        assert_close(prefilled.attention, expected, atol=1e-6)


def test_every_token_is_scored_given_those_before_it(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(2000)
    prompts = [tokens(40), tokens(300)]
    found = model.prefill([Prefill(cache.open(400), prompt, scores_all=True) for prompt in prompts])
    for prompt, prefilled in zip(prompts, found, strict=True):
        with torch.inference_mode():
            logprobs = reference(torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
        assert prefilled.token_logprobs is not None
        expected = logprobs[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert_close(prefilled.token_logprobs, expected)
        assert_close(prefilled.logits.log_softmax(dim=-1), logprobs[-1])


def test_decoding_beside_others_continues_each_sequence_as_alone(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    sequences = [tokens(length) for length in LENGTHS]
    slots = [cache.open(320) for _ in sequences]
    model.prefill([Prefill(slot, sequence) for slot, sequence in zip(slots, sequences, strict=True)])
    for step in range(8):
        if step == 4:  # one leaves, another joins, and the order of rows is not that of slots
            cache.close(slots.pop(1))
            sequences.pop(1)
            slots.insert(0, cache.open(320))
            sequences.insert(0, tokens(11, seed=3))
            model.prefill([Prefill(slots[0], sequences[0])])
        following = [tokens(1, seed=100 * step + place) for place in range(len(slots))]
        sequences = [sequence + new for sequence, new in zip(sequences, following, strict=True)]
        found = model.decode([Row(slot, new) for slot, new in zip(slots, following, strict=True)])
        for sequence, logits in zip(sequences, found, strict=True):
            assert_close(logits, logits_of(reference, sequence))


def test_some_of_the_open_slots_may_decode_without_the_others(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    sequences = [tokens(length) for length in LENGTHS]
    slots = [cache.open(320) for _ in sequences]
    model.prefill([Prefill(slot, sequence) for slot, sequence in zip(slots, sequences, strict=True)])
    for chosen in ([4, 0, 2], [3], [1, 2]):
        found = model.decode([Row(slots[place], (7,)) for place in chosen])
        for place, logits in zip(chosen, found, strict=True):
            sequences[place] = (*sequences[place], 7)
            assert_close(logits, logits_of(reference, sequences[place]))
