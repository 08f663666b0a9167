"""Eq. 7 as it is written, which tests hold the faster way to its cosines to."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from services.score.fsc_clip import patch_weights


def aligned_patches(image_tokens: Tensor, text_tokens: Tensor, **form: Any) -> Tensor:
    """The patches that each text token takes: (R, P, E) and (R, W, E), un-normalised → (R, W, E), unit."""
    return F.normalize(patch_weights(image_tokens, text_tokens, **form) @ image_tokens, dim=-1)
