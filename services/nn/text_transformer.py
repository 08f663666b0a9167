"""open_clip's text tower, and CLIP's temperature.

Shapes: N texts, W text tokens, E embedding width.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from services.nn.captured import MAX_ROWS, Captured
from services.nn.clip_texts import InputIds
from services.nn.device_copies import stack, to_device

# CLIP clamps its learned log scale here (ln 100).
MAX_LOG_SCALE = math.log(100.0)
# The lengths of few texts on CUDA are multiples of this, or the whole context.
LENGTH_STEP = 16


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
    # the end of text is the highest id
    return encode_cut(tower, *cut_at_end(input_ids, input_ids.argmax(dim=-1), device))


def cut_at_end(input_ids: Tensor, end: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cut texts (N, W) where the longest one ends, and copy them and their ends (N,) to a device together, without
    waiting for it if they are in host memory. Few texts have few lengths on CUDA, for which graphs are captured."""
    step = 1 if device.type in ("cpu", "mps") or len(input_ids) > MAX_ROWS else LENGTH_STEP
    longest = -(-(int(end.max()) + 1) // step) * step
    both = torch.cat([input_ids[:, :longest], end[:, None]], dim=1)
    input_ids, end = to_device(both, device).tensor_split([-1], dim=1)
    return input_ids, end[:, 0]


def encode_cut(tower: Any, input_ids: Tensor, end: Tensor) -> Tensor:
    """Encode as `encode_text` by a causal tower: token ids (N, W) and ends (N,) of `cut_at_end` → (N, E)."""
    return project_text(tower, last_tokens(tower, input_ids)[torch.arange(len(end), device=end.device), end])


def last_tokens(tower: Any, input_ids: Tensor) -> Tensor:
    """Run a causal tower up to its last normalisation: token ids (N, W) → (N, W, D)."""
    num_tokens = input_ids.shape[1]
    x = tower.token_embedding(input_ids) + tower.positional_embedding[:num_tokens]
    tokens: Tensor = tower.ln_final(tower.transformer(x, attn_mask=tower.attn_mask[:num_tokens, :num_tokens]))
    return tokens


def project_text(tower: Any, tokens: Tensor) -> Tensor:
    """Project tokens to the shared space, if the tower does: (…, D) → (…, E)."""
    projection = tower.text_projection
    if projection is None:
        return tokens
    projected: Tensor = projection(tokens) if isinstance(projection, nn.Linear) else tokens @ projection
    return projected


class TextEncoder:
    """Runs a text tower under torch.inference_mode, on one thread at a time."""

    def __init__(self, tower: Any, device: torch.device) -> None:
        self._tower = tower
        self._device = device
        self._encode_cut = Captured(lambda *cut: (encode_cut(tower, *cut),))

    def encode(self, texts: Sequence[InputIds]) -> Tensor:
        """Encode token ids (W,) each → (N, E), not normalised."""
        input_ids = stack(texts, self._device)
        if not is_causal(self._tower):
            return encode_text(self._tower, input_ids)
        cut = cut_at_end(input_ids, input_ids.argmax(dim=-1), self._device)
        (features,) = self._encode_cut(*cut, num_rows=len(texts))
        return features


def is_causal(clip: Any) -> bool:
    """Whether a model's own text tower reads from left to right and is pooled at the end of text, the highest id."""
    return getattr(clip, "text_pool_type", None) == "argmax" and getattr(clip, "attn_mask", None) is not None


def clamped_scale(log_scale: Tensor) -> Tensor:
    """Return CLIP's learned temperature: exp of the parameter, at most 100."""
    return log_scale.clamp(max=MAX_LOG_SCALE).exp()
