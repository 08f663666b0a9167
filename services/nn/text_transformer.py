"""open_clip's text tower, and CLIP's temperature.

Shapes: N texts, W text tokens, E embedding width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

# CLIP clamps its learned log scale here (ln 100).
MAX_LOG_SCALE = math.log(100.0)


def encode_text(tower: Any, input_ids: Tensor) -> Tensor:
    """Compute text features by an open_clip model or its bare text tower: (N, W) int64 → (N, E), not normalised.

    A causal tower pooled at the end of text never sees the padding after it, so the batch is cut to its longest text:
    equal results for a fraction of the work.
    """
    if not hasattr(tower, "encode_text"):
        features: Tensor = tower(input_ids)
        return features
    if not is_causal(tower):
        features = tower.encode_text(input_ids)
        return features
    end = input_ids.argmax(dim=-1)  # the end of text is the highest id
    num_tokens = int(end.max()) + 1
    x = tower.token_embedding(input_ids[:, :num_tokens]) + tower.positional_embedding[:num_tokens]
    x = tower.transformer(x, attn_mask=tower.attn_mask[:num_tokens, :num_tokens])
    features = tower.ln_final(x)[torch.arange(len(end), device=end.device), end]
    if isinstance(tower.text_projection, nn.Linear):
        features = tower.text_projection(features)
    elif tower.text_projection is not None:
        features = features @ tower.text_projection
    return features


def is_causal(clip: Any) -> bool:
    """Whether a model's own text tower reads from left to right and is pooled at the end of text, the highest id."""
    return getattr(clip, "text_pool_type", None) == "argmax" and getattr(clip, "attn_mask", None) is not None


def clamped_scale(log_scale: Tensor) -> Tensor:
    """Return CLIP's learned temperature: exp of the parameter, at most 100."""
    return log_scale.clamp(max=MAX_LOG_SCALE).exp()
