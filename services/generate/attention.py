"""The hook into transformers' attention, and what calibration needs of single rows: their scores and what they read.

A model whose attention implementation is "fovea" hands each layer's queries, keys and values, rotary embeddings
applied, to the `ForwardPass` that its forward call was given. The pass decides what is kept and what each row sees;
nothing is patched and nothing is global, so passes of different kinds may run one after the other on the same model.

Whole prompts go through torch's SDPA, which gives no weights. The few rows that are measured or calibrated have their
scores computed a second time, (B, H, Q, S) with a handful of Q, never T × T. For a calibrated row the scores are at
hand, so log c_k is added to them and the softmax taken right there: what SDPA would do with an additive mask, without
building one as wide as the keys for each layer, head and row.

Grouped queries: head h reads the keys of group h // (H / H'), so the heads of a group are stacked as rows of one
matrix product and keys are never repeated.

Shapes: B batch, H query heads, H' key heads, Q rows, T tokens of a forward call, S keys, D' head width, K documents.
"""

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from services.generate.calibration import (
    Documents,
    document_attention,
    document_log_mass,
    log_rescale,
    spread,
    widen,
)
from services.nn.torchvision_operators import declare_torchvision_operators

ATTENTION = "fovea"
MAX_SCORES = 1 << 24  # of rows that are measured, at a time: 64 MiB of float32


class ForwardPass(Protocol):
    """What a forward call does in attention; given to the model as the keyword argument `forward_pass`."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """(B, H, T, D') queries over (B, H', S, D') keys and values → (B, T, H, D').

        `sliding_window` is how many keys up to itself a token of this layer sees, None where that is all of them.
        """
        ...


@functools.cache
def register_attention() -> None:
    """Make "fovea" an attention implementation of transformers, for any model loaded from here on."""
    declare_torchvision_operators()
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, fovea_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)  # the pass knows what a row sees


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
    """Logits ahead of the softmax: (B, H, Q, D') and (B, H', S, D') → (B, H, Q, S), −inf where hidden.

    `mask` (B, 1, S) or (B, Q, S) bool, true where a row sees a key, None where every row sees all. Products of half
    precision are accumulated and kept in float32; float32 and float64 stay what they are.
    """
    num_batch, num_heads, num_rows, width = query.shape
    rows = (widen(query) * scaling).reshape(-1, num_heads // key.shape[1] * num_rows, width)
    scores = torch.bmm(rows, widen(key).flatten(0, 1).transpose(1, 2)).view(num_batch, num_heads, num_rows, -1)
    return scores if mask is None else scores.masked_fill_(~mask[:, None], -torch.inf)


def measure(scores: Tensor, documents: Documents) -> Tensor:
    """Attn(k), the mean weight of each row on a document's tokens: (B, H, Q, S) → (B, H, Q, K), from 0 to 1.

    0 for a document that is empty or that the row does not see.
    """
    log_mass = document_log_mass(scores, documents.index, documents.mask)
    return document_attention(log_mass, scores.logsumexp(dim=-1), documents.num_tokens[:, None, None])


def measure_rows(query: Tensor, key: Tensor, scaling: float, mask: Tensor | None, documents: Documents) -> Tensor:
    """`measure` of the rows' scores, a few groups of heads at a time: → (B, H, Q, K).

    At most `MAX_SCORES` scores exist at once, or those of one group where these are more.
    """
    num_groups = key.shape[1]
    heads_per_group = query.shape[1] // num_groups
    per_group = query.shape[0] * heads_per_group * query.shape[2] * key.shape[2]
    step = max(1, MAX_SCORES // max(1, per_group))
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
    """What calibration adds to the scores of its rows: (B, H, Q, S) → (B, H, Q, E), log c_k on document k's tokens.

    `log_alpha` (B, K), or (B, H, K) for one a head. 0 on tokens of no document; E is where the last document ends, and
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
    change = bias(scores, documents, log_alpha)
    scores[..., : change.shape[-1]] += change
    weights = scores.softmax(dim=-1).to(value.dtype)
    grouped = weights.reshape(-1, query.shape[1] // key.shape[1] * query.shape[2], key.shape[2])
    return torch.bmm(grouped, value.flatten(0, 1)).view(*query.shape[:-1], value.shape[-1])
