"""Calibration inside of real architectures equals Eq. 3.5 on attention weights written out in full."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.generate.calibrated_weights import NUM_DOCUMENTS, PROMPTS, SPANS, Spans, alphas, rescaled_one_by_one
from tests.generate.padded_pass import PaddedPass
from tests.generate.tiny_models import CONFIGS, VOCAB_SIZE, tiny_model

# transformers imports only once the tiny models have declared what it needs
from transformers import DynamicCache, PreTrainedModel  # isort: skip

NUM_NEW = 8
LAYERS = (1, 2, 3)


def prompt_ids() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(2, VOCAB_SIZE, (n,), generator=generator).tolist() for n, _ in PROMPTS]


class Materialised:
    """Attention of one unpadded sequence in transformers' registry, with every weight written out.

    Rows from `first_row` on are calibrated in `layers` by `log_alpha` (K,) or (L, H, K).
    """

    def __init__(self, spans: Spans, log_alpha: Tensor | None, first_row: int) -> None:
        self.spans, self.log_alpha, self.first_row = spans, log_alpha, first_row
        self.weights: list[Tensor] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
        hidden = (distance < 0) | (distance >= (sliding_window or 1 << 30))
        scores = (query @ key.transpose(2, 3) * scaling).masked_fill(hidden, -torch.inf)
        weights = scores.softmax(dim=-1)
        self.weights.append(weights)
        if self.log_alpha is not None and layer in LAYERS and self.spans:
            alpha = self.log_alpha.exp()
            alpha = (alpha if alpha.dim() == 1 else alpha[layer, :, None])[..., : len(self.spans)].to(weights.dtype)
            rows = rescaled_one_by_one(weights[:, :, self.first_row :], self.spans, alpha)
            weights = torch.cat([weights[:, :, : self.first_row], rows], dim=2)
        return (weights @ value).transpose(1, 2)


def left_padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and position ids, (B, T) each."""
    longest = max(map(len, sequences))
    ids = torch.tensor([[7] * (longest - len(s)) + list(s) for s in sequences])
    mask = torch.tensor([[0] * (longest - len(s)) + [1] * len(s) for s in sequences])
    return ids, mask, (mask.cumsum(dim=1) - 1).clamp_min(0)


def generate(model: PreTrainedModel, forward_pass: PaddedPass) -> tuple[Tensor, Tensor, DynamicCache]:
    """Generate greedy tokens (B, 8), the logits (B, 9, V) of the last prompt row and of theirs, and their cache."""
    ids, _, positions = left_padded(prompt_ids())
    cache = DynamicCache(config=model.config)
    logits, tokens = [], []
    for step in range(1 + NUM_NEW):
        output = model(ids, position_ids=positions, past_key_values=cache, forward_pass=forward_pass)
        logits.append(output.logits[:, -1])
        ids, positions = logits[-1].argmax(dim=-1, keepdim=True), positions[:, -1:] + 1
        if step < NUM_NEW:
            tokens.append(ids)
    return torch.cat(tokens, dim=1), torch.stack(logits, dim=1), cache


