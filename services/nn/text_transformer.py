"""open_clip's text tower, and CLIP's temperature.

Shapes: N texts, W text tokens, E embedding width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from services.nn.device_copies import to_device

# CLIP clamps its learned log scale here (ln 100).
MAX_LOG_SCALE = math.log(100.0)


def encode_text(tower: Any, input_ids: Tensor) -> Tensor:
    """Compute text features by an open_clip model or its bare text tower: (N, W) int64 → (N, E), not normalised.

    A causal tower pooled at the end of text never sees the padding after it, so the batch is cut to its longest text:
    equal results for a fraction of the work. Ids in host memory are copied to the tower's device.
    """
    device = next(tower.parameters()).device
    if not hasattr(tower, "encode_text"):
        features: Tensor = tower(to_device(input_ids, device))
        return features
    if not is_causal(tower):
        features = tower.encode_text(to_device(input_ids, device))
        return features
    input_ids, end = cut_at_end(input_ids, input_ids.argmax(dim=-1), device)  # the end of text is the highest id
    num_tokens = input_ids.shape[1]
    x = tower.token_embedding(input_ids) + tower.positional_embedding[:num_tokens]
    x = tower.transformer(x, attn_mask=tower.attn_mask[:num_tokens, :num_tokens])
    features = tower.ln_final(x)[torch.arange(len(end), device=device), end]
    if isinstance(tower.text_projection, nn.Linear):
        features = tower.text_projection(features)
    elif tower.text_projection is not None:
        features = features @ tower.text_projection
    return features


def cut_at_end(input_ids: Tensor, end: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cut texts (N, W) where the longest one ends, and copy them and their ends (N,) to a device together, without
    waiting for it if they are in host memory."""
    both = torch.cat([input_ids[:, : int(end.max()) + 1], end[:, None]], dim=1)
    input_ids, end = to_device(both, device).tensor_split([-1], dim=1)
    return input_ids, end[:, 0]


def is_causal(clip: Any) -> bool:
    """Whether a model's own text tower reads from left to right and is pooled at the end of text, the highest id."""
    return getattr(clip, "text_pool_type", None) == "argmax" and getattr(clip, "attn_mask", None) is not None


def clamped_scale(log_scale: Tensor) -> Tensor:
    """Return CLIP's learned temperature: exp of the parameter, at most 100."""
    return log_scale.clamp(max=MAX_LOG_SCALE).exp()
