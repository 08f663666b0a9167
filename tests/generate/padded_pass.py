"""A forward pass over a padded batch of prompts, to compare the model's packed passes with.

Shapes: B batch, H query heads, H' key heads, T tokens of a forward call, S keys, D' head width, K documents, L layers.
"""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from services.generate.calibration import Documents, attend_calibrated, measure_rows
from tests.generate.calibrated_weights import without_first


class PaddedPass:
    """A forward pass over a left-padded batch of prompts with transformers' own cache.

        forward_pass = PaddedPass(attention_mask, spans, log_alpha=log_alpha, layers=range(16, 32))
        model(input_ids, position_ids=…, past_key_values=DynamicCache(config=model.config), forward_pass=forward_pass)

    and then again with each generated token, (B, 1), on the same cache with the same pass: it counts the tokens that it
    has seen, so prompts may also be split over several calls. `position_ids` count from each prompt's own first token;
    the model itself needs no attention mask. The last prompt row and the row of each generated token are calibrated.
    All other rows, and so the cached keys and values of the prompt's other tokens, are those of the plain model.
    """

    def __init__(
        self,
        attention_mask: Tensor,
        spans: Sequence[Sequence[tuple[int, int]]],
        *,
        log_alpha: Tensor | None = None,
        layers: Collection[int] = (),
        num_cached: int = 0,
        is_measured: bool = True,
    ) -> None:
        """`attention_mask` (B, T) of the prompts, nonzero at tokens, zeros first; `spans` of each prompt's documents,
        counted from its own first token.

        `log_alpha` (B, K), or (B, L, H, K), calibrates `layers`, None calibrates nothing. `num_cached` tokens of each
        row, padding included, are in the cache already: T − 1 to run the last prompt token once more. `is_measured`
        fills `attention`.
        Raises ValueError for a prompt without tokens, padding after tokens, and spans that exceed their prompt.
        """
        is_token = attention_mask.bool()
        if not is_token[:, -1].all() or not torch.equal(is_token, is_token.cummax(dim=1).values.bool()):
            raise ValueError("each prompt needs at least one token, with all padding to its left")
        num_tokens = is_token.sum(dim=1).tolist()
        for length, row in zip(num_tokens, spans, strict=True):
            if any(end > length for _, end in row):
                raise ValueError(f"document spans exceed a prompt of {length} tokens: {list(row)}")
        self._padding: list[int] = [is_token.shape[1] - length for length in num_tokens]
        shifted = [[(p + start, p + end) for start, end in row] for p, row in zip(self._padding, spans, strict=True)]
        self._num_prompt_tokens = is_token.shape[1]
        self._documents = Documents.of(shifted, attention_mask.device)
        self._log_alpha = log_alpha
        self._layers = frozenset(layers) if log_alpha is not None else frozenset()
        self._num_cached = num_cached
        self._is_measured = is_measured
        self._num_seen: dict[int, int] = {}  # tokens so far in each layer, which is unknown to a cache with a window
        self._attention: dict[int, Tensor] = {}

    @property
    def attention(self) -> Tensor:
        """Attn(k) in the last row of the last call, before the layer's own rescaling: (B, L, H, K) float32."""
        return torch.stack([self._attention[layer] for layer in sorted(self._attention)], dim=1)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`; rows of padding are zeros."""
        num_seen = self._num_seen.get(layer, self._num_cached) + query.shape[2]
        self._num_seen[layer] = num_seen
        num_dropped = num_seen - key.shape[2]
        padding = [max(0, p - num_dropped) for p in self._padding]
        output = torch.zeros_like(query)
        for row, skipped in enumerate(padding):
            own = slice(row, row + 1)
            first = max(0, skipped - (key.shape[2] - query.shape[2]))
            output[own, :, first:] = _attend_causally(
                query[own, :, first:], key[own, :, skipped:], value[own, :, skipped:], scaling, sliding_window
            )
        if num_seen < self._num_prompt_tokens:  # the prompts are not complete yet
            return output.transpose(1, 2)
        documents = without_first(self._documents, num_dropped)
        mask = _last_row_sees(padding, key, sliding_window)
        last = query[:, :, -1:]
        if self._is_measured:
            self._attention[layer] = measure_rows(last, key, scaling, mask, documents)[:, :, 0]
        if layer in self._layers and self._log_alpha is not None:
            log_alpha = self._log_alpha if self._log_alpha.dim() == 2 else self._log_alpha[:, layer]
            output[:, :, -1:] = attend_calibrated(last, key, value, scaling, mask, documents, log_alpha)
        return output.transpose(1, 2)


def _attend_causally(query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
    """Attend the last T of S tokens, each to keys up to itself: (1, H, T, D') over (1, H', S, D') → (1, H, T, D')."""
    num_rows, num_keys = query.shape[2], key.shape[2]
    is_square = num_rows == num_keys and (window is None or num_keys <= window)
    mask = None
    if not is_square:
        places = torch.arange(num_keys, device=key.device)
        distance = places[num_keys - num_rows :, None] - places
        mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_square, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _last_row_sees(padding: Sequence[int], key: Tensor, window: int | None) -> Tensor:
    """Make a mask (B, 1, S) bool: true in the window, except for padding."""
    num_keys = key.shape[2]
    places = torch.arange(num_keys, device=key.device)
    first = torch.tensor(padding, device=key.device)
    if window is not None:
        first = first.clamp_min(num_keys - window)
    return (places >= first[:, None])[:, None]
