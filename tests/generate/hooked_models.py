"""Transformers' own models with the attention "fovea", which hands each layer's queries, keys and values to a pass.

The project's own layers are compared with them.

Shapes: B batch, H query heads, H' key heads, T tokens of a forward call, S keys, D' width of a head.
"""

import functools
from typing import Any

from torch import Tensor

from services.generate.model.decoder import ForwardPass
from services.nn.loading import transformers

ATTENTION = "fovea"


@functools.cache
def register_attention() -> None:
    """Make "fovea" an attention implementation of transformers, for any model loaded from here on."""
    transformers().AttentionInterface.register(ATTENTION, fovea_attention)
    transformers().AttentionMaskInterface.register(ATTENTION, _no_mask)  # the pass determines what a row sees


def fovea_attention(
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
    """Compute the attention of one layer for transformers, by the forward pass. Returns ((B, T, H, D'), None)."""
    assert forward_pass is not None and attention_mask is None and not dropout
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = forward_pass.attend(module.layer_idx, query, key, value, scaling=scaling, sliding_window=sliding_window)
    return output, None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None
