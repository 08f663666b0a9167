"""Features of captions and the states at their ends, as losses need them.

Shapes: A captions, W text tokens, D width, E embedding width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.score.fsc_clip import TextFeatures
from services.score.model.dense_features import encode_texts, end_of_text

TEXT_GROUPS = 3


def encode_by_length(clip: Any, input_ids: Tensor) -> TextFeatures:
    """Encode texts, on a CPU in TEXT_GROUPS groups of similar length, because padding costs as much as words."""
    if input_ids.device.type != "cpu":
        return encode_texts(clip, input_ids)
    order = (input_ids != 0).sum(dim=1).argsort(stable=True)
    groups = [encode_texts(clip, input_ids[some]) for some in order.tensor_split(TEXT_GROUPS) if len(some)]
    longest = max(group.mask.shape[1] for group in groups)
    padded = [F.pad(group.tokens, (0, 0, 0, longest - group.mask.shape[1])) for group in groups]
    masks = [F.pad(group.mask, (0, longest - group.mask.shape[1])) for group in groups]
    back = order.argsort()
    return TextFeatures(
        torch.cat([group.pooled for group in groups])[back], torch.cat(padded)[back], torch.cat(masks)[back]
    )


def caption_ends(clip: Any, input_ids: Tensor) -> Tensor:
    """Compute the states at the ends of captions after the last norm, before the projection: (A, W) int64 → (A, D)."""
    tower, end = getattr(clip, "text", clip), end_of_text(clip, input_ids)
    length = int(end.max()) + 1
    x = tower.token_embedding(input_ids[:, :length]) + tower.positional_embedding[:length]
    x = tower.transformer(x, attn_mask=tower.attn_mask[:length, :length])
    ends: Tensor = tower.ln_final(x[torch.arange(len(end), device=end.device), end])
    return ends
