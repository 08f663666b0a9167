"""The hook into transformers' attention, and what calibration needs of single rows: their scores and what they read.

A model whose attention implementation is "fovea" hands each layer's queries, keys and values, rotary embeddings
applied, to the `ForwardPass` that its forward call was given. The pass decides what is kept and what each row sees;
nothing is patched and nothing is global, so passes of different kinds may run one after the other on the same model.

Whole prompts go through torch's SDPA, which gives no weights. The few rows that are measured or calibrated have their
scores computed a second time, (B, H, Q, S) with a handful of Q, never T × T. What calibration then does to a row is
what SDPA would do with log c_k in an additive mask (`bias`), without building one as wide as the keys for each layer,
head and row: with the scores at hand the softmax is taken right there, and Eq. 3.5 applied to its weights, or log c_k
added to the scores where weights run out of digits. (FlexAttention could add log c_k inside its kernel, but needs it
beforehand, which takes the same scores; and it has to be compiled, on a CPU with a C++ compiler at hand.)

Grouped queries: head h reads the keys of group h // (H / H'), so the heads of a group are stacked as rows of one
matrix product and keys are never repeated.

Shapes: B batch, H query heads, H' key heads, Q rows, T tokens of a forward call, S keys, D' head width, K documents.
"""

import functools
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from services.generate.calibration import (
    Documents,
    calibrate_weights_,
    document_attention,
    document_log_mass,
    log_rescale,
    spread,
    widen,
)
from services.nn.loading import transformers

ATTENTION = "fovea"
MAX_SCORES = 1 << 24  # of rows that are measured, at a time: 64 MiB of float32


class ForwardPass(Protocol):
    """The attention of a forward call; given to the model as the keyword argument `forward_pass`."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend (B, H, T, D') queries over (B, H', S, D') keys and values → (B, T, H, D').

        `sliding_window` is the number of keys up to itself that a token of this layer sees, None for all of them.
        """
        ...


@functools.cache
def register_attention() -> None:
    """Make "fovea" an attention implementation of transformers, for any model loaded from here on."""
    transformers().AttentionInterface.register(ATTENTION, fovea_attention)
    transformers().AttentionMaskInterface.register(ATTENTION, _no_mask)  # the pass knows what a row sees