def assert_equals_explicit(model: PreTrainedModel, log_alpha: Tensor, tolerance: float) -> None:
    _, mask, _ = left_padded(prompt_ids())
    tokens, logits, _ = generate(model, PaddedPass(mask, SPANS, log_alpha=log_alpha, layers=LAYERS))
    for row, prompt in enumerate(prompt_ids()):
        reference = Materialised(SPANS[row], log_alpha[row], first_row=len(prompt) - 1)
        expected = model(torch.tensor([[*prompt, *tokens[row].tolist()]]), forward_pass=reference).logits
        torch.testing.assert_close(logits[row], expected[0, len(prompt) - 1 :], atol=tolerance, rtol=0)
        plain = model(torch.tensor([[*prompt, *tokens[row].tolist()]]), forward_pass=Materialised([], None, 0)).logits
        if SPANS[row]:
            assert (plain - expected)[0, len(prompt) - 1 :].abs().max() > 1e-2  # there was something to change


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_calibrated_prefill_and_decoding_equal_the_equation_on_materialised_attention(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    assert_equals_explicit(tiny_model(name, dtype=dtype), alphas(), tolerance)


@pytest.mark.parametrize("name", ["llama", "qwen2_sliding"])
def test_each_head_may_have_an_alpha_of_its_own(name: str) -> None:
    assert_equals_explicit(tiny_model(name, dtype=torch.float64), alphas(4, 4), 1e-9)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_without_alpha_the_model_answers_as_transformers_own_attention_does(name: str) -> None:
    ids, mask, positions = left_padded(prompt_ids())
    _, logits, _ = generate(tiny_model(name), PaddedPass(mask, SPANS))
    own = tiny_model(name, attention="eager")(ids, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(logits[:, 0], own[:, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_what_is_measured_is_the_mean_of_transformers_own_attention_weights(name: str) -> None:
    ids, mask, positions = left_padded(prompt_ids())
    forward_pass = PaddedPass(mask, SPANS)
    tiny_model(name)(ids, position_ids=positions, forward_pass=forward_pass)
    assert forward_pass.attention.shape == (4, 4, 4, NUM_DOCUMENTS)
    eager = tiny_model(name, attention="eager")
    for row, prompt in enumerate(prompt_ids()):
        weights = eager(torch.tensor([prompt]), output_attentions=True).attentions
        for layer, own in enumerate(weights):
            for k, (start, end) in enumerate(SPANS[row]):
                expected = own[0, :, -1, start:end].mean(dim=-1) if end > start else torch.zeros(4)
                torch.testing.assert_close(forward_pass.attention[row, layer, :, k], expected, atol=1e-5, rtol=0)


def test_the_prompts_keys_and_values_stay_as_the_model_computes_them() -> None:
    model = tiny_model()
    ids, mask, positions = left_padded(prompt_ids())
    caches: list[Any] = []
    for log_alpha in (alphas(), None):
        cache = DynamicCache(config=model.config)
        forward_pass = PaddedPass(mask, SPANS, log_alpha=log_alpha, layers=LAYERS)
        model(ids, position_ids=positions, past_key_values=cache, forward_pass=forward_pass)
        caches.append(cache)
    for calibrated, plain in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(calibrated.keys[:, :, :-1], plain.keys[:, :, :-1])
        assert torch.equal(calibrated.values[:, :, :-1], plain.values[:, :, :-1])
    # the last token's own do change behind the first calibrated layer, except where there is no document
    assert not torch.equal(caches[0].layers[3].keys[0, :, -1], caches[1].layers[3].keys[0, :, -1])
    torch.testing.assert_close(caches[0].layers[3].keys[3], caches[1].layers[3].keys[3], atol=1e-5, rtol=0)


def test_running_the_last_token_again_equals_a_calibrated_prefill() -> None:
    model = tiny_model(dtype=torch.float64)
    ids, mask, positions = left_padded(prompt_ids())
    prefill = PaddedPass(mask, SPANS, log_alpha=alphas(), layers=LAYERS)
    expected = model(ids, position_ids=positions, forward_pass=prefill).logits[:, -1]

    cache = DynamicCache(config=model.config)
    model(ids, position_ids=positions, past_key_values=cache, forward_pass=PaddedPass(mask, SPANS))
    cache.crop(-1)
    again = PaddedPass(mask, SPANS, log_alpha=alphas(), layers=LAYERS, num_cached=ids.shape[1] - 1)
    logits = model(ids[:, -1:], position_ids=positions[:, -1:], past_key_values=cache, forward_pass=again).logits
    torch.testing.assert_close(logits[:, -1], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_prompt_in_several_calls_is_a_prompt_in_one(name: str) -> None:
    model = tiny_model(name, dtype=torch.float64)
    ids, mask, positions = left_padded(prompt_ids())
    whole = PaddedPass(mask, SPANS)
    expected = model(ids, position_ids=positions, forward_pass=whole).logits[:, -1]
    parts, cache = PaddedPass(mask, SPANS), DynamicCache(config=model.config)
    for part in (slice(0, 15), slice(15, 35), slice(35, 40)):
        output = model(ids[:, part], position_ids=positions[:, part], past_key_values=cache, forward_pass=parts)
    torch.testing.assert_close(output.logits[:, -1], expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(parts.attention, whole.attention, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_half_precision_stays_finite_and_near(name: str) -> None:
    _, mask, _ = left_padded(prompt_ids())
    _, exact, _ = generate(tiny_model(name), PaddedPass(mask, SPANS, log_alpha=alphas(), layers=LAYERS))
    half = PaddedPass(mask, SPANS, log_alpha=alphas().float(), layers=LAYERS)
    _, logits, _ = generate(tiny_model(name, dtype=torch.bfloat16), half)
    assert logits.isfinite().all()
    assert half.attention.dtype == torch.float32
    first = (logits[:, 0].float() - exact[:, 0]).abs()
    assert first.mean() < 0.05 * exact[:, 0].abs().mean()


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers how many elements the largest tensor has that any operation gives."""

    num_elements = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else [results]:
            if isinstance(result, Tensor):
                self.num_elements = max(self.num_elements, result.numel())
        return results


def test_measuring_and_calibrating_a_prompt_never_holds_attention_of_all_tokens_to_all() -> None:
    model = tiny_model(vocab_size=64)
    num_tokens = 600
    ids = torch.full((1, num_tokens), 3)
    forward_pass = PaddedPass(
        torch.ones_like(ids), [[(10, 200), (200, 590)]], log_alpha=torch.zeros(1, 2), layers=LAYERS
    )
    with LargestTensor() as largest:
        model(ids, forward_pass=forward_pass)
    assert largest.num_elements < num_tokens**2
    with LargestTensor() as largest:
        tiny_model(vocab_size=64, attention="eager")(ids, output_attentions=True)
    assert largest.num_elements >= 4 * num_tokens**2  # as the library's own way of measuring does


def test_padding_behind_tokens_and_documents_outside_of_their_prompt_are_refused() -> None:
    for padding_behind_or_alone in ([1, 1, 0], [1, 0, 1], [0, 0, 0]):
        with pytest.raises(ValueError, match="at least one token"):
            PaddedPass(torch.tensor([padding_behind_or_alone, [1, 1, 1]]), [[], []])
    with pytest.raises(ValueError, match="prompt of 2 tokens"):
        PaddedPass(torch.tensor([[0, 1, 1], [1, 1, 1]]), [[(0, 3)], []])
