"""Features of captions, as losses need them.

Shapes: A captions, W text tokens, E embedding width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.score.fsc_clip import TextFeatures
from services.score.model.dense_features import encode_texts

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