def fovea_attention(  # noqa: PLR0913 (transformers calls it so)
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    forward_pass: ForwardPass | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer as transformers calls it: whatever the forward pass says. Returns ((B, T, H, D'), None).

    Raises ValueError without a pass, for a mask (it would be ignored), and for dropout.
    """
    if forward_pass is None:
        raise ValueError(f'a model with the attention "{ATTENTION}" needs a forward_pass with each call')
    if attention_mask is not None or dropout:
        raise ValueError("the forward pass decides what is seen; neither masks nor dropout are applied")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = forward_pass.attend(module.layer_idx, query, key, value, scaling=scaling, sliding_window=sliding_window)
    return output, None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def row_scores(query: Tensor, key: Tensor, scaling: float, mask: Tensor | None = None) -> Tensor:
    """Compute the logits of the softmax: (B, H, Q, D') and (B, H', S, D') → (B, H, Q, S), −inf where hidden.

    `mask` (B, 1, S) or (B, Q, S) bool, true where a row sees a key, None where every row sees all. Products of half
    precision are accumulated and kept in float32; float32 and float64 stay what they are.
    """
    num_batch, num_heads, num_rows, width = query.shape
    rows = query.reshape(-1, num_heads // key.shape[1] * num_rows, width)
    columns = key.flatten(0, 1).transpose(1, 2)
    if key.is_cuda and key.dtype in (torch.bfloat16, torch.float16):
        products = torch.bmm(rows, columns, out_dtype=torch.float32)  # no wide copy of the keys
    else:
        products = torch.bmm(widen(rows), widen(columns))
    scores = products.mul_(scaling).view(num_batch, num_heads, num_rows, -1)
    return scores if mask is None else scores.masked_fill_(~mask[:, None], -torch.inf)


def measure(scores: Tensor, documents: Documents) -> Tensor:
    """Attn(k), the mean weight of each row on a document's tokens: (B, H, Q, S) → (B, H, Q, K), from 0 to 1.

    0 for a document that is empty or that the row does not see.
    """
    log_mass = document_log_mass(scores, documents.index, documents.mask)
    return document_attention(log_mass, scores.logsumexp(dim=-1), documents.num_tokens[:, None, None])


def measure_rows(
    query: Tensor,
    key: Tensor,
    scaling: float,
    mask: Tensor | None,
    documents: Documents,
    max_scores: int = MAX_SCORES,
) -> Tensor:
    """`measure` of the rows' scores, a few groups of heads at a time: → (B, H, Q, K).

    At most `max_scores` scores exist at once, or those of one group where these are more.
    """
    num_groups = key.shape[1]
    heads_per_group = query.shape[1] // num_groups
    per_group = query.shape[0] * heads_per_group * query.shape[2] * key.shape[2]
    step = max(1, max_scores // max(1, per_group))
    parts = [
        measure(
            row_scores(
                query[:, first * heads_per_group : (first + step) * heads_per_group],
                key[:, first : first + step],
                scaling,
                mask,
            ),
            documents,
        )
        for first in range(0, num_groups, step)
    ]
    return torch.cat(parts, dim=1)


def bias(scores: Tensor, documents: Documents, log_alpha: Tensor) -> Tensor:
    """Compute the addition of calibration to its rows' scores: (B, H, Q, S) → (B, H, Q, E), log c_k on k's tokens.

    `log_alpha` (B, K), or one per head (B, H, K). 0 on tokens of no document; E is where the last document ends, and
    nothing is added behind it. As SDPA's additive mask, padded to S and −inf where a row does not see, it gives what
    `attend_calibrated` gives.
    """
    rows = log_alpha[:, None, None] if log_alpha.dim() == 2 else log_alpha[:, :, None]
    log_mass = document_log_mass(scores, documents.index, documents.mask)
    return spread(log_rescale(rows, log_mass, documents.num_tokens[:, None, None]), documents)


def attend_calibrated(  # noqa: PLR0913 (a layer's attention and what calibrates it)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    mask: Tensor | None,
    documents: Documents,
    log_alpha: Tensor,
) -> Tensor:
    """Attention of a few rows with their documents' weights rescaled by Eq. 3.5: → (B, H, Q, D'), as `query`.

    Shapes as in `row_scores` and `bias`, `value` (B, H', S, D'). A row none of whose documents has a token is attended
    as it would be without calibration. Raises nothing; a row that sees no key at all is NaN.
    """
    scores = row_scores(query, key, scaling, mask)
    weights = scores.softmax(dim=-1)
    # on a GPU, where asking whether weights suffice would wait for all queued work, always by the scores
    if weights.is_cuda or not calibrate_weights_(weights.flatten(1, 2), documents, _of_rows(log_alpha, query)):
        change = bias(scores, documents, log_alpha)
        scores[..., : change.shape[-1]] += change
        weights = scores.softmax(dim=-1)
    grouped = weights.to(value.dtype).view(-1, query.shape[1] // key.shape[1] * query.shape[2], key.shape[2])
    return torch.bmm(grouped, value.flatten(0, 1)).view(*query.shape[:-1], value.shape[-1])


def _of_rows(log_alpha: Tensor, query: Tensor) -> Tensor:
    """(B, K) → (B, 1, K), and (B, H, K) → (B, H · Q, K)."""
    return log_alpha[:, None] if log_alpha.dim() == 2 else log_alpha.repeat_interleave(query.shape[2], dim=1)


class PaddedPass:
    """A forward pass over a left-padded batch of prompts with transformers' own cache, for work outside of a service.

        forward_pass = PaddedPass(attention_mask, spans, log_alpha=log_alpha, layers=range(16, 32))
        model(input_ids, position_ids=…, past_key_values=DynamicCache(config=model.config), forward_pass=forward_pass)

    and then once more with each token generated, (B, 1), on the same cache with the same pass: it counts the tokens
    that it has seen, and the prompts may come in several calls, too. `position_ids` count from each prompt's own first
    token; the model itself needs no attention mask. The last prompt row is calibrated, and that of each token
    generated. All other rows, and with them what the cache keeps of the prompt's other tokens, are as the model
    computes them.
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
        Raises ValueError for a prompt without tokens, padding behind tokens, and spans outside their prompt.
        """
        is_token = attention_mask.bool()
        if not is_token[:, -1].all() or not torch.equal(is_token, is_token.cummax(dim=1).values.bool()):
            raise ValueError("padding must stand ahead of the tokens, and there must be some")
        num_tokens = is_token.sum(dim=1).tolist()
        for length, row in zip(num_tokens, spans, strict=True):
            if any(end > length for _, end in row):
                raise ValueError(f"documents of a prompt of {length} tokens end behind it: {list(row)}")
        self._padding: list[int] = [is_token.shape[1] - length for length in num_tokens]
        shifted = [[(p + start, p + end) for start, end in row] for p, row in zip(self._padding, spans, strict=True)]
        self._num_prompt_tokens = is_token.shape[1]
        self._documents = Documents.of(shifted, attention_mask.device)
        self._log_alpha = log_alpha
        self._layers = frozenset(layers) if log_alpha is not None else frozenset()
        self._num_cached = num_cached
        self._is_measured = is_measured
        self._num_seen: dict[int, int] = {}  # tokens so far in each layer, which a cache of a window no longer tells
        self._attention: dict[int, Tensor] = {}

    @property
    def attention(self) -> Tensor:
        """Attn(k) in the last row of the last call, before the layer's own rescaling: (B, L, H, K) float32."""
        return torch.stack([self._attention[layer] for layer in sorted(self._attention)], dim=1)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`; rows of padding come out as zeros."""
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
        if num_seen < self._num_prompt_tokens:  # more of the prompts is to come
            return output.transpose(1, 2)
        documents = self._documents.without_first(num_dropped)
        mask = _last_row_sees(padding, key, sliding_window)
        last = query[:, :, -1:]
        if self._is_measured:
            self._attention[layer] = measure_rows(last, key, scaling, mask, documents)[:, :, 0]
        if layer in self._layers and self._log_alpha is not None:
            log_alpha = self._log_alpha if self._log_alpha.dim() == 2 else self._log_alpha[:, layer]
            output[:, :, -1:] = attend_calibrated(last, key, value, scaling, mask, documents, log_alpha)
        return output.transpose(1, 2)


def _attend_causally(query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
    """The last T of S tokens, each up to itself: (1, H, T, D') over (1, H', S, D') → (1, H, T, D')."""
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
    """(B, 1, S) bool: no padding, and no more than the window."""
    num_keys = key.shape[2]
    places = torch.arange(num_keys, device=key.device)
    first = torch.tensor(padding, device=key.device)
    if window is not None:
        first = first.clamp_min(num_keys - window)
    return (places >= first[:, None])[:, None]
